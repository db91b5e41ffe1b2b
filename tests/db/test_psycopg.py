"""psycopg: the application's pool is used as it is and given back as it was; a pool of our own opens from a DSN."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from onefold._kernel.effects import Boundary, Statement
from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from onefold.errors import (
    ConfigurationError,
    ConnectionLost,
    StatementRefused,
    StoreUnavailable,
    TransactionMisused,
    UniqueViolated,
)
from tests.db.drivers import public_only
from tests.support.patience import PATIENCE_S

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
TABLE = Statement("CREATE TABLE thing (id bigint PRIMARY KEY)")
PID = Statement("SELECT pg_backend_pid()")


@pytest.fixture(autouse=True, params=["fast", "public"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How psycopg is used."""
    with public_only() if request.param == "public" else nullcontext():
        yield request.param


@pytest.mark.parametrize("autocommit", [False, True])
def test_a_connection_goes_back_as_it_came(autocommit: bool, way: str, postgres_dsn: str) -> None:
    options = {"autocommit": autocommit, "row_factory": dict_row}
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, kwargs=options, open=True) as pool:
        connection = PsycopgDatabase(pool).acquire()
        assert connection.handle.autocommit or way == "public"
        connection.batch((BEGIN, TABLE, COMMIT))
        assert connection.fetch(Statement("SELECT 1, 'two'")) == [(1, "two")]
        connection.batch((BEGIN,))
        assert connection.handle.execute("SELECT 1 AS one").fetchone() == {"one": 1}
        connection.batch((COMMIT,))
        connection.release()
        with pool.connection() as own:
            assert own.autocommit is autocommit


async def test_a_connection_for_asyncio_goes_back_as_it_came(way: str, postgres_dsn: str) -> None:
    options: dict[str, Any] = {"row_factory": dict_row}
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1, kwargs=options, open=False) as pool:
        connection = await AsyncPsycopgDatabase(pool).acquire()
        assert connection.handle.autocommit or way == "public"
        assert await connection.fetch(Statement("SELECT 1, 'two'")) == [(1, "two")]
        await connection.release()
        async with pool.connection() as own:
            assert not own.autocommit


def test_a_batch_is_one_message_and_begins_nothing_by_itself(postgres_dsn: str) -> None:
    """Statements of one simple query see the same statement_timestamp(): they arrived together."""
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    times = Statement("INSERT INTO moment VALUES (statement_timestamp())")
    connection.batch((Statement("CREATE TABLE moment (at timestamptz)"),))
    connection.batch((BEGIN, times, times, Boundary.SAVEPOINT, times, COMMIT))
    assert connection.fetch(Statement("SELECT count(DISTINCT at), count(*) FROM moment")) == [(1, 3)]
    assert connection.handle.info.transaction_status is psycopg.pq.TransactionStatus.IDLE
    connection.release()
    database.close()


def test_connections_that_the_server_closed_meanwhile_are_not_handed_out(postgres_dsn: str) -> None:
    with ConnectionPool(postgres_dsn, min_size=3, max_size=3, open=True) as pool:
        pool.wait()
        database = PsycopgDatabase(pool)
        taken = [database.acquire() for _ in range(3)]
        pids = [pid for connection in taken for (pid,) in connection.fetch(PID)]
        for connection in taken:
            connection.release()
        with psycopg.connect(postgres_dsn, autocommit=True) as operator:
            for pid in pids:
                operator.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        connection = database.acquire()
        [(pid,)] = connection.fetch(PID)
        assert pid not in pids
        connection.release()


async def test_the_same_for_asyncio(postgres_dsn: str) -> None:
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1, open=False) as pool:
        database = AsyncPsycopgDatabase(pool)
        connection = await database.acquire()
        [(pid,)] = await connection.fetch(PID)
        await connection.release()
        with psycopg.connect(postgres_dsn, autocommit=True) as operator:
            operator.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        connection = await database.acquire()
        assert await connection.fetch(PID) != [(pid,)]
        await connection.release()


async def test_who_is_cancelled_while_a_closed_connection_goes_back_loses_no_place_of_the_pool(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1, open=False) as pool:
        database = AsyncPsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        connection = await database.acquire()
        [(pid,)] = await connection.fetch(PID)
        await connection.release()
        with psycopg.connect(postgres_dsn, autocommit=True) as operator:
            operator.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])
        putconn, going_back, may_go = pool.putconn, asyncio.Event(), asyncio.Event()

        async def wait_and_go(connection: Any) -> None:
            going_back.set()
            await may_go.wait()
            await putconn(connection)

        monkeypatch.setattr(pool, "putconn", wait_and_go)
        acquiring = asyncio.create_task(database.acquire())
        await going_back.wait()
        acquiring.cancel()
        with pytest.raises(asyncio.CancelledError):
            await acquiring
        may_go.set()
        connection = await database.acquire()
        assert await connection.fetch(PID) != [(pid,)]
        await connection.release()


def test_a_pool_that_connections_close_into_gets_no_session_that_was_given_up(postgres_dsn: str) -> None:
    """`close_returns` is for SQLAlchemy: `close()` gives a connection back as it is. Whatever gave one up was answered
    by the pool's ValueError, and what a handler had closed was handed out again, void."""
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, close_returns=True, open=True) as pool:
        database = PsycopgDatabase(pool)
        pids = []
        for give_up in (lambda taken: taken.discard(), _close_handle, _terminate):
            taken = database.acquire()
            pids += taken.fetch(PID)
            give_up(taken)
        taken = database.acquire()
        pids += taken.fetch(PID)
        taken.release()
        assert len(set(pids)) == 4


def _close_handle(taken: Any) -> None:
    taken.batch((BEGIN,))
    taken.handle.close()
    with pytest.raises(ConnectionLost):
        taken.batch((COMMIT,))
    taken.discard()


def _terminate(taken: Any) -> None:
    [(pid,)] = taken.fetch(PID)
    taken.release()
    with psycopg.connect(taken._pool.conninfo, autocommit=True) as operator:
        operator.execute("SELECT pg_terminate_backend(%s, 10000)", [pid])


async def test_a_pool_that_connections_close_into_gets_none_for_asyncio(postgres_dsn: str) -> None:
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1, close_returns=True, open=False) as pool:
        database = AsyncPsycopgDatabase(pool)
        first = await database.acquire()
        pids = await first.fetch(PID)
        await first.batch((BEGIN,))
        await first.handle.close()
        with pytest.raises(ConnectionLost):
            await first.batch((COMMIT,))
        await first.discard()
        second = await database.acquire()
        pids += await second.fetch(PID)
        await second.release()
        with psycopg.connect(postgres_dsn, autocommit=True) as operator:
            operator.execute("SELECT pg_terminate_backend(%s, 10000)", list(pids[1]))
        third = await database.acquire()
        pids += await third.fetch(PID)
        await third.release()
        assert len(set(pids)) == 3


def test_a_pool_of_our_own_closes_and_opens_again(postgres_dsn: str) -> None:
    database = PsycopgDatabase(postgres_dsn)
    for _ in range(2):
        connection = database.acquire()
        assert connection.fetch(Statement("SELECT 1")) == [(1,)]
        connection.release()
        database.close()


async def test_a_pool_of_our_own_closes_and_opens_again_for_asyncio(postgres_dsn: str) -> None:
    database = AsyncPsycopgDatabase(postgres_dsn)
    for _ in range(2):
        connection = await database.acquire()
        assert await connection.fetch(Statement("SELECT 1")) == [(1,)]
        await connection.release()
        await database.close()


def test_a_pool_of_the_application_is_left_open(postgres_dsn: str) -> None:
    with ConnectionPool(postgres_dsn, min_size=0, max_size=1, open=True) as pool:
        PsycopgDatabase(pool).close()
        assert not pool.closed


def test_a_pool_that_was_never_opened_is_unavailable(postgres_dsn: str) -> None:
    pool = ConnectionPool(postgres_dsn, open=False)
    with pytest.raises(StoreUnavailable, match="not open yet"):
        PsycopgDatabase(pool).acquire()


UNREACHABLE = {
    "no server": ("postgresql://me:hunter2@127.0.0.1:1/none", "refused"),
    "no database": ("{dsn}_not", "does not exist"),
    "no user": ("postgresql://nobody_known:hunter2@{host}", "nobody_known"),
}


@pytest.mark.parametrize(("dsn", "reason"), UNREACHABLE.values(), ids=UNREACHABLE)
async def test_what_is_wrong_with_a_dsn_is_said_at_once(dsn: str, reason: str, postgres_dsn: str) -> None:
    dsn = dsn.format(dsn=postgres_dsn, host=postgres_dsn.partition("@")[2])
    with pytest.raises(StoreUnavailable, match=reason) as refusal:
        PsycopgDatabase(dsn, acquire_timeout_s=60).acquire()
    assert "hunter2" not in str(refusal.value)
    with pytest.raises(StoreUnavailable, match=reason) as refusal:
        await AsyncPsycopgDatabase(dsn, acquire_timeout_s=60).acquire()
    assert "hunter2" not in str(refusal.value)


@pytest.mark.parametrize("dsn", ["postgresql://me:hunter2@host/x?nonsense=1", "password hunter2", "mysql://hunter2"])
def test_a_dsn_that_libpq_cannot_read_is_refused_without_being_repeated(dsn: str) -> None:
    for kind in (PsycopgDatabase, AsyncPsycopgDatabase):
        with pytest.raises(ConfigurationError) as refusal:
            kind(dsn)
        assert "hunter2" not in str(refusal.value)
        assert refusal.value.__cause__ is None


def test_a_dsn_of_keywords_is_accepted(postgres_dsn: str) -> None:
    keywords = psycopg.conninfo.make_conninfo(postgres_dsn, application_name="by keyword")
    assert "://" not in keywords
    database = PsycopgDatabase(keywords)
    connection = database.acquire()
    assert connection.fetch(Statement("SELECT 1")) == [(1,)]
    connection.release()
    database.close()


def test_a_batch_on_a_connection_that_was_left_in_pipeline_mode_is_refused(postgres_dsn: str) -> None:
    """There its answer would come later, if at all: nobody may take that for a success."""
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    connection.batch((BEGIN,))
    with (
        pytest.raises(TransactionMisused, match="is over"),
        connection.handle.pipeline(),
        pytest.raises(StatementRefused, match="pipeline mode"),
    ):
        connection.batch((COMMIT,))
    connection.discard()
    database.close()


def test_what_psycopg_has_prepared_is_forgotten_with_the_transaction_it_rests_on(postgres_dsn: str) -> None:
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    for kind, value in (("int", 1), ("text", "one")):
        connection.batch((BEGIN, Statement(f"CREATE TABLE thing AS SELECT '{value}'::{kind} AS id")))
        found = connection.handle.execute("SELECT id FROM thing", prepare=True).fetchall()
        assert found == [(value,)]
        connection.batch((ROLLBACK,))
    connection.release()
    database.close()


# --- prepared statements --------------------------------------------------------------------------------------

fast_only = pytest.mark.parametrize("way", ["fast"], indirect=True)
PREPARED = Statement(
    "SELECT name FROM pg_prepared_statements WHERE name LIKE 'onefold%' AND statement LIKE '%INSERT INTO thing%'"
)


def insert(id_: int) -> Statement:
    return Statement("INSERT INTO thing VALUES ($1::bigint)", (id_,))


def ids_in(connection: Any) -> list[int]:
    return [id_ for (id_,) in connection.fetch(Statement("SELECT id FROM thing ORDER BY id"))]


@fast_only
def test_a_statement_is_prepared_once_for_both_ways_to_send_it(postgres_dsn: str) -> None:
    """In the text of a batch that goes on, and with bound values in one that commits."""
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, open=True) as pool:
        database = PsycopgDatabase(pool)
        for id_ in range(3):
            connection = database.acquire()
            if id_ == 0:
                connection.batch((BEGIN, TABLE, COMMIT))
            connection.batch((BEGIN, insert(id_), insert(10 + id_)))
            connection.batch((insert(20 + id_), insert(30 + id_), COMMIT))
            assert len(connection.fetch(PREPARED)) == 1
            connection.release()


@fast_only
async def test_a_statement_is_prepared_once_for_asyncio(postgres_dsn: str) -> None:
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1, open=False) as pool:
        database = AsyncPsycopgDatabase(pool)
        for id_ in range(3):
            connection = await database.acquire()
            if id_ == 0:
                await connection.batch((BEGIN, TABLE, COMMIT))
            await connection.batch((BEGIN, insert(id_)))
            await connection.batch((insert(20 + id_), COMMIT))
            assert len(await connection.fetch(PREPARED)) == 1
            await connection.release()


def test_statements_that_psycopg_deallocates_after_a_rollback_are_prepared_again(postgres_dsn: str) -> None:
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, open=True) as pool:
        database = PsycopgDatabase(pool)
        connection = database.acquire()
        connection.batch((BEGIN, TABLE, COMMIT))
        for start in (1, 11):
            connection.batch((BEGIN, insert(start)))
            handle = connection.handle
            handle.execute("SELECT 1", prepare=True)  # what it has prepared it deallocates, and ours too
            with pytest.raises(ZeroDivisionError), handle.transaction():
                raise ZeroDivisionError
            connection.batch((insert(start + 1), COMMIT))
        connection.batch((BEGIN, insert(21)))
        connection.handle.execute("SELECT 1", prepare=True)
        connection.batch((ROLLBACK,))
        connection.batch((BEGIN, insert(22)))
        connection.handle.execute("SELECT 1")  # now it deallocates what rested on the rollback before
        connection.batch((insert(23), COMMIT))
        assert ids_in(connection) == [1, 2, 11, 12, 22, 23]
        connection.release()


def test_a_pool_that_discards_everything_in_its_sessions_fails_no_request(postgres_dsn: str) -> None:
    def discard(connection: Any) -> None:
        connection.autocommit = True
        connection.execute("DISCARD ALL")
        connection.autocommit = False

    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, open=True, reset=discard) as pool:
        database = PsycopgDatabase(pool)
        for id_ in range(4):
            connection = database.acquire()
            if id_ == 0:
                connection.batch((BEGIN, TABLE, COMMIT))
            connection.batch((BEGIN, insert(id_)))
            connection.batch((insert(10 + id_), COMMIT))
            connection.release()
        with pool.connection() as own:
            assert own.execute("SELECT count(*) FROM thing").fetchone() == (8,)


@fast_only
def test_statements_that_a_handler_discards_fail_its_request_and_are_not_prepared_again(postgres_dsn: str) -> None:
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, open=True) as pool:
        database = PsycopgDatabase(pool)
        connection = database.acquire()
        connection.batch((BEGIN, TABLE, COMMIT))
        connection.batch((BEGIN, insert(1), COMMIT))
        connection.batch((BEGIN,))
        connection.handle.execute("DEALLOCATE ALL")
        with pytest.raises(StoreUnavailable, match="26000"):
            connection.batch((insert(2), COMMIT))
        connection.batch((ROLLBACK,))
        connection.release()
        connection = database.acquire()
        connection.batch((BEGIN, insert(3), COMMIT))
        assert connection.fetch(PREPARED) == []
        assert ids_in(connection) == [1, 3]
        connection.release()


def test_an_application_that_has_psycopg_prepare_nothing_gets_no_prepared_statements(postgres_dsn: str) -> None:
    options = {"prepare_threshold": None}
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, kwargs=options, open=True) as pool:
        connection = PsycopgDatabase(pool).acquire()
        connection.batch((BEGIN, TABLE, COMMIT))
        connection.batch((BEGIN, insert(1)))
        connection.batch((insert(2), COMMIT))
        assert connection.fetch(PREPARED) == []
        connection.release()


def test_a_session_whose_first_batch_failed_is_replaced(postgres_dsn: str) -> None:
    """Which of the statements that came with it are prepared is unknown."""
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, open=True) as pool:
        database = PsycopgDatabase(pool)
        connection = database.acquire()
        connection.batch((BEGIN, TABLE, COMMIT))
        for _ in range(3):
            for steps in ((BEGIN, insert(1), insert(1)), (BEGIN, insert(1), insert(1), COMMIT)):
                with pytest.raises(UniqueViolated):
                    connection.batch(steps)
                connection.batch((ROLLBACK,))
            connection.release()
            connection = database.acquire()
        connection.batch((BEGIN, insert(1), COMMIT))
        assert ids_in(connection) == [1]
        connection.release()


# --- what a handler keeps -------------------------------------------------------------------------------------

KEPT: dict[str, Any] = {
    "execute": lambda handle: lambda: handle.execute("SELECT 1"),
    "cursor": lambda handle: handle.cursor,
    "a cursor": lambda handle: partial(handle.cursor().execute, "SELECT 1"),
    "commit": lambda handle: handle.commit,
    "a transaction": lambda handle: handle.transaction().__enter__,
    "a pipeline": lambda handle: handle.pipeline().__enter__,
    "the session": lambda handle: lambda: handle.pgconn.exec_(b"SELECT 1"),
}


@pytest.mark.parametrize("kept", KEPT.values(), ids=KEPT)
@pytest.mark.parametrize("end", [COMMIT, ROLLBACK])
def test_what_a_handler_keeps_of_a_connection_is_void_before_its_transaction_ends(
    kept: Any, end: Boundary, way: str, postgres_dsn: str
) -> None:
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    connection.batch((BEGIN,))
    handle = connection.handle
    late = kept(handle)
    assert handle.execute("SELECT 1").fetchone() == (1,)
    connection.batch((end,))
    closed = TransactionMisused if way == "fast" else psycopg.OperationalError
    with pytest.raises((TransactionMisused, closed), match=r"is over|connection is closed"):
        late()
    assert handle.closed
    assert "BAD" in repr(handle)
    handle.cancel_safe()  # harmless, and so is the next
    handle.close()
    assert connection.fetch(Statement("SELECT 1")) == [(1,)]
    connection.release()
    database.close()


def test_a_handle_is_of_the_pools_own_class_and_is_the_same_for_the_whole_transaction(postgres_dsn: str) -> None:
    class Own(psycopg.Connection[Any]):
        pass

    with ConnectionPool(postgres_dsn, connection_class=Own, min_size=1, max_size=1, open=True) as pool:
        connection = PsycopgDatabase(pool).acquire()
        connection.batch((BEGIN,))
        handle = connection.handle
        assert isinstance(handle, Own)
        assert connection.handle is handle
        handle.row_factory = dict_row
        notices: list[str | None] = []
        handle.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        handle.execute("DO $$ BEGIN RAISE NOTICE 'heard'; END $$")
        assert notices == ["heard"]
        connection.batch((COMMIT,))
        connection.release()
        with pool.connection() as own:
            assert own.execute("SELECT 1").fetchone() == (1,)


def test_who_waits_for_the_connection_while_it_commits_comes_too_late(postgres_dsn: str) -> None:
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    connection.batch((BEGIN, TABLE))
    handle = connection.handle
    refused: list[Exception] = []

    def write() -> None:
        try:
            handle.execute("INSERT INTO thing VALUES (1)")
        except Exception as error:
            refused.append(error)

    handle.lock.acquire()  # as whoever commits has it
    thread = threading.Thread(target=write)
    thread.start()
    assert connection._handed_out is not None
    connection._handed_out.void()
    connection._handed_out = None
    handle.lock.release()
    thread.join()
    assert [type(error) for error in refused] == [TransactionMisused]
    connection.batch((COMMIT,))
    assert connection.fetch(Statement("SELECT count(*) FROM thing")) == [(0,)]
    connection.release()
    database.close()


async def test_what_a_handler_keeps_of_a_connection_is_void_for_asyncio(postgres_dsn: str) -> None:
    database = AsyncPsycopgDatabase(postgres_dsn)
    connection = await database.acquire()
    await connection.batch((BEGIN,))
    handle = connection.handle
    cursor = handle.cursor()
    await cursor.execute("SELECT 1")
    await connection.batch((COMMIT,))
    for late in (lambda: handle.execute("SELECT 1"), lambda: cursor.execute("SELECT 1"), handle.rollback):
        with pytest.raises(TransactionMisused, match="is over"):
            await late()
    await connection.release()
    await database.close()


def test_a_batch_that_comes_again_begins_as_its_connection_has_chosen(postgres_dsn: str) -> None:
    """What is kept of batches of one shape is the same for all connections, and they begin differently."""
    levels = [None, psycopg.IsolationLevel.SERIALIZABLE, psycopg.IsolationLevel.REPEATABLE_READ, None]
    note = Statement("INSERT INTO level VALUES ($1::text, current_setting('transaction_isolation'))", ("noted",))
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, open=True) as pool:
        for level in levels:
            with pool.connection() as own:
                own.execute("CREATE TABLE IF NOT EXISTS level (what text, found text)")
                own.commit()
                own.isolation_level = level
            connection = PsycopgDatabase(pool).acquire()
            for _ in range(3):  # parsed, planned, and by the plan
                connection.batch((Boundary.BEGIN_AS_CHOSEN, note, COMMIT))
            found = connection.fetch(Statement("SELECT DISTINCT found FROM level"))
            assert found == [("read committed" if level is None else level.name.lower().replace("_", " "),)]
            connection.batch((BEGIN, Statement("DELETE FROM level"), COMMIT))
            connection.release()


async def test_a_release_that_is_cancelled_costs_no_place_in_the_pool(postgres_dsn: str) -> None:
    """The pool takes a connection back under a lock, which another task may have for a moment."""
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncPsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        connection = await database.acquire()
        async with pool._lock:
            leaving = asyncio.create_task(connection.release())
            for _ in range(10):
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
        await (await database.acquire()).release()
