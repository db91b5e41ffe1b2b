"""A cancellation that is lost on its way does not keep whoever waits for the end of the task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from onefold import AsyncOnefold, single_principal
from onefold._inbox.consumer import Consumer
from onefold._kernel import foreign_cancellations
from onefold._kernel.effects import Boundary, Statement
from onefold._kernel.foreign_cancellations import cancel_until_ended
from onefold._kernel.messages import Message
from onefold._worker.backlog_measuring import measure_outbox, measuring
from onefold._worker.cancellation import join_tasks
from onefold._worker.consumer_runner import ConsumerRunner
from onefold._worker.notify_listener import listening
from onefold._worker.relay_loop import Relay
from onefold.db.psycopg import AsyncPsycopgDatabase
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase
from onefold.errors import BrokerUnavailable
from tests.outbox.relaying import ScriptedBroker
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import MemoryBroker, until


async def print_message(message: Message) -> None:
    print(message.id)


class Stubborn:
    """Work that loses so many cancellations."""

    def __init__(self, loses: int, end: BaseException | None = None) -> None:
        self.loses = loses
        self.cancelled = 0
        self.end = end

    async def run(self) -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled += 1
                if self.cancelled > self.loses:
                    if self.end is not None:
                        raise self.end from None
                    raise


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign_cancellations, "AGAIN_S", 0.05)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("loses", [0, 1, 3])
async def test_a_task_that_goes_on_is_cancelled_again(loses: int) -> None:
    works = [Stubborn(loses), Stubborn(0, end=ValueError("on purpose"))]
    tasks = [asyncio.create_task(work.run()) for work in works]
    await asyncio.sleep(0)
    async with asyncio.timeout(PATIENCE_S):
        await cancel_until_ended(*tasks)
    assert tasks[0].cancelled()
    assert isinstance(tasks[1].exception(), ValueError)
    assert [work.cancelled for work in works] == [loses + 1, 1]


async def test_a_task_that_cleans_up_is_not_disturbed() -> None:
    """AGAIN_S is as long as it is for that."""
    cleaned = False

    async def run() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.1)
            cleaned = True

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    await cancel_until_ended(task)
    assert cleaned


@pytest.mark.usefixtures("hurried")
async def test_what_a_consumer_ends_after_the_grace_is_cancelled_again_as_well() -> None:
    work = Stubborn(2)
    task = asyncio.create_task(work.run())
    async with asyncio.timeout(PATIENCE_S):
        await join_tasks([task], 0.01)
    assert task.cancelled()
    assert work.cancelled == 3


@pytest.mark.usefixtures("hurried")
async def test_who_is_cancelled_meanwhile_leaves_no_task_behind() -> None:
    work = Stubborn(2)
    task = asyncio.create_task(work.run())
    await asyncio.sleep(0)
    ending = asyncio.create_task(cancel_until_ended(task))
    for _ in range(2):
        await asyncio.sleep(0)
        ending.cancel()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([ending])
    assert ending.cancelled()
    assert task.cancelled()


async def test_who_is_cancelled_meanwhile_disturbs_no_clean_up() -> None:
    cleaned, go_on = False, asyncio.Event()

    async def run() -> None:
        nonlocal cleaned
        try:
            await asyncio.Event().wait()
        finally:
            await go_on.wait()
            cleaned = True

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    ending = asyncio.create_task(cancel_until_ended(task))
    for _ in range(2):
        await asyncio.sleep(0)
        ending.cancel()
    await asyncio.sleep(0)
    go_on.set()
    async with asyncio.timeout(PATIENCE_S):
        await asyncio.wait([ending])
    assert ending.cancelled()
    assert cleaned


async def test_nothing_to_end_is_no_wait() -> None:
    await cancel_until_ended()


# --- a pool hands its connection over in the moment of the cancellation ----------------------------------------

Block = Callable[[AsyncPsycopgDatabase], AbstractAsyncContextManager[Any]]


@asynccontextmanager
async def _reaping(database: AsyncPsycopgDatabase) -> AsyncIterator[None]:
    once = AsyncOnefold(database, principal=single_principal)
    async with once.reaping(every_s=0.001):
        yield


BLOCKS: dict[str, Block] = {
    "listening": lambda database: listening(database, lambda: None),
    "measuring": lambda database: measuring(database, lambda event: None, measure_outbox),
    "reaping": _reaping,
}


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("turns", range(8))
@pytest.mark.parametrize("block", BLOCKS)
async def test_a_block_ends_whenever_its_task_gets_the_connection_it_waits_for(
    block: str, turns: int, postgres_dsn: str
) -> None:
    """psycopg's pool waits by `asyncio.wait_for`: on Python 3.11 there is a turn of the loop, between the handover and
    the end of that wait, in which a cancellation is lost."""
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncPsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        held = await pool.getconn()
        async with asyncio.timeout(PATIENCE_S):
            async with BLOCKS[block](database):
                await until(lambda: bool(pool.get_stats().get("requests_waiting")))
                await pool.putconn(held)
                for _ in range(turns):
                    await asyncio.sleep(0)


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("turns", range(8))
async def test_a_tick_ends_whenever_the_renewal_beside_it_gets_the_connection_it_waits_for(
    turns: int, postgres_dsn: str
) -> None:
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncPsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        await AsyncOnefold(database, principal=single_principal).migrate()

        class LosingItsWay(ScriptedBroker):
            """Its first tick ends in the moment in which the renewal has its connection."""

            refreshed = 0

            async def refresh(self) -> None:
                self.refreshed += 1
                if self.refreshed > 1:
                    return
                held = await pool.getconn()
                await until(lambda: bool(pool.get_stats().get("requests_waiting")))
                await pool.putconn(held)
                for _ in range(turns):
                    await asyncio.sleep(0)
                raise BrokerUnavailable("on purpose")

        broker = LosingItsWay()
        stop = asyncio.Event()
        relay = Relay(database, broker, lease_s=0.5, listens=False, draw=lambda: 0.0)
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            group.create_task(relay.run(stop))
            await until(lambda: broker.refreshed > 1)
            stop.set()


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("turns", range(8))
async def test_consumers_that_are_cancelled_end_whenever_they_get_the_connection_they_wait_for(
    turns: int, postgres_dsn: str
) -> None:
    async with AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncPsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        await AsyncOnefold(database, principal=single_principal).migrate()
        held = await pool.getconn()
        consumer = Consumer(name="billing", topics=("order.placed",), handler=print_message)
        task = asyncio.create_task(ConsumerRunner(database, MemoryBroker(), [consumer]).run(asyncio.Event()))
        await until(lambda: bool(pool.get_stats().get("requests_waiting")))
        await pool.putconn(held)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE_S)
        assert task.cancelled()


@pytest.mark.parametrize("turns", range(8))
async def test_who_is_cancelled_as_the_connection_comes_is_cancelled_and_gives_it_back(
    turns: int, postgres_dsn: str
) -> None:
    """A worker of the application's, which begins one transaction after the other, never heard of its end."""
    async with asyncio.timeout(PATIENCE_S), AsyncConnectionPool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncPsycopgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        first = await database.acquire()
        task = asyncio.create_task(database.acquire())
        await until(lambda: bool(pool.get_stats().get("requests_waiting")))
        await first.release()
        for _ in range(turns):
            await asyncio.sleep(0)
        if not task.cancel():  # it has it
            await task.result().release()
        await asyncio.wait([task])
        assert task.cancelled() or not task.cancelling()
        await (await database.acquire()).release()


# --- a statement that is cancelled fails by itself -------------------------------------------------------------

INSERT = Statement("INSERT INTO thing VALUES (1)")


@pytest.mark.parametrize("over", ["psycopg", "engine"])
async def test_a_statement_that_is_refused_as_it_is_cancelled_does_not_hide_that(over: str, postgres_dsn: str) -> None:
    """psycopg raises what the server says, and the cancellation is gone: flows that know what to do next went on."""
    database: Any = AsyncPsycopgDatabase(postgres_dsn)
    if over == "engine":
        url = postgres_dsn.replace("postgresql://", "postgresql+psycopg://")
        database = AsyncSqlalchemyDatabase(create_async_engine(url))
    with psycopg.connect(postgres_dsn) as other, psycopg.connect(postgres_dsn, autocommit=True) as looking:
        looking.execute("CREATE TABLE thing (id bigint PRIMARY KEY)")
        other.execute("INSERT INTO thing VALUES (1)")
        connection = await database.acquire()
        task = asyncio.create_task(connection.batch((Boundary.BEGIN, INSERT)))
        waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%thing VALUES%'"
        await until(lambda: looking.execute(waiting).fetchone() is not None)
        task.cancel()
        other.commit()  # and so the other one fails, before its loop goes on
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.wait([task])
        await connection.discard()
    await database.close()
    assert task.cancelled()
