"""Whether a database has seen a consumer: to an operator a mistyped name must not look like one with nothing to do."""

from __future__ import annotations

from difflib import get_close_matches

from onefold._cli.session import CommandSession
from onefold._inbox.failed_lists import list_failed_consumers
from onefold._inbox.pausing import pauses
from onefold._inbox.registry import list_consumers


def explain_unseen(db: CommandSession, name: str) -> str:
    """That no such consumer has been seen, with the name that may be meant. Empty for one that has been."""
    known = {
        *db.run(list_consumers(db.dialect)),
        *db.run(list_failed_consumers(db.dialect)),
        *(each.consumer for each in db.run(pauses(db.dialect))),
    }
    if name in known:
        return ""
    close = get_close_matches(name, sorted(known), 1)
    meant = f"did you mean {close[0]!r}?" if close else "see `onefold consumers list`."
    return f"no consumer {name!r} has been seen in this database; {meant}"
