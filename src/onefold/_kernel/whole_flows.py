"""Flows inside of a handler's transaction that must not stay half done, whatever their user goes on with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from onefold._kernel.effects import Call, Flow, HandlerStatement, Query
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.savepoints import DIVIDED, Savepoint, Savepoints
from onefold.errors import ConnectionLost, ProgrammerError, RowDiffers, TransactionAborted, TransactionMisused

_HALF_DONE = (
    "tx.ledger_entry failed on its way ({why}), so that its entry may be there without its addition. Nothing of the "
    "transaction is kept: a retry does both"
)
_TOO_LATE = (
    "tx.ledger_entry was called by a task or a thread that the handler has left behind: its transaction is about to "
    "end. Nothing was written: await the task, or join the thread, before the handler returns"
)
_NOT_ENDED = "a part of tx.ledger_entry could not be ended, so nothing of the transaction is kept: {why}"


class _Divisible(Protocol):
    """A transaction, as far as this is concerned. Read without a call: an entry is one of many in a request."""

    _savepoints: Savepoints | None
    _under_way: list[None]
    _closing: bool

    def _all_savepoints(self) -> Savepoints: ...


async def run_before_end(tx: _Divisible, make: Callable[[], Flow[Any]]) -> Any:
    """Run a flow that is not half done when its transaction ends. What a task or a thread has under way that the
    handler has left behind, the end finds (`_under_way`); and nothing begins once it has looked (`_closing`)."""
    tx._under_way.append(None)
    try:
        if tx._closing:
            raise ProgrammerError(_TOO_LATE)
        return await make()
    finally:
        tx._under_way.pop()


async def run_or_doom(tx: _Divisible, make: Callable[[], Flow[Any]]) -> Any:
    """Run a flow as a whole, or nothing of the transaction is committed. The server has aborted it where it refused a
    statement. What a driver refuses, the server has not seen, and what is interrupted (a time-out, a cancellation) may
    be half done: then the transaction is doomed. So it is where another task's savepoint lies between its statements:
    that can undo one of them alone, and also that the server has aborted anything."""
    known = tx._savepoints
    edges = 0 if known is None else known.edges
    try:
        answer = await make()
    except RowDiffers:  # nothing was written
        raise
    except Exception as error:
        may_stay = True
        try:
            may_stay = edges != tx._all_savepoints().edges or not await _is_aborted()
        finally:  # also where it was interrupted
            if may_stay:
                tx._all_savepoints().doom(_HALF_DONE.format(why=error))
        raise
    except BaseException:
        tx._all_savepoints().doom(_HALF_DONE.format(why="it was interrupted"))
        raise
    known = tx._savepoints
    if known is not None and edges != known.edges:
        known.doom(DIVIDED.format(what="tx.ledger_entry"))
        known.check()
    return answer


async def _is_aborted() -> bool:
    """Whether the server has aborted the transaction, or lost it. A driver may refuse to ask: that says nothing."""
    try:
        await Query(HandlerStatement("SELECT 1"))
    except (TransactionAborted, ConnectionLost):
        return True
    except Exception:
        return False
    return False


async def run_in_part(savepoints: Savepoints, make: Callable[[], Flow[Any]]) -> Any:
    """Run a flow as a part that is undone alone where it fails. One that is interrupted stays open, and an open part is
    not committed; nor is one that another task's savepoint divides. No session has joined the transaction, or joins it
    in this flow: then it is `run_in_savepoint`."""
    number = savepoints.take_number()
    await Query(HandlerStatement(f"SAVEPOINT onefold_{number}"))
    savepoints.enter(number)
    edges = savepoints.edges
    try:
        answer = await make()
    except Exception:
        await _end(savepoints, number, "ROLLBACK TO", "RELEASE")
        with suppress(TransactionMisused):  # what is rising already tells more
            savepoints.leave(number)
        raise
    _check_whole(savepoints, edges)
    await _end(savepoints, number, "RELEASE")
    savepoints.leave(number)
    return answer


async def _end(savepoints: Savepoints, number: int, *commands: str) -> None:
    try:
        for command in commands:
            await Query(HandlerStatement(f"{command} onefold_{number}"))
    except Exception as failure:
        if not isinstance(failure, ConnectionLost):  # a lost connection is found by the settle itself
            savepoints.doom(_NOT_ENDED.format(why=failure))
        raise


async def run_in_savepoint(
    part: Savepoint, executor: ThreadExecutor[Any] | TaskExecutor[Any], make: Callable[[], Flow[Any]]
) -> Any:
    """`run_in_part` where sessions work in the transaction, which have a part of their own in the savepoint."""
    here = isinstance(executor, ThreadExecutor) or executor.on_this_thread() is not None
    leave: Callable[..., Any] = part.__exit__ if here else part.__aexit__
    await Call(part.__enter__ if here else part.__aenter__)
    edges = part.savepoints.edges
    try:
        answer = await make()
    except Exception as error:
        await Call(functools.partial(leave, type(error), error, None))
        raise
    _check_whole(part.savepoints, edges)
    await Call(functools.partial(leave, None, None, None))
    return answer


def _check_whole(savepoints: Savepoints, edges: int) -> None:
    """Doom the transaction where a savepoint has begun or ended since there were that many edges."""
    if edges != savepoints.edges:
        savepoints.doom(DIVIDED.format(what="tx.ledger_entry"))
