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
from psycopg_pool import AsyncConnectionPool, ConnectionPool
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Onefold, Transaction
from onefold.errors import ConfigurationError, MessageInvalid, OnefoldError, ProgrammerError
from onefold.outbox.write import EVENTS_MAX

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
        pytest.param("t", 1, {"key": 1.5}, "1.5", id="a key that is no name"),
        pytest.param("t", 1, {"headers": {"CE-id": "x"}}, "header 'CE-id'", id="a header in capitals"),
        pytest.param("t", 1, {"headers": {"ce-id": "x"}}, "onefold's own", id="a header of ours"),
        pytest.param("t", 1, {"headers": {"a": "é"}}, "printable ASCII", id="a header that is not ASCII"),
        pytest.param("t", 1, {"headers": {"a": 1}}, "printable ASCII", id="a header that is no text"),
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
    monkeypatch.setattr("onefold.outbox.write.EVENTS_MAX", 3)
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
    with pytest.raises(ProgrammerError, match="transaction is over"):
        void(kept[0].publish("t", 1))


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
