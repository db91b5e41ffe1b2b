"""A transaction as a `with` block: committed at its end, rolled back when it fails, dropped when it is interrupted."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Protocol

from onefold._kernel.effects import Flow, Statement
from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold._kernel.runners import run, run_async
from onefold._kernel.transaction import Transaction


class Ends(Protocol):
    """How a transaction that has begun ends."""

    def commit(self, also: tuple[Statement, ...]) -> Flow[None]: ...
    def rollback(self) -> Flow[None]: ...


@contextmanager
def block(tx: Transaction[Any], ends: Ends, lane: ThreadLane[Any]) -> Iterator[Transaction[Any]]:
    """For threads."""
    tx.open()
    try:
        yield tx
    except Exception:
        tx.end()
        run(ends.rollback(), lane)
        raise
    except BaseException:
        tx.end()
        lane.abandon()
        raise
    tx.end()
    run(ends.commit(tx.flush()), lane)
    tx.committed()


@asynccontextmanager
async def async_block(tx: Transaction[Any], ends: Ends, lane: TaskLane[Any]) -> AsyncIterator[Transaction[Any]]:
    """For asyncio."""
    tx.open()
    try:
        yield tx
    except Exception:
        tx.end()
        await run_async(ends.rollback(), lane)
        raise
    except BaseException:
        tx.end()
        lane.abandon()
        raise
    tx.end()
    await run_async(ends.commit(tx.flush()), lane)
    tx.committed()
