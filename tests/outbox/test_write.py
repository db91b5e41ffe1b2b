"""Publishing in a transaction: over every driver an event is there if and only if its transaction committed."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import psycopg
import pytest
import sqlalchemy
from fastapi import FastAPI
from fastapi.testclient import TestClient
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Onefold, Transaction, single_principal
from onefold._http.fastapi_dependencies import Tx
from onefold._kernel.effects import Statement
from onefold._outbox.sql import STATEMENTS
from onefold._outbox.write import EVENTS_MAX
from onefold.errors import ConfigurationError, MessageInvalid, OnefoldError, ProgrammerError

DRIVERS = (
    "sqlite", "sqlite async", "asyncpg", "psycopg", "psycopg async",
    "sqlalchemy postgres", "sqlalchemy postgres async", "sqlalchemy sqlite", "sqlalchemy sqlite async",
)  # fmt: skip


class Refused(Exception):
    """What a test's own code raises."""


@dataclass(slots=True)
class Stage:
    """A Onefold of either colour, and a look at its outbox from outside."""

    once: Onefold | AsyncOnefold
    address: str

    async def transact(self, work: Callable[[Transaction[Any]], None]) -> None:
        if isinstance(self.once, AsyncOnefold):
            async with self.once.transaction() as tx:
                work(tx)
        else:
            await asyncio.to_thread(self._transact_here, self.once, work)

    def _transact_here(self, once: Onefold, work: Callable[[Transaction[Any]], None]) -> None:
        with once.transaction() as tx:
            work(tx)

    async def cancel(self, event_id: str, *, then: type[Exception] | None = None) -> bool:
        if isinstance(self.once, AsyncOnefold):
            async with self.once.transaction() as tx:
                found: bool = await tx.cancel(event_id)
                if then is not None:
                    raise then
                return found
        return await asyncio.to_thread(self._cancel_here, self.once, event_id, then)

    def _cancel_here(self, once: Onefold, event_id: str, then: type[Exception] | None) -> bool:
        with once.transaction() as tx:
            found: bool = tx.cancel(event_id)
            if then is not None:
                raise then
            return found

    def change(self, sql: str) -> None:
        if self.address.startswith("postgresql"):
            with psycopg.connect(self.address) as server:
                server.execute(sql.encode())
        else:
            with closing(sqlite3.connect(self.address)) as file:
                file.execute(sql)
                file.commit()

    def rows(self, columns: str = "topic, key, version, data") -> list[tuple[Any, ...]]:
        query = f"SELECT {columns} FROM onefold_outbox ORDER BY position"
        if self.address.startswith("postgresql"):
            with psycopg.connect(self.address) as server:
                return server.execute(query.encode()).fetchall()
        with closing(sqlite3.connect(self.address)) as file:
            return file.execute(query).fetchall()


@pytest.fixture(params=DRIVERS)
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    driver: str = request.param
    on_postgres = "postgres" in driver or "pg" in driver
    address = request.getfixturevalue("postgres_dsn") if on_postgres else str(request.getfixturevalue("sqlite_path"))
    given: Any = address
    after: Callable[[], Any] | None = None
    if driver == "asyncpg":
        given = await asyncpg.create_pool(address, min_size=0, max_size=4)
        after = given.close
    elif driver.startswith("psycopg"):
        pool = AsyncConnectionPool if driver.endswith("async") else ConnectionPool
        given = pool(address, min_size=0, max_size=4, open=False)
        opened = given.open()
        if opened is not None:
            await opened
        after = given.close
    elif driver.startswith("sqlalchemy"):
        dialect = "postgresql+psycopg" if on_postgres else "sqlite+aiosqlite" if driver.endswith("async") else "sqlite"
        url = address.replace("postgresql", dialect, 1) if on_postgres else f"{dialect}:///{address}"
        given = create_async_engine(url) if driver.endswith("async") else sqlalchemy.create_engine(url)
        after = given.dispose
    once = (AsyncOnefold if driver.endswith("async") or driver == "asyncpg" else Onefold)(given, source="shop")
    applied = once.migrate()
    if not isinstance(applied, list):
        await applied
    yield Stage(once, address)
    closing_ = once.close()
    if closing_ is not None:
        await closing_
    if after is not None and (ended := after()) is not None:
        await ended


async def test_an_event_is_there_when_its_transaction_has_committed(stage: Stage) -> None:
    await stage.transact(lambda tx: void(tx.publish("order.placed", {"total": 12}, key="ord-1")))
    assert stage.rows() == [("order.placed", "ord-1", 1, b'{"total":12}')]
    [(event_id, source, time, kind, headers)] = stage.rows("id, source, time, content_type, headers")
    assert UUID(event_id).version == 7
    assert (source, kind, headers) == ("shop", "application/json", "{}")
    assert abs(datetime.fromisoformat(time) - datetime.now(UTC)) < timedelta(minutes=1)


async def test_an_event_of_a_transaction_that_failed_never_was(stage: Stage) -> None:
    def work(tx: Transaction[Any]) -> None:
        void(tx.publish("order.placed", {}, key="ord-1"))
        raise Refused

    with pytest.raises(Refused):
        await stage.transact(work)
    assert stage.rows() == []


async def test_versions_count_without_gaps_per_key_whatever_rolled_back_in_between(stage: Stage) -> None:
    def failing(tx: Transaction[Any]) -> None:
        void(tx.publish("order.placed", {}, key="a"))
        raise Refused

    await stage.transact(lambda tx: void(tx.publish("order.placed", 1, key="a"), tx.publish("order.paid", 1, key="a")))
    with pytest.raises(Refused):
        await stage.transact(failing)
    await stage.transact(lambda tx: void(*(tx.publish("order.placed", n, key=key) for n in (2, 3) for key in "ba")))
    found: dict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)
    for topic, key, version, data in stage.rows():
        found[topic, key].append((version, json.loads(data)))
    assert found == {
        ("order.placed", "a"): [(1, 1), (2, 2), (3, 3)],
        ("order.placed", "b"): [(1, 2), (2, 3)],
        ("order.paid", "a"): [(1, 1)],
    }


async def test_an_event_without_a_key_has_no_version(stage: Stage) -> None:
    await stage.transact(lambda tx: void(tx.publish("mail.sent", b"\x00\xff", content_type="application/x-mail")))
    assert stage.rows("key, epoch, version, data, content_type") == [
        (None, None, None, b"\x00\xff", "application/x-mail")
    ]


async def test_a_savepoint_that_rolls_back_takes_its_events_along(stage: Stage) -> None:
    async def work(once: AsyncOnefold) -> None:
        async with once.transaction() as tx:
            await tx.publish("kept.first", 1)
            with suppress(Refused):
                async with tx.savepoint():
                    await tx.publish("gone", 2)
                    async with tx.savepoint():
                        await tx.publish("gone.too", 3)
                    raise Refused
            async with tx.savepoint():
                await tx.publish("kept.last", 4)

    def work_here(once: Onefold) -> None:
        with once.transaction() as tx:
            void(tx.publish("kept.first", 1))
            with suppress(Refused), tx.savepoint():
                void(tx.publish("gone", 2))
                with tx.savepoint():
                    void(tx.publish("gone.too", 3))
                raise Refused
            with tx.savepoint():
                void(tx.publish("kept.last", 4))

    once = stage.once
    await (work(once) if isinstance(once, AsyncOnefold) else asyncio.to_thread(work_here, once))
    assert [topic for (topic,) in stage.rows("topic")] == ["kept.first", "kept.last"]


async def test_overlapping_transactions_over_the_same_keys_neither_deadlock_nor_repeat_a_version(stage: Stage) -> None:
    def work(turn: int, tx: Transaction[Any]) -> None:
        for key in ("a", "b", "c") if turn % 2 else ("c", "b", "a"):
            void(tx.publish("order.placed", turn, key=key))

    await asyncio.gather(*(stage.transact(partial(work, turn)) for turn in range(20)))
    for key in "abc":
        versions = [version for _, k, version, _ in stage.rows() if k == key]
        assert versions == list(range(1, 21))  # also in the order of their positions


class Order(BaseModel):
    total: Decimal


@pytest.mark.parametrize(
    ("data", "body"),
    [
        ({"at": datetime(2026, 1, 2, tzinfo=UTC), "id": UUID(int=7), "of": Decimal("1.10")},
         '{"at":"2026-01-02T00:00:00+00:00","id":"00000000-0000-0000-0000-000000000007","of":"1.10"}'),
        (Order(total=Decimal("1.10")), '{"total":"1.10"}'),
        ({"name": "Ærøskøbing"}, '{"name":"Ærøskøbing"}'),
        (None, "null"),
    ],
)  # fmt: skip
async def test_data_is_written_as_json(sqlite_path: Any, data: object, body: str) -> None:
    stage = Stage(Onefold(sqlite_path, source="shop"), str(sqlite_path))
    await stage.transact(lambda tx: void(tx.publish("order.placed", data)))
    assert stage.rows("data") == [(body.encode(),)]


NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("topic", "data", "options", "says"),
    [
        pytest.param("order placed", 1, {}, "topic 'order placed'", id="a topic with a space"),
        pytest.param("", 1, {}, "topic ''", id="an empty topic"),
        pytest.param("t" * 201, 1, {}, "at most 200", id="a long topic"),
        pytest.param("t", object(), {}, "cannot be written as JSON", id="data that is not JSON"),
        pytest.param("t", float("nan"), {}, "cannot be written as JSON", id="not a number"),
        pytest.param("t", b"x", {}, "say what they are with content_type", id="bytes without a type"),
        pytest.param("t", b"x", {"content_type": "é"}, "not a media type", id="an odd type"),
        pytest.param("t", "x" * 2000, {}, "2002 bytes, at most 1000", id="too large"),
        pytest.param("t", 1, {"key": ""}, "1 to 255 printable", id="an empty key"),
        pytest.param("t", 1, {"key": "k" * 256}, "1 to 255 printable", id="a long key"),
        pytest.param("t", 1, {"key": "a\nb"}, "1 to 255 printable", id="a key with a line end"),
        pytest.param("t", 1, {"key": 1.5}, "1.5", id="a key that is not a name"),
        pytest.param("t", 1, {"headers": {"CE-id": "x"}}, "header 'CE-id'", id="a header in capitals"),
        pytest.param("t", 1, {"headers": {"ce-id": "x"}}, "onefold's own", id="a header of ours"),
        pytest.param("t", 1, {"headers": {"a": "é"}}, "printable ASCII", id="a header that is not ASCII"),
        pytest.param("t", 1, {"headers": {"a": 1}}, "printable ASCII", id="a header that is not text"),
        pytest.param("t", 1, {"headers": {f"h{n}": "" for n in range(33)}}, "at most 32", id="many headers"),
        pytest.param("t", 1, {"not_before": NOW.replace(tzinfo=None)}, "no time zone", id="a naive time"),
        pytest.param("t", 1, {"not_before": NOW, "key": "a"}, "both a key", id="a delayed event with a key"),
    ],
)
async def test_what_cannot_be_published_is_refused_at_once_and_harms_nothing_else(
    sqlite_path: Any, topic: str, data: object, options: Mapping[str, Any], says: str
) -> None:
    stage = Stage(Onefold(sqlite_path, source="shop", event_bytes_max=1000), str(sqlite_path))

    def work(tx: Transaction[Any]) -> None:
        void(tx.publish("first", 1))
        with pytest.raises(MessageInvalid) as refused:
            void(tx.publish(topic, data, **options))
        assert says in str(refused.value)
        void(tx.publish("last", 2))

    await stage.transact(work)
    assert [topic for (topic,) in stage.rows("topic")] == ["first", "last"]


async def test_a_transaction_publishes_a_bounded_number_of_events(
    sqlite_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EVENTS_MAX == 10_000
    monkeypatch.setattr("onefold._outbox.write.EVENTS_MAX", 3)
    stage = Stage(Onefold(sqlite_path, source="shop"), str(sqlite_path))

    def work(tx: Transaction[Any]) -> None:
        for _ in range(3):
            void(tx.publish("t", 1))
        with pytest.raises(MessageInvalid, match="at most 3 events"):
            void(tx.publish("t", 1))

    await stage.transact(work)
    assert len(stage.rows()) == 3


async def test_an_application_without_a_name_is_told_to_take_one(sqlite_path: Any) -> None:
    stage = Stage(Onefold(sqlite_path), str(sqlite_path))
    with pytest.raises(ConfigurationError, match="source='orders'"):
        await stage.transact(lambda tx: void(tx.publish("t", 1)))


@pytest.mark.parametrize("settings", [{"source": "two words"}, {"source": ""}, {"source": "a", "event_bytes_max": 0}])
def test_an_odd_name_or_limit_is_refused_at_the_start(sqlite_path: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"source=|event_bytes_max="):
        Onefold(sqlite_path, **settings)


async def test_nothing_is_published_after_the_end(stage: Stage) -> None:
    kept: list[Transaction[Any]] = []
    await stage.transact(kept.append)
    with pytest.raises(ProgrammerError, match=r"the transaction is over.*its block has ended") as caught:
        void(kept[0].publish("t", 1))
    assert "the request's" not in str(caught.value)


async def test_a_block_that_commits_by_itself_is_found_out_and_its_events_stay_unwritten(postgres_dsn: str) -> None:
    pool = await asyncpg.create_pool(postgres_dsn, min_size=0)
    once = AsyncOnefold(pool, source="shop")
    await once.migrate()
    stage = Stage(once, postgres_dsn)

    async def work() -> None:
        async with once.transaction() as tx:
            await tx.connection.execute("COMMIT")
            await tx.publish("t", 1)

    with pytest.raises(OnefoldError, match="committed or rolled back"):
        await work()
    assert stage.rows() == []
    await once.close()
    await pool.close()


@pytest.mark.parametrize("stage", [driver for driver in DRIVERS if "async" in driver], indirect=True)
async def test_a_cancelled_block_leaves_nothing(stage: Stage) -> None:
    once = stage.once
    assert isinstance(once, AsyncOnefold)
    inside = asyncio.Event()

    async def work() -> None:
        async with once.transaction() as tx:
            await tx.publish("t", 1)
            inside.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(work())
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await stage.transact(lambda tx: void(tx.publish("after", 1)))
    assert [topic for (topic,) in stage.rows("topic")] == ["after"]


def void(*_: object) -> None:
    """For lambdas whose value nobody wants."""


# --- cancelling ---------------------------------------------------------------------------------------------


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def published(stage: Stage, *topics: str, **options: Any) -> list[str]:
    ids: list[str] = []
    await stage.transact(lambda tx: ids.extend(tx.publish(topic, {}, **options) for topic in topics))
    return ids


async def test_a_delayed_event_is_taken_back_once(stage: Stage) -> None:
    first, second = await published(stage, "mail.first", "mail.second", not_before=in_an_hour())
    assert await stage.cancel(first) is True
    assert stage.rows("topic") == [("mail.second",)]
    assert await stage.cancel(first) is False
    assert await stage.cancel("no such id") is False
    with pytest.raises(Refused):
        await stage.cancel(second, then=Refused)
    assert stage.rows("topic") == [("mail.second",)], "its transaction was rolled back, and so it is not cancelled"


async def test_a_handler_goes_on_with_its_connection_after_it_has_taken_back_an_event(stage: Stage) -> None:
    """On Postgres with the role it has taken."""
    [first] = await published(stage, "mail.first", not_before=in_an_hour())
    on_postgres = stage.address.startswith("postgresql")
    if on_postgres:
        stage.change("CREATE ROLE tenant; GRANT SELECT, DELETE ON onefold_outbox TO tenant")
    before = "SET LOCAL ROLE tenant" if on_postgres else "CREATE TABLE seen (role text)"
    after = "SELECT 1 / (current_user = 'tenant')::int" if on_postgres else "INSERT INTO seen VALUES ('any')"

    def said(sql: str) -> Any:
        return (
            sqlalchemy.text(sql) if type(stage.once._database).__module__.startswith("onefold.db.sqlalchemy") else sql
        )

    async def on_tasks(once: AsyncOnefold) -> None:
        async with once.transaction() as tx:
            connection = tx.connection
            await connection.execute(said(before))
            assert await tx.cancel(first)
            await connection.execute(said(after))

    def on_threads(once: Onefold) -> None:
        with once.transaction() as tx:
            connection = tx.connection
            connection.execute(said(before))
            assert tx.cancel(first)
            connection.execute(said(after))

    try:
        if isinstance(stage.once, AsyncOnefold):
            await on_tasks(stage.once)
        else:
            await asyncio.to_thread(on_threads, stage.once)
    finally:
        if on_postgres:
            stage.change("DROP OWNED BY tenant; DROP ROLE tenant")
    assert stage.rows("topic") == []


async def test_what_leaves_now_or_was_tried_before_is_not_taken_back(stage: Stage) -> None:
    [now] = await published(stage, "mail.now")
    [stopped, suspect] = await published(stage, "mail.stopped", "mail.suspect", not_before=in_an_hour())
    stage.change(f"UPDATE onefold_outbox SET error = 'refused' WHERE id = '{stopped}'")
    stage.change(f"UPDATE onefold_outbox SET started = 1 WHERE id = '{suspect}'")
    assert [await stage.cancel(event_id) for event_id in (now, stopped, suspect)] == [False] * 3
    assert len(stage.rows()) == 3


async def test_what_was_published_in_the_same_transaction_never_was(stage: Stage) -> None:
    once = stage.once

    async def here() -> list[bool]:
        assert isinstance(once, AsyncOnefold)
        async with once.transaction() as tx:
            ids = [tx.publish("order.placed", n, key="a") for n in range(3)]
            with suppress(Refused):
                async with tx.savepoint():
                    undone = await tx.cancel(ids[0])
                    raise Refused
            with suppress(Refused):
                async with tx.savepoint():
                    undone_again = await tx.cancel(ids[0])
                    raise Refused
            return [undone, undone_again, await tx.cancel(ids[1]), await tx.cancel(ids[1])]

    def on_a_thread() -> list[bool]:
        assert isinstance(once, Onefold)
        with once.transaction() as tx:
            ids = [tx.publish("order.placed", n, key="a") for n in range(3)]
            with suppress(Refused), tx.savepoint():
                undone = tx.cancel(ids[0])
                raise Refused
            with suppress(Refused), tx.savepoint():
                undone_again = tx.cancel(ids[0])
                raise Refused
            return [undone, undone_again, tx.cancel(ids[1]), tx.cancel(ids[1])]

    told = await (here() if isinstance(once, AsyncOnefold) else asyncio.to_thread(on_a_thread))
    assert told == [True, True, True, False]
    assert stage.rows("version, data") == [(1, b"0"), (2, b"2")], "versions have no gap"


async def test_a_cancellation_in_a_savepoint_is_undone_with_it(sqlite_path: Any) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")
    async with once.transaction() as tx:
        event_id = tx.publish("mail.sent", {}, not_before=in_an_hour())
    async with once.transaction() as tx:
        with suppress(Refused):
            async with tx.savepoint():
                assert await tx.cancel(event_id)
                raise Refused
    async with once.transaction() as tx:
        assert await tx.cancel(event_id)
    await once.close()


@pytest.mark.parametrize("driver", ["sqlite", "postgres"])
def test_a_plain_handler_of_an_async_application_cancels_on_its_thread(
    request: pytest.FixtureRequest, driver: str
) -> None:
    address = str(request.getfixturevalue("sqlite_path" if driver == "sqlite" else "postgres_dsn"))
    once = Onefold(address, source="shop", principal=single_principal)
    once.migrate()
    app = FastAPI()
    with once.transaction() as tx:
        event_id = tx.publish("mail.sent", {}, not_before=in_an_hour())

    @app.post("/cancel")
    @once.idempotent()
    def cancel(tx: Tx[Any]) -> bool:
        found: bool = tx.cancel(event_id)
        return found

    once.install(app)
    with TestClient(app) as client:
        answers = [client.post("/cancel", headers={"idempotency-key": key}).json() for key in ("1", "1", "2")]
    assert answers == [True, True, False]
    once.close()


@pytest.mark.parametrize("driver", ["sqlite", "postgres"])
def test_a_cancellation_finds_its_event_by_an_index(request: pytest.FixtureRequest, driver: str) -> None:
    address = str(request.getfixturevalue("sqlite_path" if driver == "sqlite" else "postgres_dsn"))
    once = Onefold(address, source="shop")
    once.migrate()
    with once.transaction() as tx:
        for _ in range(3000):
            event_id = tx.publish("mail.sent", {}, not_before=in_an_hour())
    statement = STATEMENTS[driver].cancel(event_id)[-1]
    assert isinstance(statement, Statement)
    with once.transaction() as tx:
        if driver == "sqlite":
            plan = tx.connection.execute(f"EXPLAIN QUERY PLAN {statement.sql}", statement.values).fetchall()
        else:
            tx.connection.execute("ANALYZE onefold_outbox")
            sql = statement.sql.replace("$1", f"'{event_id}'")
            plan = tx.connection.execute(f"EXPLAIN {sql}").fetchall()
    assert "onefold_outbox_delayed" in str(plan)
    once.close()


def test_what_is_no_id_is_refused(sqlite_path: Any) -> None:
    no_id: Any = None
    with closing(Onefold(sqlite_path, source="shop")) as once, once.transaction() as tx:
        with pytest.raises(MessageInvalid, match=r"tx.cancel\(None\): give the id of the event"):
            tx.cancel(no_id)
        assert tx.cancel("no such id") is False
