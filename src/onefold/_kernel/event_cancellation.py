"""Taking back events inside a transaction: at once on a thread, and on asyncio when it is awaited.

Invariant: what was asked for and never awaited, and so never happened, does not commit as if it had.
"""

from __future__ import annotations

from collections.abc import Coroutine
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any

from onefold._kernel.effects import BatchItem, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.ports import Connection
from onefold.errors import TransactionMisused


class Cancels:
    """The cancellations of one transaction."""

    __slots__ = ("_awaited",)

    def __init__(self) -> None:
        #: Those that happen when they are awaited.
        self._awaited: list[tuple[str, Coroutine[Any, Any, bool]]] = []

    def perform(
        self, executor: ThreadExecutor[Any] | TaskExecutor[Any], event_id: str, items: bool | tuple[BatchItem, ...]
    ) -> Any:
        """Whether `items` take the event back; on asyncio to be awaited."""
        if isinstance(executor, ThreadExecutor):
            here: Connection[Any] | ThreadExecutor[Any] = executor
        elif (own := executor.on_this_thread()) is not None:
            here = own
        else:
            cancelling = _any_row(executor, items)
            if not isinstance(items, bool):
                self._awaited.append((event_id, cancelling))
            return cancelling
        match items:
            case bool(known):
                return known
            case (Statement() as alone,):  # fetched: a batch is for our own role and limits, and this is the handler's
                return len(here.fetch(alone)) > 0
            case _:
                return here.batch(items) > 0

    def check_end(self) -> None:
        """Raises TransactionMisused where one was not awaited."""
        for event_id, cancelling in self._awaited:
            if getcoroutinestate(cancelling) == CORO_CREATED:
                cancelling.close()
                raise TransactionMisused(
                    f"tx.cancel({event_id!r}) was not awaited, and so has cancelled nothing; nothing was committed. "
                    f"Write `await tx.cancel({event_id!r})`"
                )


async def _any_row(executor: TaskExecutor[Any], items: bool | tuple[BatchItem, ...]) -> bool:
    match items:
        case bool(known):
            return known
        case (Statement() as alone,):
            return len(await executor.fetch(alone)) > 0
        case _:
            return await executor.batch(items) > 0
