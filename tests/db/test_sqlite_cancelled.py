"""A statement on SQLite whose task was cancelled (a time-out, a client that went away) is interrupted. It would go on
in the driver's thread otherwise, with the write lock of the whole database."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel.effects import Boundary, Nested, Statement
from onefold._kernel.serial_thread import SerialThread
from onefold.db.sqlite import async_sqlite
from onefold.db.sqlite._connection import SqliteConnection
from onefold.errors import TransactionMisused
from tests.db.drivers import SQLITE_ASYNC
from tests.db.gates import Gate
from tests.support.patience import PATIENCE_S

ENDLESS = "WITH RECURSIVE n (i) AS (SELECT begun() UNION ALL SELECT i + 1 FROM n) "
STATEMENTS = {"read": ENDLESS + "SELECT count(*) FROM n", "write": ENDLESS + "INSERT INTO thing SELECT count(*) FROM n"}

INSERT = Statement("INSERT INTO thing VALUES (?1)", (7,))


class Stage:
    """A file with a table, and the one statement without an end of a request."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._begun = threading.Event()
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE thing (id)")

    def begun(self) -> int:
        self._begun.set()
        return 1

    async def cancel(self, statement: Any) -> None:
        """Once it is executed."""
        task = asyncio.ensure_future(statement)
        assert await asyncio.to_thread(self._begun.wait, PATIENCE_S)
        task.cancel()
        await asyncio.wait({task}, timeout=PATIENCE_S)
        assert task.cancelled()

    def write(self) -> list[Any]:
        """What another process finds, which can write."""
        with closing(sqlite3.connect(self.path, timeout=PATIENCE_S, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            return connection.execute("SELECT id FROM thing").fetchall()


@pytest.fixture
def stage(sqlite_path: Path) -> Stage:
    return Stage(sqlite_path)


@asynccontextmanager
async def handed_out(stage: Stage, busy_timeout_s: float = PATIENCE_S) -> AsyncIterator[tuple[Any, Any]]:
    """A connection of our own driver, and what its handler has."""
    database = async_sqlite(stage.path, busy_timeout_s=busy_timeout_s)
    async with asyncio.timeout(PATIENCE_S):
        connection = await database.acquire()
        handle = connection.handle
        await handle.run(lambda own: own.create_function("begun", 0, stage.begun))
        yield connection, handle
        await database.close()


@pytest.mark.parametrize("driver", SQLITE_ASYNC)
@pytest.mark.parametrize("kind", STATEMENTS)
async def test_the_write_lock_is_free_when_the_request_of_a_cancelled_statement_is_gone(
    driver: str, kind: str, stage: Stage
) -> None:
    async with asyncio.timeout(PATIENCE_S), SQLITE_ASYNC[driver](str(stage.path), PATIENCE_S) as subject:
        database: Any = subject.database
        connection = await database.acquire()
        handle = connection.handle
        await subject.execute(handle, "INSERT INTO thing VALUES (1)")
        if driver == "sqlite3-async":
            await handle.run(lambda own: own.create_function("begun", 0, stage.begun))
        else:
            await (await handle.get_raw_connection()).driver_connection.create_function("begun", 0, stage.begun)
        await stage.cancel(subject.execute(handle, STATEMENTS[kind]))
        await connection.discard()
        assert await asyncio.to_thread(stage.write) == []


async def test_it_is_free_also_where_a_task_was_left_behind_that_nobody_cancels(stage: Stage) -> None:
    async with handed_out(stage) as (connection, handle):
        left = [asyncio.create_task(handle.execute(sql)) for sql in STATEMENTS.values()]  # the second is in line
        assert await asyncio.to_thread(stage._begun.wait, PATIENCE_S)
        await connection.discard()
        assert await asyncio.to_thread(stage.write) == []
        interrupted, refused = await asyncio.gather(*left, return_exceptions=True)
        assert isinstance(interrupted, sqlite3.OperationalError)
        assert isinstance(refused, TransactionMisused)


@pytest.mark.parametrize("end", [Boundary.COMMIT, Boundary.ROLLBACK])
async def test_the_end_of_a_transaction_waits_for_such_a_task_only_so_long(end: Boundary, stage: Stage) -> None:
    async with handed_out(stage, busy_timeout_s=0.1) as (connection, handle):
        await handle.execute("INSERT INTO thing VALUES (1)")
        left = asyncio.create_task(handle.execute(STATEMENTS["read"]))
        assert await asyncio.to_thread(stage._begun.wait, PATIENCE_S)
        in_line = asyncio.create_task(handle.execute("INSERT INTO thing VALUES (2)"))
        await asyncio.sleep(0)
        for step in (end, Boundary.ROLLBACK):
            with pytest.raises(TransactionMisused, match="still uses"):
                await connection.batch((step,))
        await connection.discard()
        assert await asyncio.to_thread(stage.write) == []
        await asyncio.wait({left, in_line})
        assert isinstance(left.exception(), sqlite3.OperationalError)
        assert isinstance(in_line.exception(), TransactionMisused)


@pytest.mark.parametrize("kind", STATEMENTS)
async def test_a_refusal_is_stored_after_it(kind: str, stage: Stage) -> None:
    async with handed_out(stage) as (connection, handle):
        await handle.execute("INSERT INTO thing VALUES (1)")
        await stage.cancel(handle.execute(STATEMENTS[kind]))
        await connection.batch((Boundary.ROLLBACK, Boundary.BEGIN, INSERT, Boundary.COMMIT))
        await connection.release()
        assert stage.write() == [(7,)]


@pytest.mark.parametrize("kind", STATEMENTS)
async def test_a_success_is_not(kind: str, stage: Stage) -> None:
    async with handed_out(stage) as (connection, handle):
        await stage.cancel(handle.execute(STATEMENTS[kind]))
        with pytest.raises(TransactionMisused, match="was interrupted"):
            await connection.batch((INSERT, Boundary.COMMIT))
        await connection.discard()
        assert stage.write() == []


async def test_in_a_savepoint_it_is_let_finish_so_that_the_rest_is_whole(stage: Stage) -> None:
    async with handed_out(stage) as (connection, handle):
        gate = Gate()
        await handle.run(lambda own: own.create_function("gate", 0, gate))
        await handle.execute("INSERT INTO thing VALUES (1)")
        await connection.batch((Nested(Boundary.SAVEPOINT, 1),))
        task = asyncio.ensure_future(handle.execute("INSERT INTO thing VALUES (gate())"))
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
        task.cancel()
        await asyncio.wait({task})
        gate.opened.set()
        await connection.batch((Nested(Boundary.ROLLBACK_TO_SAVEPOINT, 1), Nested(Boundary.RELEASE_SAVEPOINT, 1)))
        await connection.batch((INSERT, Boundary.COMMIT))
        await connection.release()
        assert stage.write() == [(1,), (7,)]


async def test_but_not_for_longer_than_its_rollback_waits(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onefold.db.sqlite.LONGEST_S", 0.1)
    async with handed_out(stage) as (connection, handle):
        await connection.batch((Nested(Boundary.SAVEPOINT, 1),))
        await stage.cancel(handle.execute(STATEMENTS["write"]))
        with pytest.raises(TransactionMisused, match="was interrupted"):
            await connection.batch((INSERT, Boundary.COMMIT))
        await connection.discard()
        assert stage.write() == []


async def test_a_statement_that_is_cancelled_before_its_turn_is_not_executed(stage: Stage) -> None:
    async with handed_out(stage) as (connection, handle):
        gate = Gate()
        await handle.run(lambda own: own.create_function("gate", 0, gate))
        first = asyncio.ensure_future(handle.execute("INSERT INTO thing VALUES (gate())"))
        second = asyncio.ensure_future(handle.execute("INSERT INTO thing VALUES (2)"))
        assert await asyncio.to_thread(gate.reached.wait, PATIENCE_S)
        second.cancel()
        await asyncio.wait({second})
        gate.opened.set()
        await first
        await connection.batch((INSERT, Boundary.COMMIT))
        await connection.release()
        assert stage.write() == [(1,), (7,)]


async def test_a_connection_that_is_there_when_its_task_is_cancelled_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    discarded = threading.Event()
    discard, run = SqliteConnection.discard, SerialThread.run

    def discard_and_tell(self: SqliteConnection) -> None:
        discard(self)
        discarded.set()

    monkeypatch.setattr(SqliteConnection, "discard", discard_and_tell)

    def run_and_cancel(self: SerialThread, *arguments: Any, **options: Any) -> asyncio.Future[Any]:
        """The task is cancelled when it has its answer, and has not seen it yet: its own callback comes after ours."""
        answer = run(self, *arguments, **options)
        task = asyncio.current_task()
        assert task is not None
        answer.add_done_callback(lambda _: task.cancel())
        return answer

    monkeypatch.setattr(SerialThread, "run", run_and_cancel)
    database = async_sqlite(tmp_path / "shop.db")
    with pytest.raises(asyncio.CancelledError):
        await asyncio.create_task(database.acquire())
    assert await asyncio.to_thread(discarded.wait, PATIENCE_S)
    assert str(tmp_path / "shop.db") not in _open_files()
    monkeypatch.undo()
    await database.close()


def _open_files() -> set[str]:
    return {os.path.realpath(each) for each in Path("/proc/self/fd").iterdir()}
