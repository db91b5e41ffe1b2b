"""An application may have codecs of its own on its connections: our statements read and write as if it had none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from fastapi import FastAPI
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.pq import Format
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from sqlalchemy import event
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, single_principal
from onefold._http.fastapi_dependencies import Tx
from onefold._kernel.effects import Boundary, Statement
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from onefold.errors import ConfigurationError
from tests.http.stages import calling, problem, replayed

TYPES = ("bool", "int2", "int4", "int8", "text", "bytea", "name", "json", "timestamptz")

VALUES = Statement(
    "SELECT true, 1::int2, 2::int4, 3::int8, 'four'::text, '\\x0500'::bytea, 'six'::name, "
    "$1::bytea, $2::text, $3::int8",
    (b"\0seven", "eight", 9),
)
PLAIN = [(True, 1, 2, 3, "four", b"\5\0", "six", b"\0seven", "eight", 9)]


class TheirLoader(Loader):
    """Makes the same of everything."""

    def load(self, data: Buffer) -> str:
        return "theirs"


class TheirBinaryLoader(TheirLoader):
    format = Format.BINARY


class TheirDumper(Dumper):
    def dump(self, obj: object) -> bytes:
        return b"7"


def register(connection: psycopg.BaseConnection[Any]) -> None:
    for name in TYPES:
        connection.adapters.register_loader(name, TheirLoader)
        connection.adapters.register_loader(name, TheirBinaryLoader)
    for kind in (str, bytes, int):
        connection.adapters.register_dumper(kind, TheirDumper)


async def register_async(connection: psycopg.AsyncConnection[Any]) -> None:
    register(connection)


async def set_codecs(connection: Any) -> None:
    for name in TYPES:
        await connection.set_type_codec(
            name, schema="pg_catalog", encoder=lambda _: "7", decoder=lambda _: "theirs", format="text"
        )


class TheirRecord(asyncpg.Record):
    """With a class of its own for rows, too."""

    def __iter__(self) -> Any:
        return iter(self.keys())


@asynccontextmanager
async def over_asyncpg(dsn: str, **options: Any) -> AsyncIterator[AsyncpgDatabase]:
    pool = asyncpg.create_pool(dsn, min_size=0, max_size=1, init=set_codecs, record_class=TheirRecord, **options)
    yield AsyncpgDatabase(pool)
    await pool.close()


@asynccontextmanager
async def over_asyncpg_without_cache(dsn: str) -> AsyncIterator[AsyncpgDatabase]:
    async with over_asyncpg(dsn, statement_cache_size=0) as database:
        yield database


@asynccontextmanager
async def over_psycopg(dsn: str) -> AsyncIterator[AsyncPsycopgDatabase]:
    async with AsyncConnectionPool(dsn, min_size=0, max_size=1, configure=register_async, open=False) as pool:
        yield AsyncPsycopgDatabase(pool)


Open = Callable[[str], AbstractAsyncContextManager[Any]]
OPENS: dict[str, Open] = {
    "asyncpg": over_asyncpg,
    "asyncpg without a cache": over_asyncpg_without_cache,
    "psycopg": over_psycopg,
}


@pytest.fixture(params=OPENS)
async def database(request: pytest.FixtureRequest, postgres_dsn: str) -> AsyncIterator[Any]:
    async with OPENS[request.param](postgres_dsn) as database:
        yield database


async def test_our_statements_read_and_write_plain_values(database: Any) -> None:
    connection = await database.acquire()
    assert await connection.fetch(VALUES) == PLAIN
    await connection.batch((Statement("CREATE TABLE thing (id int8, name text, data bytea)"),))
    insert = Statement("INSERT INTO thing VALUES ($1::int8, $2::text, $3::bytea)", (1, "one", b"\0"))
    assert await connection.batch((insert,)) == 1
    await connection.batch((Boundary.BEGIN, insert, Boundary.COMMIT))
    assert await connection.fetch(Statement("SELECT id, name, data FROM thing")) == [(1, "one", b"\0")] * 2
    await connection.release()


async def test_requests_are_claimed_replayed_refused_and_found(database: Any) -> None:
    once = AsyncOnefold(database, principal=single_principal, source="shop", pages="/onefold")
    app = FastAPI()

    @app.post("/orders", status_code=201)
    @once.idempotent(expiry="new")
    async def order(item: str, tx: Tx[Any]) -> dict[str, str]:
        await tx.connection.execute("SELECT 1")
        await tx.publish("order.placed", {"item": item}, key=item)
        return {"item": item}

    once.install(app)
    assert await once.migrate()
    async with calling(app) as client:
        for key in ('"1"', '"2"'):
            first = await client.post("/orders?item=tea", key=key)
            again = await client.post("/orders?item=tea", key=key)
            assert (first.status_code, again.status_code, replayed(again)) == (201, 201, True)
            assert first.content == again.content
            other = await client.post("/orders?item=gold", key=key)
            assert (other.status_code, problem(other)) == (422, "key-reused")
    assert await once.migrate() == []
    await once.close()


async def test_what_a_handler_registers_with_psycopg_is_for_its_own_request(postgres_dsn: str) -> None:
    async with AsyncConnectionPool(postgres_dsn, min_size=0, max_size=1, configure=_touch_adapters, open=False) as pool:
        database = AsyncPsycopgDatabase(pool)
        seen = []
        for _ in range(2):
            connection = await database.acquire()
            cursor = await connection.handle.execute("SELECT 1::int4")
            seen.append(await cursor.fetchone())
            connection.handle.adapters.register_loader("int4", TheirLoader)
            cursor = await connection.handle.execute("SELECT 1::int4")
            seen.append(await cursor.fetchone())
            await connection.release()
    assert seen == [(1,), ("theirs",)] * 2


async def _touch_adapters(connection: psycopg.AsyncConnection[Any]) -> None:
    connection.adapters.register_loader("json", TheirLoader)


def test_psycopg_s_own_adapters_for_all_may_be_changed_too(postgres_dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = psycopg.adapt.AdaptersMap(psycopg.adapters)
    for name in TYPES:
        theirs.register_loader(name, TheirLoader)
    monkeypatch.setattr("psycopg.postgres.adapters", theirs)
    with ConnectionPool(postgres_dsn, min_size=0, max_size=1, open=True) as pool:
        connection = PsycopgDatabase(pool).acquire()
        assert connection.handle.execute("SELECT 1::int4").fetchone() == ("theirs",)
        assert connection.fetch(VALUES) == PLAIN
        connection.release()


@pytest.mark.parametrize("name", ["bool", "int2", "int4", "int8", "text", "bytea"])
async def test_an_engine_whose_driver_has_codecs_of_its_own_is_refused_at_once_by_name(
    postgres_dsn: str, name: str
) -> None:
    engine = create_async_engine(postgres_dsn.replace("postgresql", "postgresql+psycopg"))

    @event.listens_for(engine.sync_engine, "connect")
    def theirs(connection: Any, _: object) -> None:
        for loader in (TheirLoader, TheirBinaryLoader):
            connection.driver_connection.adapters.register_loader(name, loader)

    once = AsyncOnefold(engine, principal=single_principal)
    with pytest.raises(ConfigurationError, match=f"a codec of their own for {name}: they read .* as 'theirs'"):
        await once.migrate()
    await once.close()
    await engine.dispose()
