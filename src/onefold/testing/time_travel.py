"""Time that passes at once: what is stored becomes older, so that a test of retention need not wait for it.

make_older(once, 25 * 3600)
once.reap()  # the keys of yesterday are gone
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, Final, overload

from onefold._app import AsyncOnefold, Onefold
from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Batch, Boundary, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.runners import run, run_async
from onefold._policy.ranges import require
from onefold.testing._given import require_once

__all__ = ["make_older"]

#: What each table says of time: when a key expires, a message was handled, is due or died, an event was published.
_TIMES: Final = {
    "onefold_record": ("expires_at",),
    "onefold_inbox": ("handled_at",),
    "onefold_letter": ("created_at", "due_at", "died_at"),
    "onefold_outbox": ("written_at", "due_at", "published_at", "died_at"),
}

#: In SQLite, the time of what is never due: see `onefold_outbox`.
_NEVER_MS: Final = 2**62


@overload
def make_older(once: Onefold, seconds: float) -> None: ...
@overload
def make_older(once: AsyncOnefold, seconds: float) -> Coroutine[Any, Any, None]: ...
def make_older(once: Onefold | AsyncOnefold, seconds: float) -> Any:
    """Have all that is stored happened so many seconds earlier: keys, handled messages, dead letters, events. What was
    to happen in that time is due now. Leases and schedules stay as they are. `await make_older(...)` for an
    AsyncOnefold."""
    require_once(once)
    require("seconds", seconds, least=0, most=100 * 365 * 86_400)
    flow = with_connection(lambda: _shift(once._database.dialect, milliseconds(seconds)))
    if isinstance(once, Onefold):
        return run(flow, ThreadExecutor(once._database))
    return run_async(flow, TaskExecutor(once._database))


async def _shift(dialect: str, ms: int) -> None:
    steps = [
        Statement(_postgres(table, column) if dialect == "postgres" else _sqlite(table, column), (ms,))
        for table, columns in _TIMES.items()
        for column in columns
    ]
    await Batch((Boundary.BEGIN, *steps, Boundary.COMMIT))


def _postgres(table: str, column: str) -> str:
    return f"UPDATE {table} SET {column} = {column} - $1::bigint * interval '1 millisecond'"


def _sqlite(table: str, column: str) -> str:
    return f"UPDATE {table} SET {column}_ms = {column}_ms - ?1 WHERE {column}_ms < {_NEVER_MS}"
