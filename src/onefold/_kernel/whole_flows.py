"""Flows inside of a handler's transaction that must not stay half done, whatever their user goes on with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from onefold._kernel.effects import Call, Flow, HandlerStatement, Query
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.savepoints import Savepoint, Savepoints
from onefold.errors import RowDiffers

_HALF_DONE = (
    "tx.ledger_entry failed on its way ({why}), so that its entry may be there without its addition. Nothing of the "
    "transaction is kept: a retry does both"
)


async def run_or_doom(savepoints: Callable[[], Savepoints], make: Callable[[], Flow[Any]]) -> Any:
    """Run a flow as a whole, or nothing of the transaction is committed. The server has aborted it where it refused a
    statement. What a driver refuses, the server has not seen, and what is interrupted (a time-out, a cancellation) may
    be half done: then the transaction is doomed."""
    try:
        return await make()
    except RowDiffers:  # nothing was written
        raise
    except Exception as error:
        try:
            await Query(HandlerStatement("SELECT 1"))
        except Exception:
            raise error from None
        savepoints().doom(_HALF_DONE.format(why=error))
        raise
    except BaseException:
        savepoints().doom(_HALF_DONE.format(why="it was interrupted"))
        raise


async def run_in_part(
    part: Savepoint, executor: ThreadExecutor[Any] | TaskExecutor[Any], make: Callable[[], Flow[Any]]
) -> Any:
    """Run a flow as a part that is undone alone where it fails. One that is interrupted stays open, and an open part is
    not committed."""
    here = isinstance(executor, ThreadExecutor) or executor.on_this_thread() is not None
    leave: Callable[..., Any] = part.__exit__ if here else part.__aexit__
    await Call(part.__enter__ if here else part.__aenter__)
    try:
        answer = await make()
    except Exception as error:
        await Call(functools.partial(leave, type(error), error, None))
        raise
    await Call(functools.partial(leave, None, None, None))
    return answer
