"""A synchronous database on asyncio: the loop never waits for a thread, and nothing is lost between the two."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.guards import counted_hops
from onefold._kernel.effects import BatchItem, Boundary, Row, Statement
from onefold.db._threaded import IDLE_MAX, OUT_MAX, ThreadedDatabase
from onefold.db.sqlite import async_sqlite
from onefold.errors import StoreUnavailable
from tests.support.patience import PATIENCE_S


class SlowConnection:
    def __init__(self) -> None:
        self.discarded = threading.Event()

    @property
    def handle(self) -> str:
        return "handle"

    def batch(self, items: Sequence[BatchItem]) -> int:
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


class CountingDatabase:
    """Counts how many of its connections are out at once."""

    dialect = "sqlite"

    def __init__(self) -> None:
        self.out = self.most = 0

    def acquire(self) -> CountingConnection:
        self.out += 1
        self.most = max(self.most, self.out)
        return CountingConnection(self)

    def close(self) -> None: ...


class CountingConnection(SlowConnection):
    def __init__(self, database: CountingDatabase) -> None:
        super().__init__()
        self.database = database
        self.busy = threading.Event()

    def batch(self, items: Sequence[BatchItem]) -> int:
        self.busy.wait(60)
        return 0

    def fetch(self, statement: Statement) -> list[Row]:
        return []

    def release(self) -> None:
        self.database.out -= 1


async def test_many_at_once_take_turns_and_leave_few_threads_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.db._threaded._ROOM_S", 60)  # a slow machine lets nobody in early
    counting = CountingDatabase()
    database: ThreadedDatabase[str, str] = ThreadedDatabase(counting, lambda connection, _: connection.handle)
    before = threading.active_count()

    async def use() -> None:
        connection = await database.acquire()
        await connection.fetch(Statement("SELECT 1"))
        await connection.release()

    await asyncio.gather(*(use() for _ in range(300)))
    assert counting.most <= OUT_MAX
    await asyncio.to_thread(_until, lambda: threading.active_count() <= before + IDLE_MAX + 1)
    await database.close()


async def test_one_too_many_is_let_in_rather_than_kept_out_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.db._threaded._ROOM_S", 0.01)
    counting = CountingDatabase()
    database: ThreadedDatabase[str, str] = ThreadedDatabase(counting, lambda connection, _: connection.handle)
    held = [await database.acquire() for _ in range(OUT_MAX + 1)]
    assert counting.out == OUT_MAX + 1
    for connection in held:
        await connection.release()
    await database.close()


async def test_nobody_is_given_a_thread_that_is_still_busy() -> None:
    counting = CountingDatabase()
    database: ThreadedDatabase[str, str] = ThreadedDatabase(counting, lambda connection, _: connection.handle)
    connection = await database.acquire()
    at_it = asyncio.ensure_future(connection.batch(()))
    await asyncio.sleep(0)
    at_it.cancel()
    leaving = asyncio.ensure_future(connection.discard())
    await asyncio.sleep(0)
    other = await database.acquire()
    async with asyncio.timeout(PATIENCE_S):
        assert await other.fetch(Statement("SELECT 1")) == []
    connection._connection.busy.set()  # type: ignore[attr-defined]
    await leaving
    await other.release()
    await database.close()


def _until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.001)


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


# --- without a hop --------------------------------------------------------------------------------------------


@pytest.fixture
def hops() -> Iterator[list[None]]:
    with counted_hops() as handed:
        yield handed


ONE = Statement("SELECT 1")


async def test_a_connection_at_rest_comes_and_goes_without_a_hop(sqlite_path: Path, hops: list[None]) -> None:
    database = async_sqlite(sqlite_path)
    for _ in range(3):
        connection = await database.acquire()
        assert await connection.fetch(ONE) == [(1,)]
        await connection.release()
    assert len(hops) == 1 + 3  # it was opened once
    await database.close()


async def test_a_connection_in_a_transaction_is_rolled_back_on_its_thread(sqlite_path: Path, hops: list[None]) -> None:
    database = async_sqlite(sqlite_path)
    connection = await database.acquire()
    await connection.handle.execute("CREATE TABLE thing (id INTEGER)")
    hops.clear()
    await connection.release()
    assert len(hops) == 1
    connection = await database.acquire()
    assert await connection.fetch(Statement("SELECT count(*) FROM sqlite_master WHERE name = 'thing'")) == [(0,)]
    await connection.release()
    await database.close()


async def test_a_connection_that_somebody_is_still_at_is_not_given_away(sqlite_path: Path) -> None:
    database = async_sqlite(sqlite_path)
    connection = await database.acquire()
    begun, let_go = threading.Event(), threading.Event()

    def dawdle(_: object) -> None:
        begun.set()
        let_go.wait(60)

    stray = asyncio.ensure_future(connection.handle.run(dawdle))
    assert await asyncio.to_thread(begun.wait, 60)
    await connection.release()
    following = asyncio.ensure_future(database.acquire())
    await asyncio.sleep(0.05)
    assert not following.done()
    let_go.set()
    await stray
    other = await following
    assert await other.fetch(ONE) == [(1,)]
    await other.release()
    await database.close()


async def test_a_database_that_is_let_go_without_being_closed_leaves_no_thread_behind() -> None:
    database = SlowDatabase()
    database.let_go.set()
    before = set(threading.enumerate())
    for _ in range(3):
        connection = await threaded(database).acquire()
        await connection.release()
        del connection
    gc.collect()
    until = time.monotonic() + PATIENCE_S
    while left := set(threading.enumerate()) - before:
        assert time.monotonic() < until, left
        await asyncio.sleep(0.01)
