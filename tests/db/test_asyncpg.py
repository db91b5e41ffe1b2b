"""asyncpg by its private names and by its public API: what a connection of the application's pool goes through."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import asyncpg
import pytest

from onefold._kernel.effects import Boundary, Statement
from onefold._kernel.executors import TaskExecutor
from onefold.db._asyncpg_fast import FastConnection
from onefold.db._postgres_batches import ITEMS_MAX
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import ConfigurationError, ConnectionLost, StatementRefused, StoreUnavailable
from tests.db.asyncpg_ways import database, fast_only, way
from tests.support.patience import PATIENCE_S

__all__ = ["database", "way"]

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
TABLE = Statement("CREATE TABLE thing (id bigint PRIMARY KEY, at timestamptz DEFAULT statement_timestamp())")
PREPARED = Statement("SELECT name FROM pg_prepared_statements WHERE name LIKE 'onefold%' AND statement LIKE 'INSERT%'")


def insert(id_: int) -> Statement:
    return Statement("INSERT INTO thing (id) VALUES ($1::bigint)", (id_,))


@fast_only
async def test_a_statement_is_prepared_once_and_the_rest_is_not_prepared(database: AsyncpgDatabase) -> None:
    for id_ in range(3):
        connection = await database.acquire()
        if id_ == 0:
            await connection.batch((BEGIN, TABLE, COMMIT))
        await connection.batch((BEGIN, insert(id_), insert(100 + id_), COMMIT))
        assert len(await connection.fetch(PREPARED)) == 1
        await connection.release()


@fast_only
async def test_a_batch_is_one_round_trip(database: AsyncpgDatabase) -> None:
    connection = await database.acquire()
    assert isinstance(connection, FastConnection)
    await connection.batch((TABLE,))
    for start in (10, 20):
        sent = connection._connection._protocol.queries_count
        await connection.batch((BEGIN, insert(start), Boundary.SAVEPOINT, insert(start + 1), insert(start + 2), COMMIT))
    assert connection._connection._protocol.queries_count == sent + 1
    assert await connection.fetch(Statement("SELECT count(*) FROM thing")) == [(6,)]
    await connection.release()


@fast_only
async def test_statements_that_were_discarded_fail_once_and_are_not_prepared_again(database: AsyncpgDatabase) -> None:
    """A handler's DISCARD ALL, or a pooler that changes sessions under us."""
    connection = await database.acquire()
    await connection.batch((TABLE,))
    await connection.batch((BEGIN, insert(1), COMMIT))
    await connection.handle.execute("DEALLOCATE ALL")
    with pytest.raises(StoreUnavailable, match="26000"):
        await connection.batch((BEGIN, insert(2), COMMIT))
    await connection.batch((ROLLBACK, BEGIN, insert(3), COMMIT))
    await connection.release()
    connection = await database.acquire()
    await connection.batch((BEGIN, insert(4), COMMIT))
    assert await connection.fetch(PREPARED) == []
    assert await connection.fetch(Statement("SELECT id FROM thing ORDER BY id")) == [(1,), (3,), (4,)]
    await connection.release()


@fast_only
async def test_what_one_session_has_lost_is_asked_of_no_other_that_knew_the_batch(database: AsyncpgDatabase) -> None:
    first, second = await database.acquire(), await database.acquire()
    await first.batch((TABLE,))
    for id_ in (10, 20):  # the second time by what is kept of the first
        await first.batch((BEGIN, insert(id_), COMMIT))
        await second.batch((BEGIN, insert(id_ + 1), COMMIT))
    for connection in (first, second):
        await connection.handle.execute("DEALLOCATE ALL")
        await connection.batch((ROLLBACK,))  # nothing of the handler's is left
    with pytest.raises(StoreUnavailable, match="26000"):
        await first.batch((BEGIN, insert(1), COMMIT))
    await first.discard()
    await second.batch((BEGIN, insert(2), COMMIT))
    assert await second.fetch(Statement("SELECT id FROM thing ORDER BY id LIMIT 1")) == [(2,)]
    await second.release()


@fast_only
async def test_what_is_kept_of_batches_has_a_bound(database: AsyncpgDatabase) -> None:
    connection = await database.acquire()
    assert isinstance(connection, FastConnection)
    await connection.batch((TABLE,))
    for count in range(1, 40):
        await connection.batch((BEGIN, *(insert(100 * count + n) for n in range(count)), COMMIT))
    assert 1 <= len(connection._session.known) <= ITEMS_MAX
    await connection.release()


async def test_a_pool_without_a_statement_cache_gets_no_prepared_statements(postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=0, statement_cache_size=0) as pool:
        connection = await AsyncpgDatabase(pool).acquire()
        await connection.batch((BEGIN, TABLE, insert(1), COMMIT))
        assert await connection.fetch(PREPARED) == []
        await connection.release()


async def test_a_batch_that_failed_before_its_statements_were_known_does_not_poison_the_connection(
    database: AsyncpgDatabase,
) -> None:
    connection = await database.acquire()
    await connection.batch((TABLE,))
    for _ in range(2):
        with pytest.raises(StatementRefused):
            await connection.batch((BEGIN, insert(1), insert(1), COMMIT))
        await connection.batch((ROLLBACK,))
    await connection.batch((BEGIN, insert(1), COMMIT))
    await connection.release()


async def test_a_pool_that_many_open_at_once_is_opened_once(postgres_dsn: str) -> None:
    pool = asyncpg.create_pool(postgres_dsn, min_size=1, max_size=2)
    database = AsyncpgDatabase(pool)

    async def look() -> list[Any]:
        connection = await database.acquire()
        rows = await connection.fetch(Statement("SELECT 1"))
        await connection.release()
        return rows

    assert await asyncio.gather(*(look() for _ in range(8))) == [[(1,)]] * 8
    await database.close()
    assert not pool.is_closing()  # the application's
    await pool.close()


async def test_asyncpg_is_told_when_the_transaction_is_over(database: AsyncpgDatabase) -> None:
    """Else it would warn of an open transaction, and roll back once more, whenever a connection goes back."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    for steps in ((COMMIT,), (ROLLBACK,), (TABLE, COMMIT), ()):
        connection = await database.acquire()
        await connection.batch((BEGIN,))
        async with connection.handle.transaction():
            await connection.handle.execute("SELECT 1")
        if steps:
            await connection.batch(steps)
        await connection.release()  # the last time still in its transaction
    assert complaints == []


async def test_the_handle_of_a_lost_connection_fails_as_asyncpg_fails(database: AsyncpgDatabase) -> None:
    connection, operator = await database.acquire(), await database.acquire()
    await connection.batch((BEGIN,))
    closed = asyncio.Event()
    connection.handle.add_termination_listener(lambda _: closed.set())
    pid = connection.handle.get_server_pid()
    await operator.fetch(Statement("SELECT pg_terminate_backend($1::int, 10000)", (pid,)))
    await operator.release()
    await closed.wait()
    for _ in range(2):
        with pytest.raises((asyncpg.InterfaceError, asyncpg.PostgresConnectionError)):
            await connection.handle.execute("SELECT 1")
        with pytest.raises(ConnectionLost):
            await connection.batch((COMMIT,))
        with pytest.raises(ConnectionLost):
            await connection.fetch(PREPARED)
        await connection.discard()


async def test_closing_waits_for_those_at_work_but_not_for_ever(postgres_dsn: str) -> None:
    database = AsyncpgDatabase(postgres_dsn, close_timeout_s=0.05)
    connection = await database.acquire()
    await database.close()
    with pytest.raises(ConnectionLost):
        await connection.fetch(PREPARED)
    await connection.discard()


async def test_a_handler_that_leaves_a_query_running_is_told_so(database: AsyncpgDatabase) -> None:
    connection = await database.acquire()
    await connection.batch((BEGIN,))
    left_behind = asyncio.ensure_future(connection.handle.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0)
    with pytest.raises(StatementRefused, match="another operation is in progress"):
        await connection.batch((COMMIT,))
    left_behind.cancel()
    await connection.discard()
    await asyncio.gather(left_behind, return_exceptions=True)


UNREACHABLE = {
    "no server": ("postgresql://me:hunter2@127.0.0.1:1/none", "Connect"),
    "no database": ("{dsn}_not", "does not exist"),
    "no user": ("postgresql://nobody_known:hunter2@{host}", "nobody_known"),
}


@pytest.mark.parametrize(("dsn", "reason"), UNREACHABLE.values(), ids=UNREACHABLE)
async def test_what_is_wrong_with_a_dsn_is_said_at_once(dsn: str, reason: str, postgres_dsn: str) -> None:
    dsn = dsn.format(dsn=postgres_dsn, host=postgres_dsn.partition("@")[2])
    database = AsyncpgDatabase(dsn)
    with pytest.raises(StoreUnavailable, match=reason) as refusal:
        await database.acquire()
    assert "hunter2" not in str(refusal.value)
    await database.close()


async def test_a_dsn_that_asyncpg_cannot_read_is_refused_without_being_repeated() -> None:
    database = AsyncpgDatabase("postgresql://me:hunter2@host/name?sslmode=hunter2")
    with pytest.raises(ConfigurationError) as refusal:
        await database.acquire()
    assert "hunter2" not in str(refusal.value)
    await database.close()


_SESSION = Statement(
    "SELECT current_setting('work_mem'), (SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'),"
    " (SELECT count(*) FROM pg_listening_channels())"
)


@pytest.mark.parametrize("ending", [COMMIT, ROLLBACK])
async def test_what_a_handler_set_in_the_session_is_gone_when_the_connection_comes_back(
    postgres_dsn: str, ending: Boundary
) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncpgDatabase(pool)
        connection = await database.acquire()
        before = await connection.fetch(_SESSION)
        await connection.batch((BEGIN,))
        await connection.handle.execute("SET work_mem = '7MB'; SELECT pg_advisory_lock(77); LISTEN somewhere")
        await connection.batch((ending,))
        await connection.release()
        connection = await database.acquire()
        assert await connection.fetch(_SESSION) == before
        await connection.release()


async def test_a_pool_s_own_reset_is_still_called(postgres_dsn: str) -> None:
    called = []

    async def reset(connection: object) -> None:
        called.append(connection)

    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1, reset=reset) as pool:
        connection = await AsyncpgDatabase(pool).acquire()
        await connection.batch((BEGIN, COMMIT))
        await connection.release()
    assert len(called) == 1


async def test_a_session_s_reset_is_spared_once_and_not_for_those_who_come_after_us(postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool:
        connection = await AsyncpgDatabase(pool).acquire()
        await connection.batch((BEGIN, COMMIT))
        await connection.release()
        async with pool.acquire() as other:
            await other.execute("SET work_mem = '7MB'")
        assert await pool.fetchval("SHOW work_mem") != "7MB"


async def test_a_cancelled_request_gives_up_its_locks_before_its_statement_ends(postgres_dsn: str) -> None:
    database = AsyncpgDatabase(postgres_dsn)
    executor: TaskExecutor[Any] = TaskExecutor(database)

    async def request() -> None:
        await executor.acquire()
        try:
            await executor.batch((BEGIN, Statement("SELECT pg_advisory_xact_lock(42)")))
            await executor.connection.handle.execute("SELECT pg_sleep(60)")
        except asyncio.CancelledError:
            executor.abandon()
            raise

    watch = await asyncpg.connect(postgres_dsn)
    running = asyncio.create_task(request())
    while not await watch.fetchval("SELECT count(*) FROM pg_stat_activity WHERE query LIKE '%pg_sleep(60)'"):
        pass
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    async with asyncio.timeout(PATIENCE_S):
        await watch.execute("SELECT pg_advisory_lock(42)")
    await watch.close()
    await database.close()


@contextmanager
def frozen(backend: int) -> Iterator[None]:
    """A server process that answers nothing."""
    os.kill(backend, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(backend, signal.SIGCONT)


async def test_a_release_that_closes_the_connection_does_not_wait_for_ever(postgres_dsn: str) -> None:
    # After so many queries the pool does not take a connection back, but closes it.
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1, max_queries=1) as pool:
        database = AsyncpgDatabase(pool, acquire_timeout_s=0.2)
        connection = await database.acquire()
        [(backend,)] = await connection.fetch(Statement("SELECT pg_backend_pid()"))
        with frozen(backend):
            async with asyncio.timeout(PATIENCE_S):
                await connection.release()


async def test_a_server_that_does_not_hear_of_a_cancellation_costs_no_place_in_the_pool(postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=1) as pool:
        database = AsyncpgDatabase(pool, acquire_timeout_s=0.5)
        connection = await database.acquire()
        [(backend,)] = await connection.fetch(Statement("SELECT pg_backend_pid()"))
        with frozen(backend):
            statement = asyncio.ensure_future(connection.handle.execute("SELECT 1"))
            await asyncio.sleep(0.01)
            statement.cancel()
            with pytest.raises(asyncio.CancelledError):
                await statement
            await connection.discard()
            other = await database.acquire()
            assert await other.fetch(Statement("SELECT 1")) == [(1,)]
            await other.release()


@pytest.fixture
async def pool_of_one(postgres_dsn: str) -> AsyncIterator[Any]:
    pool = await asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1)
    yield pool
    pool.terminate()  # one that has lost a place would not close


async def test_a_discard_that_is_cancelled_costs_no_place_in_the_pool(pool_of_one: Any) -> None:
    database = AsyncpgDatabase(pool_of_one, acquire_timeout_s=PATIENCE_S)
    executor: TaskExecutor[Any] = TaskExecutor(database)
    await executor.acquire()
    statement = asyncio.ensure_future(executor.connection.handle.execute("SELECT pg_sleep(60)"))
    await asyncio.sleep(0.01)
    statement.cancel()
    with pytest.raises(asyncio.CancelledError):
        await statement
    leaving = asyncio.ensure_future(executor.discard())
    await asyncio.sleep(0)  # it waits until the server has heard of the cancellation
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    other = await database.acquire()
    await other.release()


async def test_who_is_cancelled_while_the_tables_are_looked_for_does_not_wait_for_the_server(pool_of_one: Any) -> None:
    database = AsyncpgDatabase(pool_of_one, acquire_timeout_s=100 * PATIENCE_S)
    with frozen(await pool_of_one.fetchval("SELECT pg_backend_pid()")):
        taking = asyncio.ensure_future(database.acquire())
        await asyncio.sleep(0.01)
        taking.cancel()
        ended, _ = await asyncio.wait({taking}, timeout=PATIENCE_S)
    assert ended
    assert taking.cancelled()
    other = await database.acquire()
    await other.release()
