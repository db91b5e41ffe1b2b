"""The transaction, and the request, of the handler that this task or thread is inside of."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction

current_transaction: ContextVar[OwnedTransaction[Any] | None] = ContextVar("onefold_current_transaction", default=None)

#: The request, from admission to end. Of the HTTP layer's own class.
current_request: ContextVar[Any] = ContextVar("onefold_current_request", default=None)

#: The transactions of the blocks (`once.transaction()`, `once.handling(...)`) that this task or thread is inside of.
_blocks: ContextVar[tuple[OwnedTransaction[Any], ...]] = ContextVar("onefold_blocks", default=())


@contextmanager
def inside_block(tx: OwnedTransaction[Any]) -> Iterator[None]:
    """Its user is inside of a block that ends with this transaction."""
    token = _blocks.set((*_blocks.get(), tx))
    try:
        yield
    finally:
        with suppress(ValueError):  # a framework has left it in another context than it has entered it in
            _blocks.reset(token)


def is_in_open_block(executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> bool:
    """Whether this task or thread is inside of a block over the executor's database whose transaction is open."""
    database = _database_of(executor)
    return any(tx.is_open and _database_of(tx.executor) is database for tx in _blocks.get())


def _database_of(executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> object:
    """The same for one that awaits a synchronous database."""
    database: Any = executor._database
    return getattr(database, "database", database)


def call_in(tx: OwnedTransaction[Any], function: Callable[[Any], Any]) -> Any:
    """Call the function where `once.transaction()` knows of its transaction."""
    token = current_transaction.set(tx)
    try:
        answer = function(tx)
    finally:
        current_transaction.reset(token)
    return _await_in(tx, answer) if inspect.isawaitable(answer) else answer


async def _await_in(tx: OwnedTransaction[Any], answer: Awaitable[Any]) -> Any:
    token = current_transaction.set(tx)
    try:
        return await answer
    finally:
        current_transaction.reset(token)
