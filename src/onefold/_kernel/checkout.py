"""Having a connection for the length of a flow, and never giving one back in an unknown state."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from onefold._kernel.effects import Acquire, Batch, BatchItem, Boundary, Discard, Fetch, Flow, Release, Row, Statement
from onefold.errors import ConnectionLost, OnefoldError

T = TypeVar("T")

_log = logging.getLogger("onefold.database")


async def checkout(work: Callable[[], Flow[T]]) -> T:
    """Acquire, work, and keep the connection. If the work fails, its connection is thrown away."""
    await Acquire()
    return await discard_on_error(work)


async def discard_on_error(work: Callable[[], Flow[T]]) -> T:
    """Work on the connection in hand. If the work fails, the connection is thrown away."""
    try:
        return await work()
    except Exception:
        await Discard()
        raise


async def with_connection(work: Callable[[], Flow[T]]) -> T:
    """Acquire, work, give the connection back."""
    result = await checkout(work)
    await Release()
    return result


async def run_batch(*items: BatchItem) -> int:
    """A batch, as a flow."""
    return await Batch(items)


async def fetch_rows(statement: Statement) -> list[Row]:
    """The rows of one statement, as a flow."""
    return await Fetch(statement)


async def rollback_and_release(*after: BatchItem) -> ConnectionLost | None:
    """Roll back, do what must follow, give the connection back. What is returned is how it was found to be lost.

    Whatever refuses that (also a driver that is still busy with a statement the handler left behind) costs the
    connection, and the server rolls back by itself.
    """
    try:
        await Batch((Boundary.ROLLBACK, *after))
    except OnefoldError as error:
        await Discard()
        return error if isinstance(error, ConnectionLost) else None
    await Release()
    return None


def log_release_error(error: Exception, fate: str = "its driver does not say what became of it") -> None:
    """Log what giving a connection back to its pool raised (a hook of the application's, say), and the fate of the
    connection. No request fails for that, because what was to be committed is committed. A connection that was merely
    lost is not logged."""
    if not isinstance(error, ConnectionLost):
        _log.warning("giving a connection back to its pool failed: %s", fate, exc_info=error)
