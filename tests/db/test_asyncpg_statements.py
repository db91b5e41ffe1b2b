"""One statement by itself on asyncpg: whatever way it goes, it is read by the right codecs, seen by who listens, and
forgotten where it is another one now."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import asyncpg
import pytest

from onefold._kernel.effects import Boundary, HandlerStatement, Statement
from onefold.db._asyncpg_statements import _as_written
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import ConnectionLost, OnefoldError, StoreUnavailable
from tests.db.asyncpg_ways import database, fast_only, way

__all__ = ["database", "way"]

BEGIN, COMMIT, ROLLBACK = Boundary.BEGIN, Boundary.COMMIT, Boundary.ROLLBACK
FIVE = "SELECT $1::bigint AS found"
ALL = "SELECT * FROM thing"


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


async def test_a_type_that_was_altered_is_refused_once(database: AsyncpgDatabase, postgres_dsn: str) -> None:
    elsewhere = await asyncpg.connect(postgres_dsn)
    await elsewhere.execute("CREATE TYPE place AS (row int, seat int)")
    await elsewhere.execute("CREATE TABLE booking (at place)")
    await elsewhere.execute("INSERT INTO booking VALUES ((7, 12))")
    connection = await database.acquire()
    booked = HandlerStatement("SELECT at FROM booking")
    await connection.batch((BEGIN,))
    assert [tuple((await connection.query(booked)).rows[0][0]) for _ in range(2)] == [(7, 12)] * 2
    await connection.batch((ROLLBACK,))
    await elsewhere.execute("ALTER TYPE place ADD ATTRIBUTE hall text")
    await connection.batch((BEGIN,))
    with pytest.raises(OnefoldError):
        await connection.query(booked)
    await connection.batch((ROLLBACK,))
    await connection.batch((BEGIN,))
    [(place,)] = (await connection.query(booked)).rows
    assert tuple(place) == (7, 12, None)
    await connection.batch((ROLLBACK,))
    await elsewhere.close()
    await connection.discard()


@pytest.mark.parametrize("verb", ["query", "fetch"])
async def test_what_a_session_has_lost_costs_one_transaction_at_the_most(postgres_dsn: str, verb: str) -> None:
    """A handler's DEALLOCATE ALL, or a pooler that changes sessions under us. asyncpg would go on to look for it."""
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncpgDatabase(pool)

        async def use(*, loses: bool = False) -> Any:
            connection = await database.acquire()
            try:
                await connection.batch((BEGIN,))
                if loses:
                    await connection.handle.execute("DEALLOCATE ALL")
                if verb == "query":
                    return (await connection.query(HandlerStatement(FIVE, (5,)))).rows
                return await connection.fetch(Statement(FIVE, (5,)))
            finally:
                try:
                    await connection.batch((ROLLBACK,))
                except StoreUnavailable:
                    await connection.discard()
                else:
                    await connection.release()

        for _ in range(2):  # the second time nothing of ours is prepared any more
            assert await use() == [(5,)]
            with suppress(StoreUnavailable):
                await use(loses=True)
        assert [await use(), await use()] == [[(5,)]] * 2
        await database.close()


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


class LookAlike:
    """A wrapper of a function that shows its attributes as its own, as those of instrumentation libraries do."""

    def __init__(self, function: Any) -> None:
        self._function = function

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)


def test_a_function_that_was_wrapped_before_onefold_was_imported_is_not_taken_for_asyncpgs() -> None:
    fetch: Any = vars(asyncpg.Connection)["fetch"]

    @functools.wraps(fetch)
    async def watched(*args: Any, **kwargs: Any) -> Any:
        return await fetch(*args, **kwargs)

    assert _as_written(fetch) is fetch
    assert _as_written(watched) is None
    assert _as_written(LookAlike(fetch)) is None


async def test_a_connection_that_the_handler_gave_back_executes_nothing_in_the_transaction_of_its_next_user(
    postgres_dsn: str,
) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncpgDatabase(pool)
        connection = await database.acquire()
        await connection.batch((BEGIN,))
        for _ in range(2):
            await connection.query(HandlerStatement(FIVE, (5,)))
        await connection.batch((ROLLBACK,))
        handle: Any = connection.handle
        await pool.release(handle)
        async with pool.acquire() as other, other.transaction():
            with pytest.raises(OnefoldError):
                await connection.query(HandlerStatement(FIVE, (5,)))
        await connection.discard()
        await database.close()


async def test_what_a_natural_write_sets_in_its_session_is_reset_before_the_next_request(
    database: AsyncpgDatabase,
) -> None:
    """As a trigger of the table may. The handler itself never had the connection."""
    setting = HandlerStatement("SELECT set_config('app.tenant', $1::text, false)", ("acme",))
    for _ in range(2):  # asyncpg knows the statement the second time
        connection = await database.acquire()
        await connection.batch((BEGIN,))
        await connection.query(setting)
        await connection.batch((COMMIT,))
        await connection.release()
    connection = await database.acquire()
    [(tenant,)] = await connection.fetch(Statement("SELECT current_setting('app.tenant', true)"))
    assert not tenant
    await connection.release()


@fast_only
async def test_what_onefold_executes_is_not_taken_for_something_the_handler_has(database: AsyncpgDatabase) -> None:
    connection: Any = await database.acquire()
    await connection.batch((BEGIN,))
    assert connection.handle is not None
    for _ in range(3):
        await connection.fetch(Statement(FIVE, (5,)))
    assert not connection.executed
    await connection.query(HandlerStatement(FIVE, (5,)))
    assert connection.executed
    await connection.discard()


async def test_a_statement_with_values_that_is_a_batch_by_itself_says_how_many_rows_it_has_changed(
    database: AsyncpgDatabase,
) -> None:
    connection = await database.acquire()
    await connection.batch((BEGIN, Statement("CREATE TABLE thing (id bigint)")))
    for number in range(3):
        assert await connection.batch((Statement("INSERT INTO thing VALUES ($1::bigint)", (number,)),)) == 1
    await connection.discard()


@pytest.mark.parametrize("verb", ["query", "fetch"])
async def test_a_connection_that_is_closed_is_lost(database: AsyncpgDatabase, verb: str) -> None:
    connection = await database.acquire()
    statement: Any = HandlerStatement(FIVE, (5,)) if verb == "query" else Statement(FIVE, (5,))
    ask = getattr(connection, verb)
    await connection.batch((BEGIN,))
    for _ in range(2):
        await ask(statement)
    connection.handle.terminate()
    with pytest.raises(ConnectionLost):
        await ask(statement)
    await connection.discard()
