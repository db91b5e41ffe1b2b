"""The activity history: what was counted is in the database, once, whatever happens beside it."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._app.migrations import MIGRATIONS
from onefold._kernel.effects import Flow
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold._kernel.telemetry.client_events import RetryPlanned
from onefold._kernel.telemetry.consumer_events import Duplicate
from onefold._kernel.telemetry.every_event import Event
from onefold._kernel.telemetry.relay_events import OutboxMeasured
from onefold._kernel.telemetry.request_events import Claimed
from onefold._observe import instrument_table as table
from onefold._observe.activity import counts as counting
from onefold._observe.activity import writing
from onefold._observe.activity.counts import HOUR_S, MINUTE_S, QUARTER_DAY_S, SERIES_MAX, SPANS_S, ActivityCounts
from onefold._observe.activity.history import Activity, TimeWindow, last_day, last_hour, last_week, read_activity
from onefold._observe.activity.writing import KEPT_S, TaskActivity, ThreadActivity, forget_activity
from onefold._observe.recorder import OTHER, Recorder
from onefold.db._drivers import async_database, sync_database
from onefold.db._migrations import migrate
from onefold.errors import ConfigurationError, ConnectionLost
from tests.support.patience import PATIENCE_S
from tests.upgrade.places import rows
from tests.worker.consuming import until

PAY = "POST /payments"
#: A minute that is over, and a minute after it.
NOON_S = 1_780_000_000 // QUARTER_DAY_S * QUARTER_DAY_S


@pytest.fixture(params=["postgres", "sqlite"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    found = str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))
    ask(found, lambda dialect: migrate(dialect, MIGRATIONS[dialect]))
    return found


def ask(address: str, flow: Any) -> Any:
    with closing(sync_database(address)) as database:
        made: Flow[Any] = flow(database.dialect)
        return run(made, ThreadExecutor(database))


def counted(address: str, span_s: int = MINUTE_S) -> dict[tuple[str, tuple[str, ...]], int]:
    """What is in the table, summed up over spans and processes."""
    found: dict[tuple[str, tuple[str, ...]], int] = {}
    sql = f"SELECT instrument, labels, amount FROM onefold_activity WHERE span_s = {span_s}"
    for instrument, labels, amount in rows(address, sql):
        key = (instrument, tuple(json.loads(labels)))
        found[key] = found.get(key, 0) + amount
    return found


def count_into(counts: ActivityCounts, *events: Event) -> None:
    record = Recorder(counts)
    for event in events:
        record(event)


# --- counting -------------------------------------------------------------------------------------------------


def test_a_span_is_taken_whole_and_again_until_it_is_written() -> None:
    counts = ActivityCounts()
    count_into(counts, Claimed(PAY, "run"), Claimed(PAY, "replay"), Claimed(PAY, "replay"))
    first = counts.take(NOON_S)
    assert {(count.instrument, count.span_s, count.amount) for count in first} == {
        (instrument, span_s, amount)
        for instrument, amount in (("onefold.requests", 1), ("onefold.requests", 2), ("onefold.duplicates", 2))
        for span_s in SPANS_S
    }
    count_into(counts, Claimed(PAY, "run"))
    again = counts.take(NOON_S + 10)
    assert len(again) == len(first), "what was not written is there again"
    assert sum(count.amount for count in again) == sum(count.amount for count in first) + 3
    counts.written(again, NOON_S + 10)
    assert counts.take(NOON_S + 20) == []
    count_into(counts, Claimed(PAY, "run"))
    [minute, hour, quarter] = counts.take(NOON_S + MINUTE_S)
    assert (minute.since_s, minute.amount) == (NOON_S + MINUTE_S, 1)
    assert (hour.since_s, hour.amount) == (NOON_S, 3), "the hour goes on"
    assert (quarter.since_s, quarter.amount) == (NOON_S, 3)


def test_of_a_gauge_the_greatest_value_is_kept_and_nothing_of_0() -> None:
    counts = ActivityCounts()
    for oldest_s in (0.0, 2.5, 7.2, 1.0, 0.0):
        count_into(counts, OutboxMeasured(pending={}, oldest_s=oldest_s, delayed=0, retrying=0, dead=0, relays=1))
    assert [(count.instrument, count.amount) for count in counts.take(NOON_S)] == [("onefold.outbox.oldest.age", 8)] * 3


def test_what_has_many_series_is_counted_as_other() -> None:
    counts = ActivityCounts()
    count_into(counts, *(Duplicate(f"c{number % 40}", f"t{number}") for number in range(SERIES_MAX * 2)))
    taken = [count for count in counts.take(NOON_S) if count.span_s == MINUTE_S]
    assert len(taken) <= SERIES_MAX + len(counting.KEPT)
    messages = [count for count in taken if count.instrument == "onefold.messages"]
    assert sum(count.amount for count in messages) == SERIES_MAX * 2, "none is lost"
    assert any(OTHER in count.labels for count in messages)


def test_a_database_that_stays_away_costs_the_oldest_counts_and_no_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(counting, "UNWRITTEN_MAX", 10)
    counts = ActivityCounts()
    for minute in range(20):
        count_into(counts, Claimed(PAY, "run"))
        taken = counts.take(NOON_S + minute * MINUTE_S)
    assert len(taken) == 10
    assert min(count.since_s for count in taken if count.span_s == MINUTE_S) == NOON_S + 12 * MINUTE_S
    assert [count.amount for count in taken if count.span_s == HOUR_S] == [20], "the hour has them all"
    assert [count.amount for count in taken if count.span_s == QUARTER_DAY_S] == [20]
    assert "1 counts were dropped, the oldest first: the database has not taken them" in caplog.text
    assert sum(map(len, counts._spans.values())) <= 10, "nor is kept what such a count had come to"


# --- writing --------------------------------------------------------------------------------------------------


def test_what_is_written_twice_or_late_counts_once(address: str) -> None:
    """A COMMIT whose answer was lost is written again; a slow write may end after a later one."""
    with closing(sync_database(address)) as database:
        activity = ThreadActivity(database)
        count_into(activity.counts, Claimed(PAY, "replay"))
        early = activity.counts.take(NOON_S)
        count_into(activity.counts, Claimed(PAY, "replay"))
        late = activity.counts.take(NOON_S + 1)
        for some in (late, early, late):
            executor = ThreadExecutor(database)
            executor.acquire()
            run(activity._write(some), executor)
            executor.release()
    assert counted(address) == {("onefold.requests", (PAY, "replay")): 2, ("onefold.duplicates", ("http",)): 2}
    assert counted(address, HOUR_S) == counted(address)


def test_two_processes_are_summed_up_and_of_gauges_the_greatest_counts(address: str) -> None:
    with closing(sync_database(address)) as database:
        for oldest_s in (3.0, 9.0):
            activity = ThreadActivity(database)
            measured = OutboxMeasured(pending={}, oldest_s=oldest_s, delayed=0, retrying=0, dead=0, relays=1)
            count_into(activity.counts, Claimed(PAY, "run"), measured)
            run(activity.write(), ThreadExecutor(database))
    now_s = newest(address)
    found: Activity = ask(address, lambda dialect: read_activity(dialect, last_hour(now_s)))
    assert found.by(table.REQUESTS, "outcome")["run"][-1] == 2
    assert found.by(table.OUTBOX_OLDEST)[""][-1] == 9
    assert found.total(table.REQUESTS) == 2
    assert found.latest_s == now_s - now_s % MINUTE_S


def newest(address: str) -> int:
    [(since_s,)] = rows(address, f"SELECT max(since_s) FROM onefold_activity WHERE span_s = {MINUTE_S}")
    return int(since_s)


def test_spans_past_their_time_are_deleted_and_no_others(address: str) -> None:
    now_s = int(time.time())
    with closing(sync_database(address)) as database:
        activity = ThreadActivity(database)
        ages = [0, *(keep_s + age_s for keep_s in {*KEPT_S.values()} for age_s in (-7 * HOUR_S, 7 * HOUR_S))]
        for age_s in ages:
            count_into(activity.counts, RetryPlanned("bank", "POST", 1, 0.1, throttled=False))
            activity.counts.take(now_s - age_s)
        executor = ThreadExecutor(database)
        executor.acquire()
        run(activity._write(activity.counts.take(now_s)), executor)
        executor.release()
        gone = run(forget_activity(database.dialect, limit=2), ThreadExecutor(database))
    kept = rows(address, "SELECT span_s, since_s FROM onefold_activity ORDER BY span_s, since_s")
    assert gone == 3 + 3 + 1
    assert all(now_s - since_s < KEPT_S[span_s] for span_s, since_s in kept)
    assert len(kept) == len(SPANS_S) * len(ages) - gone


class Away:
    """A database that is away, until it is back."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.dialect, self.away, self.asked = inner, inner.dialect, True, 0

    def close(self) -> None:
        self.inner.close()

    def acquire(self) -> Any:
        self.asked += 1
        if self.away:
            raise ConnectionLost("the server is gone")
        return self.inner.acquire()


def test_while_the_database_is_away_counts_wait_and_it_is_said_once(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Onefold(str(sqlite_path)).close()
    caplog.set_level(logging.INFO, "onefold.activity")
    with closing(sync_database(str(sqlite_path))) as inner:
        database = Away(inner)
        activity = ThreadActivity(database)
        for _ in range(3):
            count_into(activity.counts, Claimed(PAY, "replay"))
            run(activity.write(), ThreadExecutor(database))
        assert database.asked == 3
        assert counted(str(sqlite_path)) == {}
        database.away = False
        run(activity.write(), ThreadExecutor(database))
    assert counted(str(sqlite_path))["onefold.duplicates", ("http",)] == 3
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]


# --- in applications ------------------------------------------------------------------------------------------


def shop(once: AsyncOnefold) -> FastAPI:
    app = FastAPI()

    @app.post("/payments", status_code=201)
    @once.idempotent()
    async def pay() -> dict[str, str]:
        return {}

    once.install(app)
    return app


@asynccontextmanager
async def client_of(app: FastAPI) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        yield client


async def pay_twice(app: FastAPI) -> None:
    async with client_of(app) as client:
        for _ in range(2):
            assert (await client.post("/payments", headers={"Idempotency-Key": "a"})).status_code == 201


PAID_TWICE = {
    ("onefold.requests", (PAY, "run")): 1,
    ("onefold.requests", (PAY, "replay")): 1,
    ("onefold.duplicates", ("http",)): 1,
}


async def test_an_application_on_asyncio_leaves_its_counts_when_it_is_closed(address: str) -> None:
    once = AsyncOnefold(address, principal=single_principal, activity=True)
    await pay_twice(shop(once))
    await once.close()
    assert counted(address) == PAID_TWICE


async def test_without_activity_nothing_is_counted(address: str) -> None:
    once = AsyncOnefold(address, principal=single_principal)
    await pay_twice(shop(once))
    await once.close()
    assert counted(address) == {}


async def test_a_lifespan_that_ends_leaves_the_counts_before_the_application_closes_its_pool(address: str) -> None:
    seen: list[dict[Any, int]] = []

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        seen.append(counted(address))

    once = AsyncOnefold(address, principal=single_principal, activity=True)
    app = shop(once)
    app.router.lifespan_context = lifespan
    async with app.router.lifespan_context(app):
        pass
    seen.clear()
    messages = asyncio.Queue[dict[str, str]]()
    said = asyncio.Queue[Any]()
    await messages.put({"type": "lifespan.startup"})
    living = asyncio.create_task(app({"type": "lifespan", "state": {}}, messages.get, said.put))
    assert (await said.get())["type"] == "lifespan.startup.complete"
    await pay_twice(app)
    await messages.put({"type": "lifespan.shutdown"})
    await living
    assert seen == [PAID_TWICE]
    await once.close()


async def test_counts_are_written_while_the_application_runs(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside requests, and not by them: on the timer of the loop."""
    monkeypatch.setattr(writing.TaskActivity.__init__, "__kwdefaults__", {"every_s": 0.05})
    once = AsyncOnefold(address, principal=single_principal, activity=True)
    await pay_twice(shop(once))
    await until(lambda: counted(address) == PAID_TWICE)
    await once.close()


def test_an_application_on_threads_leaves_its_counts_when_it_is_closed(address: str) -> None:
    once = Onefold(address, principal=single_principal, activity=True)
    app = Flask("shop")

    @app.post("/payments")
    @once.idempotent()
    def pay() -> tuple[str, int]:
        return "paid", 201

    once.install(app)
    for _ in range(2):
        assert app.test_client().post("/payments", headers={"Idempotency-Key": "a"}).status_code == 201
    assert counted(address) == {}, "nothing is written by a request"
    once.close()
    assert counted(address) == PAID_TWICE
    assert not [thread for thread in threading.enumerate() if thread.name == "onefold-activity"]


async def test_relays_and_consumers_leave_their_counts_when_they_stop(address: str) -> None:
    once = AsyncOnefold(address, source="shop", broker="local", activity=True)
    handled = asyncio.Event()

    @once.consumer("mailer", topic="orders")
    async def mail(message: Any) -> None:
        handled.set()

    async with once.relaying():
        async with once.consuming():
            async with once.transaction() as tx:
                _ = tx.publish("orders", {}, key="7")
            async with asyncio.timeout(PATIENCE_S):
                await handled.wait()
        assert counted(address)["onefold.messages", ("mailer", "orders", "handled")] == 1
    assert counted(address)["onefold.outbox.published", ("orders",)] == 1
    await once.close()


def test_workers_of_an_application_on_threads_leave_their_counts(address: str) -> None:
    once = Onefold(address, source="shop", broker="local", activity=True)
    handled = threading.Event()

    @once.consumer("mailer", topic="orders")
    def mail(message: Any) -> None:
        handled.set()

    with once.relaying(), once.consuming():
        with once.transaction() as tx:
            _ = tx.publish("orders", {}, key="7")
        assert handled.wait(PATIENCE_S)
    once.close()
    assert counted(address)["onefold.messages", ("mailer", "orders", "handled")] == 1
    assert counted(address)["onefold.outbox.published", ("orders",)] == 1


def test_what_a_client_retries_is_counted_with_the_listener_of_its_application(sqlite_path: Path) -> None:
    once = Onefold(str(sqlite_path), activity=True)
    assert once.listener is not None
    once.listener(RetryPlanned("bank", "POST", 1, 0.1, throttled=True))
    once.close()
    assert counted(str(sqlite_path)) == {("onefold.client.retries", ("bank", "throttled")): 1}


def test_activity_that_is_neither_true_nor_false_is_refused(sqlite_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="activity=60 must be True or False"):
        Onefold(str(sqlite_path), activity=60)  # type: ignore[arg-type]


# --- forks, exits, loops --------------------------------------------------------------------------------------


def test_a_forked_child_writes_its_own_counts_and_not_those_of_its_parent(sqlite_path: Path) -> None:
    once = Onefold(str(sqlite_path), activity=True)
    assert once.listener is not None
    once.listener(Claimed(PAY, "run"))
    pid = os.fork()
    if pid == 0:
        try:
            once.listener(Claimed(PAY, "replay"))
            once.close()
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert counted(str(sqlite_path)) == {
        ("onefold.requests", (PAY, "replay")): 1, ("onefold.duplicates", ("http",)): 1,
    }  # fmt: skip
    once.close()
    assert counted(str(sqlite_path)) == PAID_TWICE
    assert len(rows(str(sqlite_path), "SELECT DISTINCT process FROM onefold_activity")) == 2


def test_a_process_with_threads_that_exits_without_close_leaves_its_counts(sqlite_path: Path) -> None:
    program = f"""
from onefold import Onefold
from onefold._kernel.telemetry.request_events import Claimed
once = Onefold({str(sqlite_path)!r}, activity=True)
once.listener(Claimed("POST /payments", "run"))
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=PATIENCE_S)
    assert counted(str(sqlite_path)) == {("onefold.requests", (PAY, "run")): 1}


def test_each_loop_has_a_timer_and_one_only(sqlite_path: Path) -> None:
    Onefold(str(sqlite_path)).close()
    database = async_database(str(sqlite_path))
    activity = TaskActivity(database)

    async def tell() -> int:
        for _ in range(5):
            activity(Claimed(PAY, "run"))
        return len(activity._timers)

    assert asyncio.run(tell()) == 1
    assert asyncio.run(tell()) == 1, "that of the loop that is closed is gone"
    activity(Claimed(PAY, "run"))  # on a thread without a loop

    async def end() -> None:
        await activity.close()
        await database.close()

    asyncio.run(end())
    assert counted(str(sqlite_path))["onefold.requests", (PAY, "run")] == 11


# --- reading --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("window", "spans", "span_s"),
    [
        (last_hour(NOON_S + 61), 60, MINUTE_S),
        (last_day(NOON_S + 61), 24, HOUR_S),
        (last_week(NOON_S + 61), 28, QUARTER_DAY_S),
    ],
)
def test_a_window_ends_with_the_span_that_it_is_now(window: TimeWindow, spans: int, span_s: int) -> None:
    assert window.spans == spans
    assert window.until_s - span_s <= NOON_S + 61 < window.until_s


def test_a_label_that_an_instrument_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="has no label 'topic'"):
        Activity(last_hour(NOON_S), {}, None).by(table.REQUESTS, "topic")
