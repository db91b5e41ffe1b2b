"""A synchronous database on asyncio: the loop never waits for a thread, and nothing is lost between the two."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Sequence
from pathlib import Path

import pytest

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold.db.sqlite import async_sqlite
from onefold.db.threads import ThreadedDatabase
from onefold.errors import StoreUnavailable


class SlowConnection:
    def __init__(self) -> None:
        self.discarded = threading.Event()

    @property
    def handle(self) -> str:
        return "handle"

    def batch(self, steps: Sequence[Step]) -> int:
        return threading.get_ident()

    def fetch(self, statement: Statement) -> list[Row]:
        raise StoreUnavailable("no")

    def release(self) -> None: ...

    def discard(self) -> None:
        self.discarded.set()


class SlowDatabase:
    """Its connections take until they are let go."""

    dialect = "sqlite"

    def __init__(self) -> None:
        self.asked, self.let_go = threading.Event(), threading.Event()
        self.connection = SlowConnection()

    def acquire(self) -> SlowConnection:
        self.asked.set()
        self.let_go.wait(60)
        return self.connection

    def close(self) -> None: ...


def threaded(database: SlowDatabase) -> ThreadedDatabase[str, str]:
    return ThreadedDatabase(database, lambda connection, _: connection.handle)


async def test_a_connection_that_comes_after_its_wait_was_cancelled_is_discarded() -> None:
    slow = SlowDatabase()
    waiting = asyncio.ensure_future(threaded(slow).acquire())
    await asyncio.to_thread(slow.asked.wait, 60)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    slow.let_go.set()
    assert await asyncio.to_thread(slow.connection.discarded.wait, 60)


async def test_each_connection_has_a_thread_of_its_own_that_is_not_the_loop_s() -> None:
    slow = SlowDatabase()
    slow.let_go.set()
    database = threaded(slow)
    one, two = await database.acquire(), await database.acquire()
    threads = [await connection.batch(()) for connection in (one, one, two, two)]
    assert threads[0] == threads[1] != threads[2] == threads[3]
    assert threading.get_ident() not in threads
    for connection in (one, two):
        await connection.release()
    await database.close()


async def test_errors_arrive_as_they_are() -> None:
    slow = SlowDatabase()
    slow.let_go.set()
    database = threaded(slow)
    connection = await database.acquire()
    with pytest.raises(StoreUnavailable, match="no"):
        await connection.fetch(Statement("SELECT 1"))
    await connection.release()
    await database.close()


async def test_an_error_keeps_no_connection_alive() -> None:
    """In a circle of garbage it would hold its lock until the collector comes by."""
    slow = SlowDatabase()
    slow.let_go.set()
    database = threaded(slow)
    connection = await database.acquire()
    gc.disable()
    try:
        with pytest.raises(StoreUnavailable):
            await connection.fetch(Statement("SELECT 1"))
        await connection.release()
        await database.close()
        inner = weakref.ref(slow.connection)
        del slow, database, connection
        assert inner() is None
    finally:
        gc.enable()


async def test_those_who_wait_for_a_lock_do_not_keep_its_holder_from_letting_go(sqlite_path: Path) -> None:
    """With a shared pool of threads, enough waiters would leave none for the one they wait for."""
    database = async_sqlite(sqlite_path, busy_timeout_s=60)
    holder = await database.acquire()
    await holder.batch((Boundary.BEGIN, Statement("CREATE TABLE thing (id INTEGER PRIMARY KEY)")))

    async def write(id_: int) -> None:
        connection = await database.acquire()
        insert = Statement("INSERT INTO thing (id) VALUES (?1)", (id_,))
        await connection.batch((Boundary.BEGIN, insert, Boundary.COMMIT))
        await connection.release()

    writers = [asyncio.ensure_future(write(id_)) for id_ in range(40)]
    await asyncio.sleep(0)
    await holder.batch((Boundary.COMMIT,))
    await asyncio.gather(*writers)
    assert await holder.fetch(Statement("SELECT count(*) FROM thing")) == [(40,)]
    await holder.release()
    await database.close()
