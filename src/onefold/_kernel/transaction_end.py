"""The end of a transaction, the same wherever it was begun: in a request, a consumer, a block.

Theory of operation. Sessions write what they hold back, or let go of it. Then the transaction is refused to its user,
committed or rolled back, and concluded: hooks are called, sessions are let go of, once. What COMMIT's failure tells of
the rows is what hooks are told: where nobody knows, neither kind is called.

An interruption (cancellation, KeyboardInterrupt) may strike anywhere in between: the flow is closed where it stands.
The executor, which is abandoned then, knows the transaction it leads to, and concludes it with what was known at that
moment: rolled back before COMMIT was sent, unknown from then on, and how it ended once that was answered. That is noted
before the connection is given back (`ReleaseCommitted`): nothing can be awaited, and so interrupted, in between.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from onefold._kernel.effects import Call, Flow, Statement
from onefold._kernel.transaction import Transaction
from onefold.errors import ConnectionLost, OutcomeUnknowable, OutcomeUnknown

T = TypeVar("T")

_log = logging.getLogger("onefold.transaction")


async def close_sessions(tx: Transaction[Any], keep_rows: bool) -> None:
    """The transaction is about to end: have what joined it write what it holds back, or let go of it."""
    for joined in reversed(tx.joined):
        await Call(functools.partial(joined.before_end, keep_rows))


def is_kept(_: object) -> bool:
    """A COMMIT that was answered has kept the rows."""
    return True


async def commit(
    tx: Transaction[Any],
    work: Callable[[tuple[Statement, ...]], Flow[T]],
    *,
    keep_rows: bool = True,
    kept: Callable[[T], bool | None] = is_kept,
) -> T:
    """Have `work` commit, and conclude. It is given what writes the events, none where the rows are not kept; `kept`
    says of its answer whether they were."""
    tx.end(None if keep_rows else False)
    try:
        answer = await work(tx.flush() if keep_rows else ())
    except Exception as error:
        await tx.conclude(_kept_despite(error) if tx.kept is None else tx.kept)
        raise
    outcome = kept(answer)
    if outcome:
        tx.committed()
    await tx.conclude(outcome if keep_rows else False)
    return answer


async def undo(tx: Transaction[Any], work: Callable[[], Flow[T]], *, name: str) -> T:
    """Have `work` roll back, and conclude. `name` says whose session could not be closed, should there be one."""
    try:
        await close_sessions(tx, False)
    except Exception:
        _log.warning("%s: a session could not be closed; its connection rolls back", name, exc_info=True)
    tx.end()
    try:
        answer = await work()
    except Exception:
        await tx.conclude(False)
        raise
    await tx.conclude(False)
    return answer


def _kept_despite(error: Exception) -> bool | None:
    """Whether the rows of a transaction whose COMMIT failed like this were kept. None: not known."""
    return None if isinstance(error, ConnectionLost | OutcomeUnknown | OutcomeUnknowable) else False
