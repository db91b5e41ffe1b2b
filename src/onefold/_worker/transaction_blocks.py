"""A transaction as a `with` block: committed at its end, rolled back when it fails, dropped when it is interrupted."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from onefold._kernel.current_transaction import inside_block
from onefold._kernel.effects import Flow, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction, close_sessions, commit, undo
from onefold._kernel.runners import run, run_async
from onefold._kernel.transaction import Transaction

_NAME = "a transaction block"


class Ends(Protocol):
    """Ends a transaction that has begun."""

    def commit(self, also: tuple[Statement, ...]) -> Flow[None]: ...
    def rollback(self, error: Exception) -> Flow[None]: ...


@contextmanager
def block(tx: OwnedTransaction[Any], ends: Ends, executor: ThreadExecutor[Any]) -> Iterator[Transaction[Any]]:
    """For threads."""
    tx.open(_NAME)
    try:
        with inside_block(tx):
            yield tx
        tx.check_end()
    except Exception as error:
        run(_undo(tx, ends, error), executor)
        raise
    except BaseException:
        executor.abandon()
        raise
    run(_commit(tx, ends), executor)


@asynccontextmanager
async def async_block(
    tx: OwnedTransaction[Any], ends: Ends, executor: TaskExecutor[Any]
) -> AsyncIterator[Transaction[Any]]:
    """For asyncio."""
    tx.open(_NAME)
    try:
        with inside_block(tx):
            yield tx
        tx.check_end()
    except Exception as error:
        await run_async(_undo(tx, ends, error), executor)
        raise
    except BaseException:
        executor.abandon()
        raise
    await run_async(_commit(tx, ends), executor)


async def _commit(tx: OwnedTransaction[Any], ends: Ends) -> None:
    try:
        await close_sessions(tx, True)
        tx.check_executed("the block of a transaction ended")
    except Exception as error:
        await _undo(tx, ends, error)
        raise
    await commit(tx, ends.commit)


async def _undo(tx: OwnedTransaction[Any], ends: Ends, error: Exception) -> None:
    await undo(tx, functools.partial(ends.rollback, error))
