"""Handlers that change the search path or the role of their transaction, as applications with a schema or a role per
tenant do: the record, the events and the ledger are written where they belong, by who may."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, NamedTuple

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Message, Transaction
from onefold._app.migrations import MIGRATIONS
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.model import Answer, Ask, Replay, Run
from onefold._inbox.consumer import Consumer
from onefold._inbox.handling import Inbox
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run, run_async
from onefold._outbox.write import Outbox
from onefold.db._migrations import migrate
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase
from onefold.errors import StatementRefused, StoreError
from onefold.telemetry import Handled
from onefold.testing.servers import PrivatePostgres
from tests.db.roles import create_login
from tests.inbox.backends import delivery, message

ASK = Ask(b"k" * 16, b"f" * 32, "POST /payments", 30.0, 1e6)
ANSWER = Answer(201, b"{}", b"done")

TENANT = "SET LOCAL search_path = tenant"
NO_SCHEMA = "SET LOCAL search_path = ''"
ROLE = "SET LOCAL ROLE {tenant}"


class House(NamedTuple):
    """A database of an application whose tenants have a schema and a role of their own."""

    dsn: str
    """As the application's role, which owns onefold's tables."""
    owner: str
    tenant: str

    def rows(self, sql: str) -> list[Any]:
        with psycopg.connect(self.owner, autocommit=True) as connection:
            return connection.execute(sql.encode()).fetchall()

    def execute(self, *statements: str) -> None:
        with psycopg.connect(self.owner, autocommit=True) as connection:
            for sql in statements:
                connection.execute(sql.encode())


@pytest.fixture
def house(postgres: PrivatePostgres) -> House:
    return built(postgres)


def built(server: PrivatePostgres) -> House:
    owner = server.fresh_database()
    name = owner.rpartition("/")[2]
    made = House(create_login(f"app_{name}", owner), owner, f"tenant_{name}")
    made.execute(
        f"CREATE ROLE {made.tenant}",
        f"GRANT {made.tenant} TO app_{name}",
        f"GRANT CREATE ON DATABASE {name} TO app_{name}",
        "CREATE SCHEMA tenant",
        f"CREATE SCHEMA AUTHORIZATION app_{name}",
        f"GRANT USAGE, CREATE ON SCHEMA tenant TO app_{name}",
        f"GRANT USAGE ON SCHEMA tenant TO {made.tenant}",
        "CREATE TABLE tenant.payment (who text DEFAULT current_user)",
        f"GRANT SELECT, INSERT ON tenant.payment TO {made.tenant}, app_{name}",
    )
    migrated(made.dsn)
    return made


def migrated(dsn: str) -> None:
    database = PsycopgDatabase(dsn)
    run(migrate("postgres", MIGRATIONS["postgres"]), ThreadExecutor(database))
    database.close()


Execute = Callable[[Any, str], Awaitable[Any]]
Opened = tuple[AsyncDatabase[Any], Execute]


@asynccontextmanager
async def over_asyncpg(dsn: str) -> AsyncIterator[Opened]:
    async with asyncpg.create_pool(dsn, min_size=0, max_size=2) as pool:
        yield AsyncpgDatabase(pool), lambda handle, sql: handle.execute(sql)


@asynccontextmanager
async def over_psycopg(dsn: str) -> AsyncIterator[Opened]:
    async with AsyncConnectionPool(dsn, min_size=0, max_size=2, open=False) as pool:
        yield AsyncPsycopgDatabase(pool), lambda handle, sql: handle.execute(sql)


@asynccontextmanager
async def over_sqlalchemy(dsn: str) -> AsyncIterator[Opened]:
    engine = create_async_engine(dsn.replace("postgresql", "postgresql+asyncpg"))
    database = AsyncSqlalchemyDatabase(engine)
    yield database, lambda handle, sql: handle.execute(sqlalchemy.text(sql))
    await database.close()
    await engine.dispose()


DRIVERS: dict[str, Callable[[str], AbstractAsyncContextManager[Opened]]] = {
    "asyncpg": over_asyncpg,
    "psycopg": over_psycopg,
    "sqlalchemy": over_sqlalchemy,
}


@pytest.fixture(params=DRIVERS)
def driver(request: pytest.FixtureRequest) -> Callable[[str], AbstractAsyncContextManager[Opened]]:
    return DRIVERS[request.param]


async def request(database: AsyncDatabase[Any], execute: Execute, *statements: str) -> Any:
    """A keyed request whose handler executes these, publishes and is settled; what came of it."""
    executor: TaskExecutor[Any] = TaskExecutor(database)
    store = LockedStore()
    claim = await run_async(store.claim(ASK), executor)
    if not isinstance(claim, Run):
        return claim
    for sql in statements:
        await execute(executor.connection.handle, sql)
    outgoing = Outbox(dialect="postgres", source="shop").new_buffer()
    outgoing.add("paid", {}, key="k", headers={}, content_type=None, not_before=None)
    return await run_async(store.settle(ASK, claim, ANSWER, keep_rows=True, also=outgoing.flush()), executor)


@pytest.mark.parametrize("path", [TENANT, NO_SCHEMA], ids=["another schema", "none"])
@pytest.mark.parametrize("tables_there", [False, True], ids=["without our tables", "with our tables"])
async def test_a_handler_s_search_path_changes_nothing_of_ours(
    house: House, driver: Any, path: str, tables_there: bool
) -> None:
    if tables_there:  # a tenant's own application, or an older set-up
        migrated(f"{house.dsn}?options=-csearch_path%3Dtenant")
    async with driver(house.dsn) as (database, execute):
        assert await request(database, execute, path, "INSERT INTO tenant.payment DEFAULT VALUES") is None
        for _ in range(2):
            assert isinstance(await request(database, execute), Replay)
    [(records,)] = house.rows(f"SELECT count(*) FROM {_app(house)}.onefold_record")
    [(events,)] = house.rows(f"SELECT count(*) FROM {_app(house)}.onefold_outbox")
    assert (records, events) == (1, 1)
    if tables_there:
        assert house.rows("SELECT count(*) FROM tenant.onefold_record") == [(0,)]


def _app(house: House) -> str:
    return house.dsn.partition("//")[2].partition(":")[0]


async def test_a_path_that_a_handler_leaves_in_the_session_changes_nothing_for_the_next(
    house: House, driver: Any
) -> None:
    async with driver(house.dsn) as (database, execute):
        executor: TaskExecutor[Any] = TaskExecutor(database)
        await run_async(LockedStore().claim(ASK._replace(digest=b"o" * 16)), executor)
        await execute(executor.connection.handle, "SET search_path = tenant")
        await run_async(LockedStore().release(ASK, Run()), executor)
        assert await request(database, execute) is None


async def test_a_handler_s_role_is_not_the_one_that_settles(house: House, driver: Any) -> None:
    async with driver(house.dsn) as (database, execute):
        tenant = ROLE.format(tenant=house.tenant)
        assert await request(database, execute, tenant, "INSERT INTO tenant.payment DEFAULT VALUES") is None
        assert isinstance(await request(database, execute), Replay)
        # And the next request of that connection is our own again.
        async with AsyncOnefold(database, source="shop").transaction() as tx:
            await execute(tx.connection, "SELECT 1")
            await tx.publish("paid", {})
    assert house.rows("SELECT who FROM tenant.payment") == [(house.tenant,)]


async def test_a_pool_s_own_role_is_the_one_that_settles(house: House) -> None:
    """Not the login's: RESET ROLE would be too much."""
    login = f"login_{house.tenant}"
    dsn = create_login(login, house.owner, "NOINHERIT")
    house.execute(f"GRANT {_app(house)}, {house.tenant} TO {login}")

    async def setup(connection: Any) -> None:
        await connection.execute(f"SET ROLE {_app(house)}; SET search_path = {_app(house)}")

    async with asyncpg.create_pool(dsn, min_size=0, max_size=1, setup=setup) as pool:
        database = AsyncpgDatabase(pool)
        tenant = ROLE.format(tenant=house.tenant)
        sent = await request(database, lambda handle, sql: handle.execute(sql), tenant)
        assert sent is None
        async with AsyncOnefold(database, source="shop").transaction() as tx:
            await tx.connection.execute(tenant)
            await tx.publish("paid", {})


async def test_events_of_a_block_are_written_under_our_role(house: House, driver: Any) -> None:
    async with driver(house.dsn) as (database, execute), AsyncOnefold(database, source="shop").transaction() as tx:
        await execute(tx.connection, ROLE.format(tenant=house.tenant))
        await execute(tx.connection, TENANT)
        await tx.publish("paid", {}, key="k")
    assert house.rows(f"SELECT count(*) FROM {_app(house)}.onefold_outbox") == [(1,)]


async def test_a_consumer_s_handler_may_take_a_role_and_a_path(house: House, driver: Any) -> None:
    async with driver(house.dsn) as (database, execute):

        async def handle(message: Message, tx: Transaction[Any]) -> None:
            await execute(tx.connection, ROLE.format(tenant=house.tenant))
            await execute(tx.connection, TENANT)
            await execute(tx.connection, "INSERT INTO payment DEFAULT VALUES")
            await tx.publish("paid", {}, key="k")

        inbox = Inbox(
            Consumer(name="billing", topics=("t",), handler=handle, order="strict"), "postgres", draw=lambda: 0.5
        )
        for number in (1, 2):
            executor: TaskExecutor[Any] = TaskExecutor(database)
            tx = OwnedTransaction(executor, Outbox(dialect="postgres", source="shop").new_buffer)
            given = delivery(message(f"m{number}", key="k", version=number))
            assert isinstance(await run_async(inbox.handle(given, tx), executor), Handled)
    assert house.rows("SELECT DISTINCT who FROM tenant.payment") == [(house.tenant,)]


async def test_what_the_application_deferred_runs_as_it_would_without_us(
    postgres_16: PrivatePostgres, driver: Any
) -> None:
    """Its deferred triggers run at COMMIT, with the handler's path and, before Postgres 18, by the role then."""
    house = built(postgres_16)
    house.execute(
        "CREATE TABLE tenant.seen (who text, path text)",
        f"GRANT INSERT ON tenant.seen TO {house.tenant}",
        "CREATE FUNCTION tenant.see() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        "INSERT INTO tenant.seen VALUES (current_user, current_setting('search_path')); RETURN NULL; END $$",
        "CREATE CONSTRAINT TRIGGER see AFTER INSERT ON tenant.payment DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION tenant.see()",
    )
    async with driver(house.dsn) as (database, execute):
        tenant = ROLE.format(tenant=house.tenant)
        assert await request(database, execute, TENANT, tenant, "INSERT INTO payment DEFAULT VALUES") is None
    assert house.rows("SELECT who, path FROM tenant.seen") == [(house.tenant, "tenant")]


async def test_another_session_authorization_is_refused_with_the_way_out(house: House) -> None:
    async with asyncpg.create_pool(house.owner, min_size=0, max_size=1) as pool:
        database = AsyncpgDatabase(pool)
        await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
        with pytest.raises(StatementRefused, match="SESSION AUTHORIZATION"):
            await request(
                database,
                lambda handle, sql: handle.execute(sql),
                f"SET LOCAL SESSION AUTHORIZATION {house.tenant}",
            )


async def test_tables_are_looked_for_until_they_are_there(house: House, driver: Any) -> None:
    house.execute(f"DROP SCHEMA {_app(house)} CASCADE", f"CREATE SCHEMA AUTHORIZATION {_app(house)}")
    async with driver(house.dsn) as (database, execute):
        with pytest.raises(StoreError, match="onefold migrate"):
            await request(database, execute)
        migrated(house.dsn)
        assert await request(database, execute, TENANT) is None
