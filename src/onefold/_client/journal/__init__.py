"""The key journal: which key an intent is sent under, written down before the first byte leaves.

A process that dies in the middle of a call leaves a row behind. The next call of the intent, in any process, gets
the same key, so the server can tell that it is the same call.
"""

from onefold._client.journal.flow import Journal
from onefold._client.journal.location import default_journal, make_private
from onefold._client.journal.queries import counts, forget, intent_of, intents
from onefold._client.journal.records import ClaimedKey, IntentCounts, IntentView
from onefold._client.journal.schema import prepare

__all__ = [
    "ClaimedKey",
    "IntentCounts",
    "IntentView",
    "Journal",
    "counts",
    "default_journal",
    "forget",
    "intent_of",
    "intents",
    "make_private",
    "prepare",
]
