"""Performs the flows of a consumer over its database, each on an executor of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeAlias, TypeVar

from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.foreign_cancellations import resist
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold.errors import StoreBusy

T = TypeVar("T")

MakeTransaction: TypeAlias = Callable[[TaskExecutor[Any]], OwnedTransaction[Any]]

BUSY_MAX: Final = 10


class FlowRunner:
    """Performs flows; a cancellation that is not ours is an error like any other."""

    def __init__(
        self,
        database: AsyncDatabase[Any],
        transaction: MakeTransaction,
        limit_hook: Callable[[Callable[[], Any]], Callable[[], Any]],
    ) -> None:
        self._database = database
        self._transaction = transaction
        self._limit_hook = limit_hook

    async def run(self, flow: Flow[T]) -> T:
        return await resist(run_async(flow, TaskExecutor(self._database)))

    async def handle(self, flow: Callable[[OwnedTransaction[Any]], Flow[T]]) -> T:
        """A flow that calls a handler, in a transaction."""
        executor: TaskExecutor[Any] = TaskExecutor(self._database)
        tx = self._transaction(executor)
        tx.limit_hook = self._limit_hook
        return await resist(run_async(flow(tx), executor))

    async def insist(self, flow: Callable[[OwnedTransaction[Any]], Flow[T]]) -> T:
        """`handle`, repeated while the database is locked. A lock held by others (SQLite has only one) is worth waiting
        for, with the delivery in hand."""
        for _ in range(BUSY_MAX):
            try:
                return await self.handle(flow)
            except StoreBusy:
                continue
        return await self.handle(flow)
