"""What a request carries in its scope or environ."""

from __future__ import annotations

from typing import Final

#: Where a handler finds its transaction.
TRANSACTION: Final = "onefold.transaction"

#: Where a shedder inside of the layer finds the guarded request: see `GuardedRequest.step_aside`.
GUARDED: Final = "onefold.guarded_request"

#: Where a request finds the application's sessions.
SESSIONS: Final = "onefold.sessions"
