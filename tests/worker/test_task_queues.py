"""Tasks of Celery, Dramatiq, arq and taskiq with the ledger: over their real workers, which fail and are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dramatiq
import pytest
from arq.worker import Retry
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from dramatiq.middleware import CurrentMessage, Retries
from redis import Redis
from taskiq import InMemoryBroker, SimpleRetryMiddleware

from onefold import AsyncOnefold, Onefold, Steps, Transaction
from onefold._worker import arq_jobs as on_arq
from onefold._worker import celery_tasks as on_celery
from onefold._worker import dramatiq_actors as on_dramatiq
from onefold._worker import taskiq_tasks as on_taskiq
from onefold.errors import ConfigurationError, MessageUnreadable
from onefold.testing.servers import PrivateValkey
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]

#: An order is named after what becomes of it; how often its task is called. One is sent twice.
ORDERS = {"plain": 1, "twice": 1, "fails": 3, "dies": 2, "commits": 1}


@dataclass(frozen=True)
class Queue:
    """A desk, how its worker is started, and how many of its messages are still somewhere."""

    desk: str
    place: int
    worker: tuple[str, ...]
    left: Callable[[Any], int]


def of_taskiq(redis: Any) -> int:
    [group] = redis.xinfo_groups("taskiq")
    return int(group["pending"]) + int(group["lag"] or 0)


def of_celery(redis: Any) -> int:
    return int(redis.llen("celery")) + int(redis.hlen("unacked"))


def of_dramatiq(redis: Any) -> int:
    return int(redis.hlen("dramatiq:default.msgs")) + int(redis.hlen("dramatiq:default.DQ.msgs"))


_CELERY = ("celery", "-A", "tests.worker.desks.on_celery", "worker", "--loglevel=WARNING", "-c1")

QUEUES = {
    "celery, one process": Queue("on_celery", 1, (*_CELERY, "-Psolo"), of_celery),
    "celery, a pool": Queue("on_celery", 2, (*_CELERY, "-Pprefork"), of_celery),
    "dramatiq": Queue("on_dramatiq", 3, ("dramatiq", "tests.worker.desks.on_dramatiq", "-p1", "-t1"), of_dramatiq),
    "arq": Queue("on_arq", 4, ("tests.worker.desks.on_arq", "work"), lambda redis: int(redis.zcard("arq:queue"))),
    "taskiq": Queue(
        "on_taskiq",
        5,
        ("taskiq", "worker", "tests.worker.desks.on_taskiq:broker", "--workers=1", "--max-async-tasks=1"),
        of_taskiq,
    ),
}


class Works:
    """A worker that is started again whenever it has died."""

    def __init__(self, words: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
        self.words, self.environment, self.log = words, environment, log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *self.words],
                cwd=ROOT, env=self.environment, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip

    def keep(self) -> None:
        if self.process.poll() is not None:
            self.end()
            self.start()

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@contextmanager
def working(queue: Queue, environment: dict[str, str], log: Path) -> Iterator[Works]:
    worker = Works(queue.worker, environment, log)
    try:
        yield worker
    finally:
        worker.end()


@pytest.mark.parametrize("name", QUEUES)
def test_a_task_is_done_once_whatever_becomes_of_its_worker(
    name: str, valkey: PrivateValkey, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    queue = QUEUES[name]
    # A pool forks its processes after the module with its Onefold was imported: over a server's connections.
    pooled = name == "celery, a pool"
    database = str(request.getfixturevalue("postgres_dsn") if pooled else tmp_path / "desk.db")
    once = Onefold(database)
    once.migrate()
    with once.transaction() as tx:
        tx.connection.execute("CREATE TABLE shipments (item TEXT NOT NULL)")
    broker = f"{valkey.url.removesuffix('/0')}/{queue.place}"
    calls, log = tmp_path / "calls", tmp_path / "log"
    desk = {"DESK_BROKER": broker, "DESK_DATABASE": database, "DESK_CALLS": str(calls), "PYTHONPATH": str(ROOT / "src")}
    environment = os.environ | desk
    with Redis.from_url(broker) as redis:
        redis.flushdb()
        subprocess.run(
            [sys.executable, "-m", f"tests.worker.desks.{queue.desk}", *ORDERS, "twice"],
            cwd=ROOT, env=environment, check=True, timeout=PATIENCE_S,
        )  # fmt: skip
        with working(queue, environment, log) as worker:
            give_up_at = time.monotonic() + 5 * PATIENCE_S  # workers that die are started again, from their imports on
            while (shipped := rows(once)) != sorted(ORDERS) or queue.left(redis):
                assert time.monotonic() < give_up_at, (shipped, queue.left(redis), log.read_text()[-5000:])
                worker.keep()
                time.sleep(0.05)
    assert Counter(calls.read_text().split()) == ORDERS
    once.close()


def rows(once: Onefold) -> list[str]:
    with once.transaction() as tx:
        return sorted(item for (item,) in tx.connection.execute("SELECT item FROM shipments").fetchall())


# --- what is refused where it is written --------------------------------------------------------------------


@pytest.fixture
def once(sqlite_path: Path) -> Iterator[Onefold]:
    made = Onefold(sqlite_path)
    yield made
    made.close()


@pytest.fixture
async def once_async(sqlite_path: Path) -> Any:
    made = AsyncOnefold(sqlite_path)
    yield made
    await made.close()


def ship(order: str, tx: Transaction[Any]) -> str:
    return f"{order} with {tx}"


async def ship_async(order: str, tx: Transaction[Any]) -> None: ...


@pytest.mark.parametrize("losing", [{"acks_late": False}, {"reject_on_worker_lost": False}])
def test_celery_settings_that_lose_a_message_are_refused(once: Onefold, losing: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"'desk' has (acks_late|reject_on_worker_lost)=False: Celery would"):
        on_celery.handled_once(once, "desk", Celery("refused").task, **losing)


def test_a_task_of_celery_has_the_settings_that_keep_a_message_and_those_it_was_given(once: Onefold) -> None:
    app = Celery("settings", set_as_current=False)
    app.conf.update(task_acks_late=False, task_reject_on_worker_lost=False)
    task = on_celery.handled_once(once, "desk", app.task, max_retries=3, name="ship")(ship)
    kept = (task.acks_late, task.reject_on_worker_lost, task.acks_on_failure_or_timeout, task.autoretry_for)
    assert kept == (True, True, False, (Exception,))
    assert (task.max_retries, task.name) == (3, "ship")
    with pytest.raises(TypeError):
        task.__header__("ord-1", "no tx")


def test_a_broker_of_dramatiq_that_does_not_retry_is_refused(once: Onefold) -> None:
    with pytest.raises(ConfigurationError, match=r"'desk' \(StubBroker\) has no middleware Retries"):
        on_dramatiq.handled_once(once, "desk", dramatiq.actor, broker=StubBroker(middleware=[]))(ship)


@pytest.mark.parametrize("losing", [{"ack_type": "when_received"}, {"ack_type": "manual"}, {"retry_on_error": False}])
def test_labels_of_taskiq_that_lose_a_message_are_refused(once_async: AsyncOnefold, losing: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"'desk' has \w+=\S+: taskiq would acknowledge"):
        on_taskiq.handled_once(once_async, "desk", InMemoryBroker().task, **losing)


def test_a_broker_of_taskiq_that_does_not_retry_is_refused(once_async: AsyncOnefold) -> None:
    with pytest.raises(ConfigurationError, match=r"'desk' has no retry middleware.*SimpleRetryMiddleware"):
        on_taskiq.handled_once(once_async, "desk", InMemoryBroker().task)(ship_async)


async def test_a_broker_of_taskiq_without_acknowledgements_is_told_of(
    once_async: AsyncOnefold, caplog: pytest.LogCaptureFixture
) -> None:
    broker = InMemoryBroker(await_inplace=True).with_middlewares(SimpleRetryMiddleware())
    task = on_taskiq.handled_once(once_async, "desk", broker.task)(ship_async)
    for _ in range(2):
        sent = await task.kiq("ord-1")
        assert not (await sent.wait_result()).is_err
    told = [record for record in caplog.records if "has no acknowledgements" in record.message]
    assert len(told) == 1
    assert "InMemoryBroker" in told[0].message
    await broker.shutdown()


async def test_a_job_of_arq_that_takes_too_long_or_fails_is_asked_for_again(once_async: AsyncOnefold) -> None:
    ctx = {"job_id": "j", "enqueue_time": datetime(2026, 1, 1, tzinfo=UTC), "job_try": 3}
    entered = asyncio.Event()

    @on_arq.handled_once(once_async, "desk", lease_s=0.1, retry_s=2)
    async def job(ctx: dict[str, Any], order: str, tx: Transaction[Any]) -> None:
        entered.set()
        if order == "long":
            await asyncio.Event().wait()
        raise Retry(defer=42) if order == "own" else RuntimeError("as you wish")

    for order, waits_ms in (("long", 8000), ("fails", 8000), ("own", 42_000)):
        with pytest.raises(Retry) as raised:
            await job({**ctx}, order)  # a new one each time, as arq makes them
        assert raised.value.defer_score == waits_ms
    async with once_async.transaction() as tx:
        assert await tx.connection.fetch("SELECT message_id FROM onefold_inbox") == []


async def test_a_job_of_arq_is_another_one_when_its_id_is_used_again(once_async: AsyncOnefold) -> None:
    calls = []

    @on_arq.handled_once(once_async, "desk")
    async def job(ctx: dict[str, Any], order: str, tx: Transaction[Any]) -> None:
        calls.append(order)

    for order, day in (("first", 1), ("again", 1), ("second", 2)):
        await job({"job_id": "j", "enqueue_time": datetime(2026, 1, day, tzinfo=UTC)}, order)
    assert calls == ["first", "second"]


def test_a_handler_without_a_transaction_or_of_the_wrong_colour_is_refused(
    once: Onefold, once_async: AsyncOnefold
) -> None:
    def without(order: str) -> None: ...

    def in_steps(order: str, work: Steps) -> None: ...

    with pytest.raises(ConfigurationError, match="'work' for recorded steps, which only consumers"):
        on_celery.handled_once(once, "desk", Celery("colours").task)(in_steps)
    with pytest.raises(ConfigurationError, match="parameter tx"):
        on_celery.handled_once(once, "desk", Celery("colours").task)(without)
    with pytest.raises(ConfigurationError, match="`async def`, and it is given a Onefold"):
        on_arq.handled_once(once, "desk")(ship_async)
    with pytest.raises(ConfigurationError, match="plain `def`, and it is given an AsyncOnefold"):
        on_celery.handled_once(once_async, "desk", Celery("colours").task)(ship)


@pytest.mark.parametrize(
    ("module", "place"),
    [(on_celery, "app.task"), (on_dramatiq, "dramatiq.actor"), (on_taskiq, "broker.task")],
    ids=["celery", "dramatiq", "taskiq"],
)
def test_the_decorator_of_the_queue_is_given_and_not_written_above(once: Onefold, module: Any, place: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        module.handled_once(once, "desk")
    assert f"and this replaces @{place}: @handled_once(once, 'fulfilment', {place})" in str(caught.value)


def test_a_task_that_is_called_directly_needs_a_transaction_of_its_own(once: Onefold) -> None:
    task = on_celery.handled_once(once, "desk", Celery("direct", set_as_current=False).task)(ship)
    with pytest.raises(MessageUnreadable, match="called without a message"):
        task("ord-1")
    assert task("ord-1", tx="mine") == "ord-1 with mine"
    broker = StubBroker(middleware=[Retries()])
    actor = on_dramatiq.handled_once(once, "desk", dramatiq.actor, broker=broker)(ship)
    with pytest.raises(MessageUnreadable, match="called without a message"):
        actor("ord-1")
    assert actor("ord-1", tx="mine") == "ord-1 with mine"


def test_a_task_that_another_one_calls_as_a_function_is_not_taken_for_that_one(once: Onefold) -> None:
    app = Celery("nested", set_as_current=False)
    task = on_celery.handled_once(once, "desk", app.task)(ship)

    @app.task
    def bulk() -> None:
        for order in ("ord-1", "ord-2"):
            task.run(order)

    with pytest.raises(MessageUnreadable, match="called without a message"):
        bulk.apply(throw=True)
    broker = StubBroker(middleware=[Retries()])
    actor = on_dramatiq.handled_once(once, "desk", dramatiq.actor, broker=broker)(ship)
    current: Any = CurrentMessage()
    current.before_process_message(broker, dramatiq.Message("default", "bulk", (), {}, {}))
    try:
        with pytest.raises(MessageUnreadable, match="called without a message"):
            actor("ord-1")
    finally:
        current.after_process_message(broker, None)


def test_a_task_that_calls_itself_as_a_function_is_told_so(once: Onefold) -> None:
    """It would wait for its own ledger row: for another writer of SQLite, or until its lease is over."""

    def walk(depth: int, tx: Transaction[Any]) -> None:
        calls.append(depth)
        if depth:
            task(depth - 1)

    calls: list[int] = []
    task = on_celery.handled_once(once, "desk", Celery("alone", set_as_current=False).task, max_retries=0)(walk)
    with pytest.raises(MessageUnreadable, match="called by itself"):
        task.apply(args=(1,), throw=True)
    broker = StubBroker(middleware=[Retries()])
    task = on_dramatiq.handled_once(once, "desk", dramatiq.actor, broker=broker)(walk)
    current: Any = CurrentMessage()
    current.before_process_message(broker, dramatiq.Message("default", "walk", (), {}, {}))
    try:
        with pytest.raises(MessageUnreadable, match="called by itself"):
            task(1)
        assert calls == [1, 1]
        task(0)  # nothing of it is left
    finally:
        current.after_process_message(broker, None)


async def test_a_second_call_in_one_job_of_arq_is_refused(once_async: AsyncOnefold) -> None:
    ctx = {"job_id": "bulk", "enqueue_time": datetime(2026, 1, 1, tzinfo=UTC)}

    @on_arq.handled_once(once_async, "desk")
    async def job(ctx: dict[str, Any], order: str, tx: Transaction[Any]) -> str:
        return order

    assert await job(ctx, "ord-1") == "ord-1"
    with pytest.raises(Retry) as raised:
        await job(ctx, "ord-2")
    assert isinstance(raised.value.__cause__, MessageUnreadable)
