"""Pools of the application's own classes: they do more than give a connection back, and may fail when it is back.

What they raise then is logged, and the connection is let be: another request may have it. A release is run whole in one
task and one context, which such a class may count on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool, AsyncNullConnectionPool, ConnectionPool
from sqlalchemy import AsyncAdaptedQueuePool, QueuePool, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import greenlet_spawn

from onefold import AsyncOnefold, Onefold, single_principal
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase
from tests.db.drivers import public_only
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

LEFT = "may have it and have handed it on"
WARNING = "giving a connection back to its pool failed"


@pytest.fixture(autouse=True, params=["as tested", "by the public API"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    with contextlib.nullcontext() if request.param == "as tested" else public_only():
        yield request.param


class Late:
    """A pool that hands the connection on as soon as it has it, and raises then: a metric could not be written."""

    late = before = False
    taken: Any = None

    def fails(self, when: str) -> bool:
        if fails := bool(getattr(self, when)):
            setattr(self, when, False)
        return fails


class LatePsycopg(Late, ConnectionPool[Any]):
    def putconn(self, conn: Any) -> None:
        super().putconn(conn)
        if self.fails("late"):
            self.taken = self.getconn(PATIENCE_S)
            raise OSError("on purpose")


class LateAsyncPsycopg(Late, AsyncConnectionPool[Any]):
    async def putconn(self, conn: Any) -> None:
        await super().putconn(conn)
        if self.fails("late"):
            self.taken = await self.getconn(PATIENCE_S)
            raise OSError("on purpose")


class LateAsyncpg(Late, asyncpg.Pool):
    async def release(self, connection: Any, *, timeout: float | None = None) -> None:
        if self.fails("before"):
            raise ValueError("on purpose")
        await super().release(connection, timeout=timeout)
        if self.fails("late"):
            self.taken = await self.acquire(timeout=PATIENCE_S)
            raise ValueError("on purpose")


def test_a_psycopg_pool_that_fails_when_it_has_the_connection_keeps_it(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    with LatePsycopg(postgres_dsn, min_size=1, max_size=1, open=True) as pool:
        once = Onefold(pool, principal=single_principal)
        once.migrate()
        pool.late = True
        with once.transaction() as tx:
            tx.connection.execute("CREATE TABLE thing ()")
        assert pool.taken.execute("SELECT count(*) FROM thing").fetchone() == (0,)
        pool.putconn(pool.taken)
        with once.transaction() as tx:
            tx.connection.execute("SELECT 1")
    assert (caplog.text.count(WARNING), caplog.text.count(LEFT)) == (1, 1)


async def test_an_async_psycopg_pool_that_fails_when_it_has_the_connection_keeps_it(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with LateAsyncPsycopg(postgres_dsn, min_size=1, max_size=1, open=False) as pool:
        once = AsyncOnefold(pool, principal=single_principal)
        await once.migrate()
        pool.late = True
        async with once.transaction() as tx:
            await tx.connection.execute("CREATE TABLE thing ()")
        assert await (await pool.taken.execute("SELECT count(*) FROM thing")).fetchone() == (0,)
        await pool.putconn(pool.taken)
        async with once.transaction() as tx:
            await tx.connection.execute("SELECT 1")
    assert (caplog.text.count(WARNING), caplog.text.count(LEFT)) == (1, 1)


async def test_an_acquisition_from_a_psycopg_pool_that_fails_when_it_has_a_lost_connection_goes_on(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with LateAsyncPsycopg(postgres_dsn, min_size=1, max_size=1, open=False) as pool:
        once = AsyncOnefold(pool, principal=single_principal)
        await once.migrate()
        async with pool.connection() as own:
            await own.execute("SELECT 1")
        own.pgconn.finish()
        pool.late = True
        waiting = asyncio.create_task(once.migrate())
        await until(lambda: pool.taken is not None)
        await pool.putconn(pool.taken)
        assert await waiting == []
    assert caplog.text.count(WARNING) == 1


def _pool(dsn: str, kind: type[Any]) -> Any:
    async def reset(_: Any) -> None:
        """With it a connection does not pass from request to request without the pool."""

    kinds = {"connection_class": asyncpg.Connection, "record_class": asyncpg.Record, "connect": None, "reset": reset}
    hooks = dict.fromkeys(("setup", "init", "loop"))
    limits = {"max_queries": 1000, "max_inactive_connection_lifetime": 300.0}
    return kind(dsn, min_size=1, max_size=1, **kinds, **hooks, **limits)


async def test_an_asyncpg_pool_that_fails_when_it_has_the_connection_keeps_it(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with _pool(postgres_dsn, LateAsyncpg) as pool:
        once = AsyncOnefold(AsyncpgDatabase(pool), principal=single_principal)
        await once.migrate()
        pool.late = True
        async with once.transaction() as tx:
            await tx.connection.execute("CREATE TABLE thing ()")
        assert await pool.taken.fetchval("SELECT count(*) FROM thing") == 0
        await pool.release(pool.taken)
        async with once.transaction() as tx:
            await tx.connection.execute("SELECT 1")
    assert caplog.text.count(WARNING) == 1


async def test_an_asyncpg_pool_that_fails_before_it_has_the_connection_loses_no_place(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with _pool(postgres_dsn, LateAsyncpg) as pool:
        once = AsyncOnefold(AsyncpgDatabase(pool, acquire_timeout_s=PATIENCE_S), principal=single_principal)
        await once.migrate()
        for number in range(2):
            pool.before = number == 0
            async with once.transaction() as tx:
                await tx.connection.execute("SELECT 1")
    assert caplog.text.count(WARNING) == 1


def test_a_pool_class_for_sqlalchemy_that_fails_when_it_has_the_connection_keeps_it(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    class LateQueue(Late, QueuePool):
        def _do_return_conn(self, record: Any) -> None:
            super()._do_return_conn(record)
            if self.fails("late"):
                self.taken = self.connect()
                raise OSError("on purpose")

    url = postgres_dsn.replace("postgresql://", "postgresql+psycopg://")
    engine = create_engine(url, poolclass=LateQueue, pool_size=1, max_overflow=0)
    once = Onefold(engine, principal=single_principal)
    once.migrate()
    pool: Any = engine.pool
    pool.late = True
    with once.transaction() as tx:
        tx.connection.execute(text("CREATE TABLE thing ()"))
    cursor = pool.taken.cursor()
    cursor.execute("SELECT count(*) FROM thing")
    assert cursor.fetchall() == [(0,)]
    pool.taken.close()
    with once.transaction() as tx:
        tx.connection.execute(text("SELECT 1"))
    engine.dispose()
    assert (caplog.text.count(WARNING), caplog.text.count(LEFT)) == (1, 1)


async def test_an_async_pool_class_for_sqlalchemy_that_fails_when_it_has_the_connection_keeps_it(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    class LateQueue(Late, AsyncAdaptedQueuePool):
        def _do_return_conn(self, record: Any) -> None:
            super()._do_return_conn(record)
            if self.fails("late"):
                self.taken = self.connect()
                raise OSError("on purpose")

    url = postgres_dsn.replace("postgresql://", "postgresql+asyncpg://")
    engine = create_async_engine(url, poolclass=LateQueue, pool_size=1, max_overflow=0)
    once = AsyncOnefold(engine, principal=single_principal)
    await once.migrate()
    pool: Any = engine.sync_engine.pool
    pool.late = True
    async with once.transaction() as tx:
        await tx.connection.execute(text("CREATE TABLE thing ()"))
    assert await pool.taken.driver_connection.fetchval("SELECT count(*) FROM thing") == 0
    await greenlet_spawn(pool.taken.close)
    async with once.transaction() as tx:
        await tx.connection.execute(text("SELECT 1"))
    await engine.dispose()
    assert (caplog.text.count(WARNING), caplog.text.count(LEFT)) == (1, 1)


# --- one task, one context --------------------------------------------------------------------------------------

_doing: ContextVar[str | None] = ContextVar("doing", default=None)


class Measured(AsyncConnectionPool[Any]):
    """It notes what it does in a context variable, under a limit of time."""

    measured = 0

    async def putconn(self, conn: Any) -> None:
        task, token = asyncio.current_task(), _doing.set("giving back")
        try:
            async with asyncio.timeout(PATIENCE_S):
                await asyncio.sleep(0)
                await super().putconn(conn)
                await asyncio.sleep(0)
        finally:
            _doing.reset(token)
        assert asyncio.current_task() is task
        self.measured += 1


async def test_a_psycopg_pool_takes_a_connection_back_in_one_task_and_one_context(
    postgres_dsn: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with Measured(postgres_dsn, min_size=1, max_size=1, open=False) as pool:
        database = AsyncPsycopgDatabase(pool)
        connection = await database.acquire()
        pid = connection.handle.info.backend_pid
        await connection.release()
        connection = await database.acquire()
        assert connection.handle.info.backend_pid == pid
        await connection.discard()
        connection = await database.acquire()
        assert pool.measured == 2
        await connection.release()
    assert caplog.text.count("onefold") == 0


@pytest.mark.parametrize("kind", [AsyncConnectionPool, AsyncNullConnectionPool])
async def test_psycopg_s_own_pools_cost_no_task(kind: type[Any], postgres_dsn: str) -> None:
    class Patched(psycopg.AsyncConnection[Any]):
        """A class of the application's: `close()` may be its own."""

    loop, made = asyncio.get_running_loop(), []

    def note(loop: asyncio.AbstractEventLoop, work: Any, **options: Any) -> asyncio.Task[Any]:
        made.append(work)
        return asyncio.Task(work, loop=loop, **options)

    for connection_class, tasks in ((psycopg.AsyncConnection, 0), (Patched, 1)):
        async with kind(postgres_dsn, connection_class=connection_class, min_size=0, max_size=1, open=False) as pool:
            connection = await AsyncPsycopgDatabase(pool).acquire()
            loop.set_task_factory(note)
            made.clear()
            await connection.release()
            loop.set_task_factory(None)
            assert len(made) == tasks
