"""SQLAlchemy: sessions inside the request's transaction, and the application's engine left as it was."""

from __future__ import annotations

import os
import sqlite3
import traceback
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import asyncpg
import pytest
import sqlalchemy
from asyncpg.transaction import Transaction
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.exc import InvalidRequestError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import QueuePool, StaticPool

from onefold import Onefold, single_principal
from onefold._kernel.effects import Boundary, Statement
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase, SqlalchemyDatabase
from onefold.db.sqlite._locks import lock_file
from onefold.errors import (
    ConfigurationError,
    ConnectionLost,
    OnefoldError,
    StoreBusy,
    StoreUnavailable,
    TransactionEnded,
    TransactionMisused,
)

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
TABLE = Statement("CREATE TABLE thing (id INTEGER PRIMARY KEY)")
LEVEL = Statement("SELECT current_setting('transaction_isolation')")
CHOSEN = {"AUTOCOMMIT": "read committed", "REPEATABLE READ": "repeatable read", "SERIALIZABLE": "serializable"}
COUNT = Statement("SELECT count(*) FROM thing")


def join_session(connection: Connection) -> Session:
    """A Session of the application's own inside the transaction: its `commit()` and `rollback()` act on a savepoint."""
    return Session(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)


def join_async_session(connection: AsyncConnection) -> AsyncSession:
    return AsyncSession(connection, join_transaction_mode="create_savepoint", expire_on_commit=False)


class Model(DeclarativeBase):
    pass


class Thing(Model):
    __tablename__ = "thing"

    id: Mapped[int] = mapped_column(primary_key=True)


def prepared(engine: Engine) -> Engine:
    Model.metadata.create_all(engine)
    return engine


def psycopg_url(dsn: str) -> str:
    return dsn.replace("postgresql://", "postgresql+psycopg://")


@pytest.fixture(params=["postgres", "sqlite"])
def engine(request: pytest.FixtureRequest, sqlite_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = create_engine(f"sqlite:///{sqlite_path}", connect_args={"timeout": 0.05})
    else:
        engine = create_engine(psycopg_url(request.getfixturevalue("postgres_dsn")))
    yield prepared(engine)
    engine.dispose()


@pytest.fixture
def on_sqlite(sqlite_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{sqlite_path}", connect_args={"timeout": 0.05})
    yield prepared(engine)
    engine.dispose()


@pytest.fixture(params=["asyncpg", "psycopg", "aiosqlite"])
async def async_engine(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[AsyncEngine]:
    if request.param == "aiosqlite":
        engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
    else:
        dsn: str = request.getfixturevalue("postgres_dsn")
        engine = create_async_engine(dsn.replace("postgresql://", f"postgresql+{request.param}://"))
    async with engine.begin() as connection:
        await connection.run_sync(Model.metadata.create_all)
    yield engine
    await engine.dispose()


def committed(engine: Engine) -> list[int]:
    with engine.connect() as connection:
        return [id_ for (id_,) in connection.execute(text("SELECT id FROM thing ORDER BY id"))]


def is_locked(engine: Engine) -> bool:
    stranger = sqlite3.connect(str(engine.url.database), timeout=0, isolation_level=None)
    try:
        stranger.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError:
        return True
    finally:
        stranger.close()
    return False


# --- sessions -------------------------------------------------------------------------------------------------


def test_what_a_session_commits_waits_for_the_request(engine: Engine) -> None:
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((BEGIN,))
    session = join_session(connection.handle)
    thing = Thing(id=1)
    session.add(thing)
    session.commit()
    assert thing.id == 1  # not expired: the session was not asked again
    session.add(Thing(id=2))
    session.rollback()
    session.add(Thing(id=3))
    session.commit()
    session.close()
    assert committed(engine) == []
    connection.batch((COMMIT,))
    connection.release()
    assert committed(engine) == [1, 3]


def test_what_a_session_committed_goes_with_the_request(engine: Engine) -> None:
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((BEGIN,))
    session = join_session(connection.handle)
    session.add(Thing(id=1))
    session.commit()
    connection.batch((ROLLBACK,))
    connection.release()
    session.close()  # as late as a dependency of FastAPI closes it
    assert committed(engine) == []


def test_a_session_whose_statement_failed_goes_on_after_its_rollback(engine: Engine) -> None:
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((BEGIN,))
    session = join_session(connection.handle)
    session.add(Thing(id=1))
    session.commit()
    with pytest.raises(SQLAlchemyError):
        session.execute(text("INSERT INTO thing (id) VALUES (1)"))
    session.rollback()
    session.add(Thing(id=2))
    session.commit()
    connection.batch((COMMIT,))
    connection.release()
    session.close()
    assert committed(engine) == [1, 2]


async def test_what_an_async_session_commits_waits_for_the_request(async_engine: AsyncEngine) -> None:
    connection = await AsyncSqlalchemyDatabase(async_engine).acquire()
    for end, count in ((ROLLBACK, 0), (COMMIT, 1)):
        await connection.batch((BEGIN,))
        async with join_async_session(connection.handle) as session:
            session.add(Thing(id=1))
            await session.commit()
        await connection.batch((end,))
        assert await connection.fetch(COUNT) == [(count,)]
    await connection.release()


# --- a handler that ends the transaction ----------------------------------------------------------------------


def test_a_commit_by_the_handler_is_refused_before_it_happens(engine: Engine) -> None:
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((BEGIN,))
    connection.handle.execute(text("INSERT INTO thing (id) VALUES (1)"))
    with pytest.raises(TransactionMisused, match="remove the call"):
        connection.handle.commit()
    assert committed(engine) == []
    with pytest.raises(TransactionEnded):
        connection.batch((Statement("INSERT INTO thing (id) VALUES (2)"), COMMIT))
    # The way out of every flow: a rollback that really rolls back, although SQLAlchemy holds the transaction for over.
    connection.batch((ROLLBACK, BEGIN, Statement("INSERT INTO thing (id) VALUES (3)"), COMMIT))
    connection.release()
    assert committed(engine) == [3]


async def test_a_commit_by_an_async_handler_is_refused_before_it_happens(async_engine: AsyncEngine) -> None:
    connection = await AsyncSqlalchemyDatabase(async_engine).acquire()
    await connection.batch((BEGIN,))
    await connection.handle.execute(text("INSERT INTO thing (id) VALUES (1)"))
    with pytest.raises(TransactionMisused, match="remove the call"):
        await connection.handle.commit()
    await connection.batch((ROLLBACK,))
    assert await connection.fetch(COUNT) == [(0,)]
    await connection.release()


ENDINGS: dict[str, Callable[[sqlalchemy.Connection], object]] = {
    "rollback()": lambda handle: handle.rollback(),
    "close()": lambda handle: handle.close(),
    "COMMIT": lambda handle: handle.exec_driver_sql("COMMIT"),
    "ROLLBACK": lambda handle: handle.exec_driver_sql("ROLLBACK"),
    "the driver's commit()": lambda handle: handle.connection.commit(),
    "the driver's rollback()": lambda handle: handle.connection.rollback(),
}


@pytest.mark.parametrize("ending", ENDINGS.values(), ids=ENDINGS)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_ended_by_the_handler_is_found_out_on_sqlite(
    ending: Callable[[sqlalchemy.Connection], object], goes_on: bool, on_sqlite: Engine
) -> None:
    connection = SqlalchemyDatabase(on_sqlite).acquire()
    handle = connection.handle
    handle.execute(text("INSERT INTO thing (id) VALUES (1)"))
    ending(handle)
    if goes_on:
        with suppress(SQLAlchemyError, OnefoldError):
            handle.execute(text("INSERT INTO thing (id) VALUES (2)"))
    for steps in ((BEGIN, COMMIT), (BEGIN, Statement("INSERT INTO thing (id) VALUES (3)"), COMMIT)):
        with pytest.raises(TransactionEnded):
            connection.batch(steps)
    connection.discard()
    assert not {2, 3} & set(committed(on_sqlite))
    assert not is_locked(on_sqlite)


@pytest.mark.parametrize("ending", ["rollback()", "close()"])
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_transaction_ended_through_sqlalchemy_is_found_out_everywhere(
    ending: str, goes_on: bool, engine: Engine
) -> None:
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((BEGIN,))
    handle = connection.handle
    handle.execute(text("INSERT INTO thing (id) VALUES (1)"))
    ENDINGS[ending](handle)
    if goes_on:
        with suppress(SQLAlchemyError, OnefoldError):
            handle.execute(text("INSERT INTO thing (id) VALUES (2)"))
    with pytest.raises(TransactionEnded):
        connection.batch((Statement("INSERT INTO thing (id) VALUES (3)"), COMMIT))
    connection.discard()
    assert committed(engine) == []


def test_a_handler_cannot_begin_a_transaction_of_its_own(engine: Engine) -> None:
    """`with connection.begin()` would commit at its end."""
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((BEGIN,))
    with pytest.raises(InvalidRequestError):
        connection.handle.begin()
    connection.batch((ROLLBACK,))
    connection.release()


# --- SQLite's write lock --------------------------------------------------------------------------------------


def test_on_sqlite_looking_takes_no_lock_and_the_first_touch_does(on_sqlite: Engine) -> None:
    connection = SqlalchemyDatabase(on_sqlite).acquire()
    connection.fetch(COUNT)
    assert not is_locked(on_sqlite)
    session = join_session(connection.handle)
    assert not is_locked(on_sqlite)
    session.get(Thing, 1)
    assert is_locked(on_sqlite)
    connection.batch((ROLLBACK,))
    assert not is_locked(on_sqlite)
    connection.handle.execute(text("SELECT 1"))
    assert is_locked(on_sqlite)
    connection.release()
    session.close()
    assert not is_locked(on_sqlite)


def test_on_sqlite_a_lock_that_is_not_granted_is_said_to_be_busy(on_sqlite: Engine) -> None:
    database = SqlalchemyDatabase(on_sqlite)
    first, second = database.acquire(), database.acquire()
    first.batch((BEGIN, Statement("INSERT INTO thing (id) VALUES (1)")))
    with pytest.raises(StoreBusy):
        second.batch((BEGIN, Statement("INSERT INTO thing (id) VALUES (2)"), COMMIT))
    first.batch((COMMIT,))
    second.batch((ROLLBACK, BEGIN, Statement("INSERT INTO thing (id) VALUES (3)"), COMMIT))
    first.release()
    second.release()
    assert committed(on_sqlite) == [1, 3]


def begin_by_listener(engine: Engine) -> None:
    """The recipe of SQLAlchemy's documentation for SQLite: no transactions of sqlite3's own, a BEGIN by listener."""

    @event.listens_for(engine, "connect")
    def connect(connection: Any, _: object) -> None:
        connection.isolation_level = None

    @event.listens_for(engine, "begin")
    def begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN")


@pytest.mark.parametrize(
    ("listening", "options"),
    [
        (False, {}),
        (False, {"isolation_level": "AUTOCOMMIT"}),
        (False, {"isolation_level": "AUTOCOMMIT", "skip_autocommit_rollback": True}),
        (True, {}),
        (True, {"isolation_level": "AUTOCOMMIT"}),
    ],
)
def test_on_sqlite_transactions_are_the_same_however_the_engine_begins_its_own(
    listening: bool, options: dict[str, Any], sqlite_path: Path
) -> None:
    engine = create_engine(f"sqlite:///{sqlite_path}", **options)
    prepared(engine)
    if listening:
        begin_by_listener(engine)
        engine.dispose()
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((Statement("INSERT INTO thing (id) VALUES (1)"),))
    assert not is_locked(engine)
    assert committed(engine) == [1]
    connection.handle.execute(text("INSERT INTO thing (id) VALUES (2)"))
    assert is_locked(engine)
    connection.batch((ROLLBACK, BEGIN, Statement("INSERT INTO thing (id) VALUES (3)"), COMMIT))
    assert not is_locked(engine)
    assert connection.fetch(COUNT) == [(2,)]
    connection.handle.execute(text("INSERT INTO thing (id) VALUES (4)"))
    connection.release()
    assert committed(engine) == [1, 3]
    engine.dispose()


async def test_on_aiosqlite_a_listener_that_begins_is_no_obstacle(sqlite_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
    begin_by_listener(engine.sync_engine)
    connection = await AsyncSqlalchemyDatabase(engine).acquire()
    await connection.batch((BEGIN, TABLE, COMMIT))
    async with join_async_session(connection.handle) as session:
        session.add(Thing(id=1))
        await session.commit()
    await connection.batch((BEGIN, COMMIT))
    assert await connection.fetch(COUNT) == [(1,)]
    await connection.release()
    await engine.dispose()


# --- the application's engine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("by", ["create_engine", "execution_options"])
def test_on_postgres_transactions_have_the_level_of_the_engine(level: str, by: str, postgres_dsn: str) -> None:
    engine = create_engine(
        psycopg_url(postgres_dsn),
        pool_size=1,
        max_overflow=0,
        **({"isolation_level": level} if by == "create_engine" else {}),
    )
    if by == "execution_options":
        engine = engine.execution_options(isolation_level=level)
    database = SqlalchemyDatabase(engine)
    for _ in range(2):
        connection = database.acquire()
        for begin, found in ((Boundary.BEGIN_AS_CHOSEN, CHOSEN[level]), (BEGIN, "read committed")):
            connection.batch((begin, TABLE))
            assert connection.fetch(LEVEL) == [(found,)]
            connection.batch((ROLLBACK,))
        connection.release()
    with engine.connect() as own:
        own.execute(text("SELECT 1"))
        assert own.connection.dbapi_connection is not None
        assert own.get_isolation_level() in (level, "READ COMMITTED" if level == "AUTOCOMMIT" else level)
        driver: Any = own.connection.driver_connection
        assert driver.autocommit is (level == "AUTOCOMMIT")
    engine.dispose()


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
@pytest.mark.parametrize("level", ["AUTOCOMMIT", "REPEATABLE READ", "SERIALIZABLE"])
async def test_on_postgres_transactions_have_the_level_of_the_async_engine(
    driver: str, level: str, postgres_dsn: str
) -> None:
    url = postgres_dsn.replace("postgresql://", f"postgresql+{driver}://")
    engine = create_async_engine(url, isolation_level=level, pool_size=1, max_overflow=0)
    database = AsyncSqlalchemyDatabase(engine)
    for _ in range(2):
        connection = await database.acquire()
        for begin, found in ((Boundary.BEGIN_AS_CHOSEN, CHOSEN[level]), (BEGIN, "read committed")):
            await connection.batch((begin, TABLE))
            assert await connection.fetch(LEVEL) == [(found,)]
            await connection.batch((ROLLBACK,))
        await connection.release()
    async with engine.connect() as own:
        assert await own.get_isolation_level() == ("READ COMMITTED" if level == "AUTOCOMMIT" else level)
        dbapi: Any = (await own.get_raw_connection()).dbapi_connection
        assert dbapi.autocommit is (level == "AUTOCOMMIT")
    await engine.dispose()


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_on_postgres_a_transaction_that_a_listener_has_begun_is_no_obstacle(driver: str, postgres_dsn: str) -> None:
    """A single statement of ours commits by itself, where nothing is begun."""
    engine = prepared(create_engine(postgres_dsn.replace("postgresql://", f"postgresql+{driver}://")))

    @event.listens_for(engine, "checkout")
    def set_path(driver_connection: Any, *_: object) -> None:
        driver_connection.cursor().execute("SET LOCAL onefold.tenant = 'one'")

    connection = SqlalchemyDatabase(engine).acquire()
    assert connection.fetch(COUNT) == [(0,)]
    assert connection.batch((Statement("INSERT INTO thing VALUES (1)"),)) == 1
    assert committed(engine) == [1]
    connection.release()
    with engine.connect() as mine:
        assert mine.connection.dbapi_connection is not None
        assert not mine.connection.dbapi_connection.autocommit, "it went back as it came"
    engine.dispose()


def test_a_level_that_the_application_sets_for_a_session_is_not_pinned_to_another(postgres_dsn: str) -> None:
    engine = create_engine(psycopg_url(postgres_dsn), pool_size=1, max_overflow=0)
    with engine.connect():
        pass  # SQLAlchemy learns the server's default

    @event.listens_for(engine, "checkout")
    def checkout(connection: Any, *_: object) -> None:
        connection.execute("SET default_transaction_isolation = 'serializable'")
        connection.commit()

    database = SqlalchemyDatabase(engine)
    connection = database.acquire()
    connection.batch((BEGIN, TABLE, ROLLBACK))
    connection.batch((Boundary.BEGIN_AS_CHOSEN, TABLE))
    assert connection.fetch(LEVEL) == [("serializable",)]
    connection.batch((ROLLBACK,))
    connection.release()
    with engine.connect() as own:
        assert own.execute(text(LEVEL.sql)).scalar_one() == "serializable"
    engine.dispose()


@pytest.mark.parametrize("before", ["", "DEFERRED", None])
def test_on_sqlite_the_connection_goes_back_as_it_came(before: str | None, sqlite_path: Path) -> None:
    engine = create_engine(f"sqlite:///{sqlite_path}", pool_size=1, connect_args={"isolation_level": before})
    connection = SqlalchemyDatabase(engine).acquire()
    connection.batch((BEGIN, TABLE, COMMIT))
    connection.release()
    with engine.connect() as own:
        driver: Any = own.connection.driver_connection
        assert driver.isolation_level == before
    engine.dispose()


def test_listeners_of_the_application_see_nothing_of_ours_once_a_connection_is_back(on_sqlite: Engine) -> None:
    connection = SqlalchemyDatabase(on_sqlite).acquire()
    connection.release()
    with on_sqlite.begin() as own:
        own.execute(text("INSERT INTO thing (id) VALUES (1)"))  # commits, as it always did
    assert committed(on_sqlite) == [1]


def test_another_dialect_is_refused_by_name() -> None:
    engine = create_engine("mssql+pyodbc://", module=sqlite3)  # any module will do: it is not connected
    with pytest.raises(ConfigurationError, match=r"mssql.*postgresql and sqlite"):
        SqlalchemyDatabase(engine)


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?mode=memory&uri=true"])
def test_a_database_in_memory_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match="memory"):
        SqlalchemyDatabase(create_engine(url, poolclass=QueuePool))


def test_a_database_in_memory_is_refused_with_the_pool_of_one_connection_too() -> None:
    with pytest.raises(ConfigurationError, match=r"memory.*sqlite:///file\.db.*tests"):
        SqlalchemyDatabase(create_engine("sqlite://", poolclass=StaticPool))


def test_a_pool_that_gives_one_connection_to_all_is_refused(sqlite_path: Path) -> None:
    refused = pytest.raises(ConfigurationError, match=r"StaticPool.*one connection.*QueuePool")
    with refused:
        SqlalchemyDatabase(create_engine(f"sqlite:///{sqlite_path}", poolclass=StaticPool))
    for url in (f"sqlite+aiosqlite:///{sqlite_path}", "postgresql+asyncpg://127.0.0.1:1/none"):
        with refused:
            AsyncSqlalchemyDatabase(create_async_engine(url, poolclass=StaticPool))


def test_the_sync_half_of_an_async_engine_is_refused(sqlite_path: Path) -> None:
    engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
    with pytest.raises(ConfigurationError, match="AsyncOnefold"):
        SqlalchemyDatabase(engine.sync_engine)


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg"])
async def test_a_server_that_is_not_there_is_unavailable(driver: str) -> None:
    engine = create_async_engine(f"postgresql+{driver}://me:hunter2@127.0.0.1:1/none")
    with pytest.raises(StoreUnavailable) as refusal:
        await AsyncSqlalchemyDatabase(engine).acquire()
    assert "hunter2" not in str(refusal.value)
    await engine.dispose()


async def test_a_connection_whose_protocol_is_out_of_step_is_lost(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So asyncpg finds many that an administrator, or a failover, cuts off. The answer is 503: a retry is right."""

    async def rollback(transaction: object) -> None:
        raise asyncpg.InternalClientError("cannot switch to state 15; another operation (2) is in progress")

    engine = create_async_engine(postgres_dsn.replace("postgresql://", "postgresql+asyncpg://"))
    database = AsyncSqlalchemyDatabase(engine)
    connection = await database.acquire()
    await connection.batch((BEGIN, Statement("SELECT 1")))
    with monkeypatch.context() as patched:
        patched.setattr(Transaction, "rollback", rollback)
        with pytest.raises(ConnectionLost, match="cannot switch to state"):
            await connection.batch((ROLLBACK,))
    await connection.discard()
    await engine.dispose()


def test_an_error_of_our_statements_does_not_repeat_their_values(sqlite_path: Path) -> None:
    database = SqlalchemyDatabase(create_engine(f"sqlite:///{sqlite_path}"))
    connection = database.acquire()
    try:
        with pytest.raises(OnefoldError) as told:
            connection.batch((Statement("INSERT INTO nowhere VALUES (?1)", ("hunter2",)),))
    finally:
        connection.discard()
    assert "hunter2" not in "".join(traceback.format_exception(told.value)).replace('("hunter2",)', "")


@pytest.mark.parametrize("absolute", [True, False])
def test_closing_lets_go_of_the_locks_of_a_file_that_is_named_by_a_uri(
    sqlite_path: Path, absolute: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(sqlite_path.parent)
    name = f"{quote(str(sqlite_path))}" if absolute else quote(sqlite_path.name)
    engine = create_engine(f"sqlite:///file:{name}?uri=true")
    once = Onefold(engine, principal=single_principal)
    once.migrate()

    def answer(environ: Any, start_response: Any) -> tuple[bytes, ...]:
        start_response("204 No Content", [])
        return ()

    app = once.wsgi(answer, {"POST /": once.policy()})
    given = {"REQUEST_METHOD": "POST", "PATH_INFO": "/", "HTTP_IDEMPOTENCY_KEY": '"k"', "wsgi.input": BytesIO()}
    app(given, lambda *_: list[bytes]().append)
    locks = lock_file(os.path.realpath(sqlite_path))
    assert locks._descriptor is not None
    once.close()
    assert locks._descriptor is None
    engine.dispose()
