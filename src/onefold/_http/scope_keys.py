"""What a request carries in its scope or environ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

#: Where a handler finds its transaction.
TRANSACTION: Final = "onefold.transaction"

#: Where a handler finds the condition of its request.
CONDITION: Final = "onefold.condition"

#: Where a shedder inside of the layer finds the guarded request: see `GuardedRequest.step_aside`.
GUARDED: Final = "onefold.guarded_request"

#: Where a request finds the application's sessions.
SESSIONS: Final = "onefold.sessions"


def is_between_steps(source: Mapping[str, Any]) -> bool:
    """Whether the handler of a request works in steps and is in none now: it has no transaction then."""
    guarded = source.get(GUARDED)
    return guarded is not None and guarded.work is not None and not source[TRANSACTION].is_open
