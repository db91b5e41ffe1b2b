"""An application over `local`, in both colours and on both databases: published here, handled there, once."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, Message, Onefold, Transaction
from onefold._kernel.ports import Broker
from onefold.brokers._adapters import broker_of
from onefold.brokers.local import LocalBroker
from onefold.errors import ConfigurationError, OnefoldError
from onefold.telemetry import Duplicate, Event, Handled, Relayed
from tests.outbox.test_write import Stage, void
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(request.getfixturevalue("postgres_dsn") if request.param == "postgres" else sqlite_path)


async def test_what_is_published_is_handled_once_and_in_order(address: str) -> None:
    once = AsyncOnefold(address, source="shop", broker="local")
    await once.migrate()
    handled: list[tuple[str | None, int | None]] = []
    correlations: set[str | None] = set()

    @once.consumer("fulfilment", topic="order.placed", order="strict")
    async def ship(message: Message, tx: Transaction[Any]) -> None:
        handled.append((message.key, message.version))
        await tx.publish("order.shipped", message.json(), key=message.key)

    @once.consumer("mail", topic=("order.shipped",))
    def write(message: Message) -> None:
        correlations.add(message.headers.get("correlation-id"))

    async with once.consuming(), once.relaying():
        for number in range(10):
            async with once.transaction() as tx:
                await tx.publish("order.placed", number, key=f"ord-{number % 2}", headers={"correlation-id": "c-1"})
        await until(lambda: len(handled) == 10 and bool(correlations))
    assert sorted(handled) == [(f"ord-{key}", version) for key in (0, 1) for version in range(1, 6)]
    for key in ("ord-0", "ord-1"):
        assert [version for k, version in handled if k == key] == [1, 2, 3, 4, 5]
    assert correlations == {"c-1"}
    await once.close()


@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
async def test_the_same_where_the_database_is_stricter_by_default(level: str, postgres_dsn: str) -> None:
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        name = connection.info.dbname
        connection.execute(f"ALTER DATABASE \"{name}\" SET default_transaction_isolation = '{level}'".encode())
    once = AsyncOnefold(postgres_dsn, source="shop", broker="local")
    await once.migrate()
    handled: list[tuple[str | None, int | None]] = []
    levels: set[str] = set()

    @once.consumer("fulfilment", topic="order.placed", order="strict", retry_base_s=0.05, retry_cap_s=0.1)
    async def ship(message: Message, tx: Transaction[Any]) -> None:
        levels.add(await tx.connection.fetchval("SELECT current_setting('transaction_isolation')"))
        await tx.publish("order.shipped", message.json(), key=message.key)
        tx.after_commit(lambda: handled.append((message.key, message.version)))

    shipped: set[Any] = set()

    @once.consumer("mail", topic="order.shipped", isolation="read committed", retry_base_s=0.05, retry_cap_s=0.1)
    async def write(message: Message, tx: Transaction[Any]) -> None:
        levels.add(await tx.connection.fetchval("SELECT current_setting('transaction_isolation')"))
        shipped.add(message.json())

    async with once.consuming(), once.relaying():
        for number in range(20):
            async with once.transaction() as tx:
                await tx.publish("order.placed", number, key=f"ord-{number % 4}")
        await until(lambda: len(handled) >= 20 and len(shipped) == 20)
    assert sorted(handled) == [(f"ord-{key}", version) for key in range(4) for version in range(1, 6)]
    for key in range(4):
        assert [version for k, version in handled if k == f"ord-{key}"] == [1, 2, 3, 4, 5]
    assert levels == {level, "read committed"}
    await once.close()


def test_the_same_on_threads(address: str) -> None:
    once = Onefold(address, source="shop", broker="local")
    once.migrate()
    handled = threading.Semaphore(0)
    seen: list[Any] = []

    @once.consumer("fulfilment", topic="order.placed")
    def ship(message: Message, tx: Transaction[Any]) -> None:
        void(tx.publish("order.shipped", message.json()))
        seen.append(message.json())
        handled.release()

    @once.consumer("mail", topic="order.shipped")
    def write(message: Message) -> None:
        handled.release()

    with once.consuming(), once.relaying():
        for number in range(3):
            with once.transaction() as tx:
                void(tx.publish("order.placed", number))
        for _ in range(6):
            assert handled.acquire(timeout=PATIENCE_S)
    assert sorted(seen) == [0, 1, 2]
    once.close()


ENGINES = ("postgresql+psycopg", "sqlite")
ASYNC_ENGINES = ("postgresql+asyncpg", "postgresql+psycopg", "sqlite+aiosqlite")


def engine_url(scheme: str, request: pytest.FixtureRequest) -> str:
    if scheme.startswith("sqlite"):
        return f"{scheme}:///{request.getfixturevalue('sqlite_path')}"
    return str(request.getfixturevalue("postgres_dsn")).replace("postgresql://", f"{scheme}://")


class Count:
    """Counts what consumers did, and knows when they have handled all of it."""

    def __init__(self, expected: int) -> None:
        self.seen: Counter[str] = Counter()
        self._expected = expected
        self.complete = threading.Event()

    def __call__(self, event: Event) -> None:
        self.seen[type(event).__name__] += isinstance(event, Handled | Duplicate)
        if self.seen["Handled"] == self._expected:
            self.complete.set()


@pytest.mark.parametrize("scheme", ASYNC_ENGINES)
async def test_what_was_handled_is_acknowledged_through_an_async_engine(
    scheme: str, request: pytest.FixtureRequest
) -> None:
    engine = create_async_engine(engine_url(scheme, request))
    count = Count(12)
    once = AsyncOnefold(engine, source="shop", broker="local", listener=count)
    await once.migrate()

    @once.consumer("fulfilment", topic="order.placed")
    async def ship(message: Message) -> None: ...

    async with once.consuming(), once.relaying():
        for number in range(12):
            async with once.transaction() as tx:
                await tx.publish("order.placed", number)
        await until(count.complete.is_set)
    async with engine.connect() as connection:
        left = (await connection.execute(text("SELECT count(*), max(taken) FROM onefold_delivery"))).one()
    assert (tuple(left), count.seen["Duplicate"]) == ((0, None), 0)
    await once.close()
    await engine.dispose()


@pytest.mark.parametrize("scheme", ENGINES)
def test_what_was_handled_is_acknowledged_through_an_engine(scheme: str, request: pytest.FixtureRequest) -> None:
    engine = create_engine(engine_url(scheme, request))
    count = Count(12)
    once = Onefold(engine, source="shop", broker="local", listener=count)
    once.migrate()

    @once.consumer("fulfilment", topic="order.placed")
    def ship(message: Message) -> None: ...

    with once.consuming(), once.relaying():
        for number in range(12):
            with once.transaction() as tx:
                void(tx.publish("order.placed", number))
        assert count.complete.wait(PATIENCE_S)
    with engine.connect() as connection:
        left = connection.execute(text("SELECT count(*), max(taken) FROM onefold_delivery")).one()
    assert (tuple(left), count.seen["Duplicate"]) == ((0, None), 0)
    once.close()
    engine.dispose()


async def test_events_that_nobody_awaited_leave_when_somebody_subscribes(address: str) -> None:
    refused = asyncio.Event()

    def hear(event: Event) -> None:
        if isinstance(event, Relayed) and event.refused:
            refused.set()

    once = AsyncOnefold(address, source="shop", broker="local", listener=hear)
    await once.migrate()
    handled = asyncio.Event()

    @once.consumer("fulfilment", topic="order.placed")
    async def ship(message: Message) -> None:
        handled.set()

    async with once.relaying():
        async with once.transaction() as tx:
            await tx.publish("order.placed", 1, key="ord-1")
        async with asyncio.timeout(PATIENCE_S):
            await refused.wait()
        stage = Stage(once, address)
        [(error, due)] = stage.rows("error, due_at" if "://" in address else "error, due_at_ms")
        assert "no consumer has subscribed to 'order.placed'" in error
        assert due is not None
        async with once.consuming():
            async with asyncio.timeout(PATIENCE_S):
                await handled.wait()
    await once.close()


async def test_a_worker_that_cannot_start_says_so_when_its_block_ends(postgres_dsn: str) -> None:
    once = AsyncOnefold(postgres_dsn, source="shop")
    once.consumer("ship", topic="order.placed")(lambda message: None)

    async def work(block: Any) -> None:
        async with block:
            await asyncio.sleep(0)

    with pytest.raises(ConfigurationError, match="there is no broker"):
        await work(once.relaying())
    with pytest.raises(ConfigurationError, match="there is no broker"):
        await work(once.consuming())
    await once.close()


def test_a_worker_on_a_thread_says_so_too(sqlite_path: Path) -> None:
    def without_pigeons() -> Broker:
        raise ConfigurationError("the loft is empty")

    once = Onefold(sqlite_path, source="shop", broker=without_pigeons)

    def work() -> None:
        with once.relaying():
            pass

    with pytest.raises(ConfigurationError, match="the loft is empty"):
        work()


@pytest.mark.parametrize(
    ("broker", "says"),
    [
        ("https://example.test/hook", "webhooks are signed"),
        ("mqtt://user:hush@example.test", "'mqtt://example.test' is unknown"),
        ("", "'' is unknown"),
        ("nats://[", "cannot be read"),
        ("local?lease_s=soon", "is not a number"),
        ("local?lease_s=0", "lease_s=0.0 must be between"),
        ("local?leases=2", "no setting 'leases'"),
    ],
)
async def test_a_broker_that_cannot_be_made_is_refused_without_its_password(
    sqlite_path: Path, broker: str, says: str
) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")
    with pytest.raises(ConfigurationError, match=says) as refused:
        broker_of(broker, once._database)
    assert "hush" not in str(refused.value)
    await once.close()


@pytest.mark.parametrize(
    ("address", "kind", "server"),
    [
        ("nats://nats.internal:4222", "NatsBroker", None),
        ("redis://valkey.internal/0", "RedisBroker", "redis://valkey.internal/0"),
        ("valkey://valkey.internal/0", "RedisBroker", "redis://valkey.internal/0"),
        ("valkeys://valkey.internal/0", "RedisBroker", "rediss://valkey.internal/0"),
        ("amqp://rabbit.internal/", "RabbitBroker", None),
        ("kafka://one:9092,two:9092", "KafkaBroker", "one:9092,two:9092"),
        ("local", "LocalBroker", None),
    ],
)
async def test_an_address_makes_its_broker_for_that_server(
    sqlite_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, kind: str, server: str | None
) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")
    broker = broker_of(address, once._database)
    assert type(broker).__name__ == kind
    if server is not None:
        given: list[str] = []
        monkeypatch.setattr(f"{type(broker).__module__}.{kind}", lambda address: given.append(address))
        broker_of(address, once._database)
        assert given == [server]
    await once.close()


async def test_the_lease_of_the_local_broker_can_be_set(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")
    assert broker_of("local?lease_s=3", once._database).keep_every_s == 1.0
    await once.close()


async def test_a_lock_that_somebody_holds_is_no_outage_of_the_local_broker(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")
    broker = LocalBroker(once._database)
    subscription = await broker.subscribe("mail", ["t"])
    async with once.transaction() as tx:
        await tx.connection.execute("CREATE TABLE held (n)")
        publishing = asyncio.create_task(broker.publish([Message(id="1", source="s", topic="t", data=b"{}")]))
        done, _ = await asyncio.wait([publishing], timeout=1.0)
        assert not done
    assert await publishing == [None]
    assert len(await subscription.receive(10, PATIENCE_S)) == 1
    await once.close()


async def test_consumers_that_are_not_there_are_named(sqlite_path: Path) -> None:
    once = AsyncOnefold(sqlite_path, source="shop")
    with pytest.raises(ConfigurationError, match="there is no consumer to run"):
        await once.consume(asyncio.Event())
    once.consumer("mail", topic="order.placed")(lambda message: None)
    with pytest.raises(ConfigurationError, match=r"no consumer 'post'; there are \['mail'\]"):
        await once.consume(asyncio.Event(), only=["post"])
    await once.close()


Handle = Callable[[str], Awaitable[bool]]


async def test_the_ledger_alone_serves_whoever_receives_by_other_means(address: str) -> None:
    once = AsyncOnefold(address, source="billing")
    await once.migrate()

    async def handle(message_id: str, *, fails: bool = False) -> bool:
        async with once.handling("billing", message_id) as tx:
            if tx is None:
                return False
            await tx.publish("invoice.sent", message_id)
            if fails:
                raise LookupError
            return True

    with pytest.raises(LookupError):
        await handle("m-1", fails=True)
    assert [await handle(message_id) for message_id in ("m-1", "m-1", "m-2", "m-1")] == [True, False, True, False]
    assert [data for (data,) in Stage(once, address).rows("data")] == [b'"m-1"', b'"m-2"']
    with pytest.raises(ConfigurationError, match="consumer name 'two words'"):
        async with once.handling("two words", "m-1"):
            pass
    await once.close()


def test_the_ledger_alone_on_threads(address: str) -> None:
    once = Onefold(address, source="billing")
    once.migrate()
    found = []
    for message_id in ("m-1", "m-1"):
        with once.handling("billing", message_id) as tx:
            found.append(tx is not None)
    assert found == [True, False]
    once.close()


async def test_a_handler_of_the_ledger_alone_that_commits_by_itself_is_found_out(postgres_dsn: str) -> None:
    once = AsyncOnefold(postgres_dsn, source="billing")
    await once.migrate()

    async def handle() -> None:
        async with once.handling("billing", "m-1") as tx:
            assert tx is not None
            await tx.publish("invoice.sent", 1)
            await tx.connection.execute("COMMIT")

    with pytest.raises(OnefoldError, match="committed or rolled back"):
        await handle()
    assert Stage(once, postgres_dsn).rows() == []
    await once.close()
