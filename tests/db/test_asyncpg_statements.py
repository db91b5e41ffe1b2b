"""One statement by itself on asyncpg: whatever way it goes, it is read by the right codecs, seen by who listens, and
forgotten where it is another one now."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import nullcontext
from typing import Any

import asyncpg
import pytest

from onefold._kernel.effects import Boundary, HandlerStatement, Statement
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import ConnectionLost, OnefoldError
from tests.db.drivers import public_only

BEGIN, ROLLBACK = Boundary.BEGIN, Boundary.ROLLBACK
FIVE = "SELECT $1::bigint AS found"
ALL = "SELECT * FROM thing"


@pytest.fixture(autouse=True, params=["fast", "public"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """How asyncpg is used."""
    with public_only() if request.param == "public" else nullcontext():
        yield request.param


fast_only = pytest.mark.parametrize("way", ["fast"], indirect=True)


@pytest.fixture
async def database(postgres_dsn: str) -> AsyncIterator[AsyncpgDatabase]:
    database = AsyncpgDatabase(postgres_dsn)
    yield database
    await database.close()


@fast_only
async def test_the_handlers_codecs_read_what_is_its_own_and_nothing_else(database: AsyncpgDatabase) -> None:
    connection = await database.acquire()
    await connection.batch((BEGIN,))

    async def ask_both() -> tuple[Any, Any]:
        asked = await connection.query(HandlerStatement(FIVE, (5,)))
        assert asked.columns == ("found",)
        return asked.rows, await connection.fetch(Statement(FIVE, (5,)))

    for _ in range(2):  # asyncpg knows the statement the second time
        assert await ask_both() == ([(5,)], [(5,)])
    await connection.handle.set_type_codec(
        "int8", schema="pg_catalog", encoder=str, decoder=lambda text: f"<{text}>", format="text"
    )
    for _ in range(2):
        assert await ask_both() == ([("<5>",)], [(5,)])
    await connection.discard()


@pytest.mark.parametrize("verb", ["query", "fetch"])
async def test_a_table_that_was_altered_is_refused_once(
    database: AsyncpgDatabase, postgres_dsn: str, verb: str
) -> None:
    elsewhere = await asyncpg.connect(postgres_dsn)
    await elsewhere.execute("CREATE TABLE thing (id bigint)")
    await elsewhere.execute("INSERT INTO thing VALUES (1)")
    connection = await database.acquire()

    async def ask() -> Any:
        return (
            (await connection.query(HandlerStatement(ALL))).rows
            if verb == "query"
            else await connection.fetch(Statement(ALL))
        )

    await connection.batch((BEGIN,))
    assert [await ask() for _ in range(2)] == [[(1,)]] * 2
    await connection.batch((ROLLBACK,))
    await elsewhere.execute("ALTER TABLE thing ADD more text")
    await connection.batch((BEGIN,))
    with pytest.raises(OnefoldError):
        await ask()
    await connection.batch((ROLLBACK,))
    await connection.batch((BEGIN,))
    assert await ask() == [(1, None)]
    await connection.batch((ROLLBACK,))
    await elsewhere.close()
    await connection.discard()


@fast_only
async def test_outside_of_a_transaction_an_altered_table_is_read_at_once(
    database: AsyncpgDatabase, postgres_dsn: str
) -> None:
    elsewhere = await asyncpg.connect(postgres_dsn)
    await elsewhere.execute("CREATE TABLE thing (id bigint)")
    connection = await database.acquire()
    for _ in range(2):
        assert await connection.fetch(Statement(ALL)) == []
    await elsewhere.execute("ALTER TABLE thing ADD more text")
    await elsewhere.execute("INSERT INTO thing VALUES (1)")
    assert await connection.fetch(Statement(ALL)) == [(1, None)]
    await elsewhere.close()
    await connection.release()


def wrap(seen: list[str], patch: pytest.MonkeyPatch) -> Any:
    execute = vars(asyncpg.Connection)["_execute"]

    async def watched(self: Any, query: str, *args: Any, **kwargs: Any) -> Any:
        seen.append(query)
        return await execute(self, query, *args, **kwargs)

    patch.setattr(asyncpg.Connection, "_execute", watched)
    return asyncpg.Connection


def inherit(seen: list[str], _: pytest.MonkeyPatch) -> Any:
    class Watched(asyncpg.Connection):
        async def fetch(self, query: str, *args: Any, **kwargs: Any) -> Any:
            seen.append(query)
            return await super().fetch(query, *args, **kwargs)

    return Watched


@pytest.mark.parametrize("watch", [wrap, inherit])
async def test_who_watches_asyncpg_sees_what_is_executed_for_the_handler(
    watch: Callable[[list[str], pytest.MonkeyPatch], Any], postgres_dsn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    async with asyncpg.create_pool(postgres_dsn, min_size=1, connection_class=watch(seen, monkeypatch)) as pool:
        database = AsyncpgDatabase(pool)
        connection = await database.acquire()
        await connection.batch((BEGIN,))
        for _ in range(3):
            await connection.query(HandlerStatement(FIVE, (5,)))
        await connection.batch((ROLLBACK,))
        await connection.release()
        await database.close()
    assert seen.count(FIVE) == 3


@fast_only
async def test_a_statement_that_asyncpg_knows_is_not_looked_for_by_it(
    database: AsyncpgDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    look, looked = vars(asyncpg.Connection)["_get_statement"], []

    async def note(self: Any, query: str, *args: Any, **kwargs: Any) -> Any:
        looked.append(query)
        return await look(self, query, *args, **kwargs)

    monkeypatch.setattr(asyncpg.Connection, "_get_statement", note)
    connection = await database.acquire()
    await connection.batch((BEGIN,))
    for _ in range(3):
        await connection.query(HandlerStatement(FIVE, (5,)))
        await connection.fetch(Statement(FIVE, (5,)))
    assert looked.count(FIVE) == 2  # one with the codecs of the handler's, one without
    await connection.batch((ROLLBACK,))
    await connection.release()


async def test_a_query_logger_of_the_handlers_is_told_of_each_statement(database: AsyncpgDatabase) -> None:
    seen: list[str] = []
    connection = await database.acquire()
    await connection.batch((BEGIN,))
    handle: Any = connection.handle

    async def note(record: Any) -> None:
        seen.append(record.query)

    for _ in range(2):
        await connection.query(HandlerStatement(FIVE, (5,)))
    with handle.query_logger(note):
        for _ in range(2):
            await connection.query(HandlerStatement(FIVE, (5,)))
    await connection.batch((ROLLBACK,))
    assert seen.count(FIVE) == 2
    await connection.discard()


async def test_a_connection_that_is_closed_is_lost(database: AsyncpgDatabase) -> None:
    connection = await database.acquire()
    await connection.batch((BEGIN,))
    for _ in range(2):
        await connection.query(HandlerStatement(FIVE, (5,)))
    connection.handle.terminate()
    with pytest.raises(ConnectionLost):
        await connection.query(HandlerStatement(FIVE, (5,)))
    await connection.discard()
