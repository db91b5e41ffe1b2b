"""Drivers by their public API: taken for each version that their private names were not tested with."""

from __future__ import annotations

import ast
import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg.types.string import TextLoader
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from onefold._kernel.effects import Boundary, Statement
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.public_drivers import PUBLIC_ONLY
from onefold._kernel.runners import run_async
from onefold.brokers._local_schema import MIGRATIONS
from onefold.brokers.local import LocalBroker
from onefold.db import _asyncpg_fast, _psycopg_fast
from onefold.db._asyncpg_fast import FastConnection
from onefold.db._asyncpg_public import PublicConnection
from onefold.db._migrations import migrate
from onefold.db._psycopg_public import AsyncPsycopgConnection, PsycopgConnection
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from onefold.errors import ConfigurationError, StoreUnavailable
from tests.db.drivers import public_only
from tests.support.patience import PATIENCE_S

ONE = Statement("SELECT 1")


@pytest.fixture
async def pool(postgres_dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool:
        yield pool


def nothing(patch: pytest.MonkeyPatch) -> None:
    """As it is."""


def forbid(patch: pytest.MonkeyPatch) -> None:
    patch.setenv(PUBLIC_ONLY, "1")


def install_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_asyncpg_fast, "TESTED", ((0, 99),))
    patch.setattr(_psycopg_fast, "TESTED", ((3, 99),))


def install_another_pool(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_asyncpg_fast, "TESTED", ())
    patch.setattr(_psycopg_fast, "TESTED_POOLS", ((3, 99),))


def rename_something(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_asyncpg_fast, "_NAMES", {asyncpg.Pool: "_holders _renamed"})
    patch.setattr(_psycopg_fast, "_NAMES", {psycopg.BaseConnection: "_check_connection_ok _renamed"})


def rename_an_attribute(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_asyncpg_fast, "_NAMES", {asyncpg.Connection: "_protocol _renamed"})
    patch.setattr(_psycopg_fast, "_ATTRIBUTES", {psycopg.BaseConnection: "_autocommit _renamed"})


@pytest.mark.parametrize(
    "change", [nothing, forbid, install_another, install_another_pool, rename_something, rename_an_attribute]
)
async def test_private_names_are_used_where_they_were_tested_and_are_there(
    change: Callable[[pytest.MonkeyPatch], None], postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    kinds: set[type[object]] = set()
    for database in (AsyncpgDatabase(postgres_dsn), AsyncPsycopgDatabase(postgres_dsn)):
        connection = await database.acquire()
        kinds.add(type(connection))
        await connection.release()
        await database.close()
    on_threads = PsycopgDatabase(postgres_dsn)
    taken = on_threads.acquire()
    kinds.add(type(taken))
    taken.release()
    on_threads.close()
    if change is nothing:
        assert kinds == {FastConnection, _psycopg_fast.FastConnection, _psycopg_fast.AsyncFastConnection}
    else:
        assert kinds == {PublicConnection, PsycopgConnection, AsyncPsycopgConnection}


def test_the_notices_and_adapters_of_the_applications_connection_are_there_for_a_handler(postgres_dsn: str) -> None:
    notices: list[str | None] = []

    def configure(connection: psycopg.Connection[Any]) -> None:
        connection.add_notice_handler(lambda notice: notices.append(notice.message_primary))
        connection.adapters.register_loader("int4", TextLoader)

    with ConnectionPool(postgres_dsn, min_size=1, max_size=1, configure=configure, open=True) as pool:
        with public_only():
            connection = PsycopgDatabase(pool).acquire()
        connection.batch((Boundary.BEGIN,))
        handle = connection.handle
        handle.adapters.register_loader("int8", TextLoader)
        handle.execute("DO $$ BEGIN RAISE NOTICE 'heard'; END $$")
        assert notices == ["heard"]
        assert handle.execute("SELECT 1::int4, 2::int8").fetchone() == ("1", "2")
        connection.batch((Boundary.COMMIT,))
        assert connection.fetch(Statement("SELECT 1::int4, 2::int8")) == [(1, 2)]
        connection.release()
        with pool.connection() as own:
            own.execute("DO $$ BEGIN RAISE NOTICE 'heard again'; END $$")
            assert notices == ["heard", "heard again"]
            assert own.execute("SELECT 1::int4, 2::int8").fetchone() == ("1", 2)


async def test_requests_get_connections_in_the_order_in_which_they_asked(pool: Any) -> None:
    with public_only():
        database = AsyncpgDatabase(pool)
    order: list[int] = []

    async def use(number: int) -> None:
        connection = await database.acquire()
        order.append(number)
        await connection.batch((Boundary.BEGIN, ONE, Boundary.COMMIT))
        await connection.release()

    first = await database.acquire()
    waiting = [asyncio.create_task(use(number)) for number in range(5)]
    for _ in range(5):
        await asyncio.sleep(0)
    late = asyncio.create_task(use(5))  # it runs before the one that is woken now
    await first.release()
    await asyncio.gather(*waiting, late)
    assert order == [0, 1, 2, 3, 4, 5]


async def test_a_place_in_the_line_is_not_lost_with_a_request_that_gives_up(pool: Any) -> None:
    with public_only():
        database = AsyncpgDatabase(pool, acquire_timeout_s=PATIENCE_S)
    for _ in range(3):
        connection = await database.acquire()
        waiting = asyncio.create_task(database.acquire())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await connection.discard()
        await connection.discard()  # as whoever could not release it does
    async with asyncio.timeout(PATIENCE_S):
        await (await database.acquire()).release()


async def test_a_codec_for_a_type_that_onefold_reads_is_refused_at_first_use(postgres_dsn: str) -> None:
    async def init(connection: Any) -> None:
        await connection.set_type_codec("bool", schema="pg_catalog", encoder=str, decoder=str)

    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=1, init=init) as pool:
        with public_only():
            database = AsyncpgDatabase(pool)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="codec of their own for bool"):
                await database.acquire()


#: What a handler makes of a value and of what is read, each on its own.
CODECS: dict[str, tuple[str, Callable[[Any], str], Callable[[str], Any]]] = {
    "bool is read as text": ("bool", str, str),
    "text is written in capitals": ("text", str.upper, str),
    "int8 is written as 7": ("int8", lambda _: "7", int),
}


@pytest.mark.parametrize(("name", "encode", "decode"), CODECS.values(), ids=CODECS)
async def test_a_codec_that_a_handler_sets_spoils_neither_its_own_rows_nor_the_next_request(
    name: str, encode: Callable[[Any], str], decode: Callable[[str], Any], pool: Any
) -> None:
    with public_only():
        database = AsyncpgDatabase(pool)
    await pool.execute("CREATE TABLE thing (id int8, name text)")
    insert = Statement("INSERT INTO thing VALUES ($1::int8, $2::text)", (1, "one"))
    for ends in ((insert, Boundary.COMMIT), (Boundary.COMMIT,)):  # with rows of ours, and without
        connection = await database.acquire()
        await connection.batch((Boundary.BEGIN,))
        await connection.handle.set_type_codec(name, schema="pg_catalog", encoder=encode, decoder=decode)
        if insert in ends:
            with pytest.raises(ConfigurationError, match=f"codec of their own for {name}"):
                await connection.batch(ends)
        else:
            await connection.batch(ends)
        await connection.release()
        connection = await database.acquire()
        assert await connection.fetch(Statement("SELECT true, 8::int8, 'text'::text")) == [(True, 8, "text")]
        await connection.batch((Boundary.BEGIN, insert, Boundary.COMMIT))
        assert await connection.fetch(Statement("DELETE FROM thing RETURNING id, name")) == [(1, "one")]
        await connection.release()


async def test_a_pool_that_reads_json_as_objects_carries_the_messages_of_the_local_broker(postgres_dsn: str) -> None:
    async def init(connection: Any) -> None:
        await connection.set_type_codec("json", schema="pg_catalog", encoder=json.dumps, decoder=json.loads)

    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=2, init=init) as pool:
        with public_only():
            database = AsyncpgDatabase(pool)
        await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
        broker = LocalBroker(database)
        subscription = await broker.subscribe("billing", ["orders"])
        assert await broker.publish([Message(id="1", source="shop", topic="orders", data=b"{}")]) == [None]
        [delivery] = await subscription.receive(1, PATIENCE_S)
        await subscription.ack([delivery])
        assert list(await subscription.receive(1, 0.0)) == []
        await subscription.close()
        await broker.close()


def private_names(path: Path) -> set[str]:
    """Attributes with a leading underscore that are not the object's own."""
    return {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and re.match(r"_(?!_)", node.attr)
        if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))
    }


def test_private_names_of_drivers_are_in_files_that_only_tested_versions_use() -> None:
    folder = Path(_asyncpg_fast.__file__).parent
    found = {
        path.name for path in folder.glob("*.py") if re.search("asyncpg|psycopg", path.name) and private_names(path)
    }
    assert found == {"_asyncpg_fast.py", "_asyncpg_statements.py", "_psycopg_fast.py", "_psycopg_statements.py"}


def test_the_page_names_the_versions_that_private_names_are_used_with() -> None:
    page = (Path(__file__).parents[2] / "docs" / "postgres.md").read_text()
    [[*asyncpg_version]] = _asyncpg_fast.TESTED
    [[*psycopg_version]] = {*_psycopg_fast.TESTED, *_psycopg_fast.TESTED_POOLS}
    assert "asyncpg {}.{}, psycopg and psycopg-pool {}.{}".format(*asyncpg_version, *psycopg_version) in page


# --- a connection that fails while it is taken or given back ---------------------------------------------------


def refuse_autocommit(patch: pytest.MonkeyPatch, kind: type[Any], refused: bool) -> None:
    """psycopg sets autocommit through a lock and a check of its state: both can fail, or be cancelled."""

    def fail(self: Any, value: bool) -> Any:
        raise psycopg.OperationalError("no autocommit today")

    async def fail_later(self: Any, value: bool) -> Any:
        fail(self, value)

    patch.undo()
    forbid(patch)
    if refused:
        patch.setattr(kind, "_set_autocommit", fail if kind is PsycopgConnection else fail_later)


def test_a_connection_that_fails_while_it_is_taken_or_given_back_frees_its_place(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch)
    with ConnectionPool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = PsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        refuse_autocommit(monkeypatch, PsycopgConnection, True)
        with pytest.raises(StoreUnavailable, match="no autocommit today"):
            database.acquire()
        refuse_autocommit(monkeypatch, PsycopgConnection, False)
        taken = database.acquire()
        refuse_autocommit(monkeypatch, PsycopgConnection, True)
        taken.release()
        refuse_autocommit(monkeypatch, PsycopgConnection, False)
        again = database.acquire()
        assert again.fetch(ONE) == [(1,)]
        again.release()


async def test_a_connection_that_fails_while_a_task_takes_it_or_gives_it_back_frees_its_place(
    postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    forbid(monkeypatch)
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncPsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        refuse_autocommit(monkeypatch, AsyncPsycopgConnection, True)
        with pytest.raises(StoreUnavailable, match="no autocommit today"):
            await database.acquire()
        refuse_autocommit(monkeypatch, AsyncPsycopgConnection, False)
        taken = await database.acquire()
        refuse_autocommit(monkeypatch, AsyncPsycopgConnection, True)
        await taken.release()
        refuse_autocommit(monkeypatch, AsyncPsycopgConnection, False)
        again = await database.acquire()
        assert await again.fetch(ONE) == [(1,)]
        await again.release()
