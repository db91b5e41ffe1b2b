"""What a consumer's handler does with its transaction and does not await never happens: it is told, not handled."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest

from onefold import AsyncOnefold, Depends, Message, Onefold, Transaction
from onefold.errors import OnefoldError, ProgrammerError, TransactionMisused
from onefold.telemetry import Failed, Handled
from onefold.testing.memory_broker import AsyncMemoryBroker, MemoryBroker
from tests.worker.consuming import until

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")

INSERT = "INSERT INTO orders VALUES ('book')"


@pytest.fixture
def shop(sqlite_path: Path) -> Path:
    sqlite3.connect(sqlite_path).execute("CREATE TABLE orders (item TEXT)").connection.close()
    return sqlite_path


def count(path: Path, table: str = "orders") -> int:
    connection = sqlite3.connect(path)
    [(found,)] = connection.execute(f"SELECT count(*) FROM {table}").fetchall()
    connection.close()
    return int(found)


async def handle(once: AsyncOnefold, handler: Callable[..., Any]) -> list[Any]:
    once.consumer("shipping", topic="order.placed")(handler)
    broker = AsyncMemoryBroker(once, raises=False)
    try:
        await broker.publish("order.placed", {})
        return broker.events
    finally:
        await once.close()


def in_plain_def(message: Message, tx: Transaction[Any]) -> None:
    tx.connection.execute(INSERT)


def cancels_in_plain_def(message: Message, tx: Transaction[Any]) -> None:
    tx.cancel("0190b5b0-0000-7000-8000-000000000000")


def connected(tx: Transaction[Any]) -> Any:
    return tx.connection


def depends_in_plain_def(message: Message, connection: Annotated[Any, Depends(connected)]) -> None:
    connection.execute(INSERT)


@pytest.mark.parametrize("handler", [in_plain_def, cancels_in_plain_def, depends_in_plain_def])
async def test_a_plain_def_cannot_use_a_connection_that_must_be_awaited(shop: Path, handler: Any) -> None:
    [event] = await handle(AsyncOnefold(shop, source="shop"), handler)
    assert isinstance(event, Failed)
    assert "plain `def`" in event.reason
    assert "`async def`" in event.reason
    assert count(shop) == count(shop, "onefold_inbox") == 0


async def test_a_worker_refuses_it_too(shop: Path) -> None:
    once = AsyncOnefold(shop, source="shop")
    refused: list[Exception] = []

    @once.consumer("shipping", topic="order.placed", attempts=1)
    def ship(message: Message, tx: Transaction[Any]) -> None:
        try:
            in_plain_def(message, tx)
        except ProgrammerError as error:
            refused.append(error)
            raise

    async with once.relaying(), once.consuming():
        async with once.transaction() as tx:
            await tx.publish("order.placed", {})
        await until(lambda: bool(refused))
    await once.close()


async def test_a_plain_def_publishes(shop: Path) -> None:
    def ship(message: Message, tx: Transaction[Any]) -> None:
        assert tx.publish("order.shipped", {})

    assert await handle(AsyncOnefold(shop, source="shop"), ship) == [Handled("shipping", "order.placed")]


def test_a_plain_def_of_onefold_uses_its_connection(shop: Path) -> None:
    once = Onefold(shop, source="shop", development=True)
    once.consumer("shipping", topic="order.placed")(in_plain_def)
    MemoryBroker(once).publish("order.placed", {})
    once.close()
    assert count(shop) == 1


async def forgets(message: Message, tx: Transaction[Any]) -> None:
    tx.connection.execute(INSERT)


async def forgets_in_part(message: Message, tx: Transaction[Any]) -> None:
    async with tx.savepoint():
        tx.connection.execute(INSERT)


async def writes(message: Message, tx: Transaction[Any]) -> None:
    await tx.connection.execute(INSERT)


async def publishes(message: Message, tx: Transaction[Any]) -> None:
    await tx.publish("order.shipped", {})


@pytest.mark.parametrize("handler", [forgets, forgets_in_part])
async def test_in_development_a_forgotten_await_is_a_failure(shop: Path, handler: Any) -> None:
    [event] = await handle(AsyncOnefold(shop, source="shop", development=True), handler)
    assert isinstance(event, Failed)
    assert "executed nothing on it" in event.reason
    assert "'shipping'" in event.reason
    assert count(shop, "onefold_inbox") == 0


@pytest.mark.parametrize("handler", [writes, publishes])
async def test_in_development_what_was_executed_or_published_is_handled(shop: Path, handler: Any) -> None:
    events = await handle(AsyncOnefold(shop, source="shop", development=True), handler)
    assert events == [Handled("shipping", "order.placed")]


async def test_in_development_a_block_of_handling_is_told_and_leaves_no_row(shop: Path) -> None:
    once = AsyncOnefold(shop, source="shop", development=True)
    block: Any = once.handling("shipping", "m1")
    with pytest.raises(TransactionMisused, match="executed nothing on it"):
        async with block as tx:
            tx.connection.execute(INSERT)
    async with once.handling("shipping", "m1") as tx:
        assert tx is not None
        await tx.connection.execute(INSERT)
    await once.close()
    assert count(shop) == 1


@pytest.mark.parametrize("opens", ["transaction", "handling", "consumer"])
async def test_a_cancel_that_is_not_awaited_is_refused_at_commit(shop: Path, opens: str) -> None:
    once = AsyncOnefold(shop, source="shop")
    event_id = "0190b5b0-0000-7000-8000-000000000000"

    async def forgets_cancel(message: Message, tx: Transaction[Any]) -> None:
        tx.cancel(event_id)

    if opens == "consumer":
        [event] = await handle(once, forgets_cancel)
        told = event.reason
    else:
        block: Any = once.transaction() if opens == "transaction" else once.handling("shipping", "m1")
        with pytest.raises(OnefoldError) as caught:
            async with block as tx:
                tx.cancel(event_id)
        told = str(caught.value)
        await once.close()
    assert f"await tx.cancel('{event_id}')" in told


async def test_a_cancel_that_is_awaited_is_none_of_it(shop: Path) -> None:
    once = AsyncOnefold(shop, source="shop")
    async with once.transaction() as tx:
        assert await tx.cancel("0190b5b0-0000-7000-8000-000000000000") is False
        own = tx.publish("order.placed", {})
        assert await tx.cancel(own) is True
    await once.close()
