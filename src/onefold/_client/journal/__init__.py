"""The key journal: which key an intent is sent under, written down before the first byte leaves.

A process that dies in the middle of a call leaves a row behind. Whoever takes the intent up again, in whatever process,
gets the same key, so the server can tell that it is the same call.
"""

from onefold._client.journal.flow import Journal
from onefold._client.journal.inspect import counts, forget, intent_of, intents
from onefold._client.journal.location import default_journal, made_private
from onefold._client.journal.model import IntentView, Named, Summary
from onefold._client.journal.schema import prepare

__all__ = [
    "IntentView",
    "Journal",
    "Named",
    "Summary",
    "counts",
    "default_journal",
    "forget",
    "intent_of",
    "intents",
    "made_private",
    "prepare",
]
