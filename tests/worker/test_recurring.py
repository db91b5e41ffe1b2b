"""Recurring events: one firing per due time, whatever becomes of the processes, the clocks and the hours."""

from __future__ import annotations

import asyncio
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from onefold import AsyncOnefold, Message, Onefold
from onefold._app.base_app import run_flow
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.runners import run_async
from onefold._outbox.schedules import ABANDONED_S, NEVER_MS, TAKEN_S, Timetable, event_id, schedules
from onefold._worker.cron import due_after
from onefold.errors import ConfigurationError, MessageInvalid
from tests.cli.commands import onefold, told
from tests.support.patience import PATIENCE_S

DAY_MS = 86_400_000


# --- when it is due -------------------------------------------------------------------------------------------


def due_times(cron: str, zone: str, start: str, count: int) -> list[str]:
    after = due_after("test", cron, zone)
    ms, found = int(datetime.fromisoformat(start).timestamp() * 1000), []
    for _ in range(count):
        next_ms = after(ms)
        assert next_ms is not None
        assert next_ms > ms
        ms = next_ms
        found.append(datetime.fromtimestamp(ms / 1000, UTC).strftime("%m-%d %H:%M:%S"))
    return found


@pytest.mark.parametrize(
    ("cron", "zone", "start", "expected"),
    [
        pytest.param("0 6 * * *", "UTC", "2026-07-01T05:59:59.999Z", ["07-01 06:00:00", "07-02 06:00:00"], id="daily"),
        pytest.param("0 6 * * *", "UTC", "2026-07-01T06:00:00Z", ["07-02 06:00:00"], id="after, not at"),
        pytest.param("0 6 * * *", "Europe/Berlin", "2026-07-01T00:00:00Z", ["07-01 04:00:00"], id="summer time"),
        pytest.param("0 6 * * *", "Europe/Berlin", "2026-12-01T00:00:00Z", ["12-01 05:00:00"], id="winter time"),
        pytest.param("0 0 * * MON-FRI", "UTC", "2026-07-03T00:00:00Z", ["07-06 00:00:00"], id="weekdays"),
        pytest.param("*/20 * * * * *", "UTC", "2026-07-03T00:00:41Z", ["07-03 00:01:00"], id="seconds"),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-03-28T12:00:00Z", ["03-29 01:00:00", "03-30 00:30:00"],
            id="in the hour that is missing: at its end, and once",
        ),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-10-24T12:00:00Z", ["10-25 00:30:00", "10-26 01:30:00"],
            id="in the hour that is there twice: the first time",
        ),
        pytest.param(
            "30 2 * * *", "Europe/Berlin", "2026-10-25T01:10:00Z", ["10-26 01:30:00"],
            id="asked in the second pass of that hour",
        ),
        pytest.param(
            "0 * * * *", "Europe/Berlin", "2026-10-24T23:30:00Z",
            ["10-25 00:00:00", "10-25 01:00:00", "10-25 02:00:00"],
            id="hourly when clocks go back: every hour",
        ),
        pytest.param(
            "0 * * * *", "Europe/Berlin", "2026-03-28T23:30:00Z",
            ["03-29 00:00:00", "03-29 01:00:00", "03-29 02:00:00"],
            id="hourly when clocks go forward: every hour",
        ),
    ],
)  # fmt: skip
def test_due_times(cron: str, zone: str, start: str, expected: list[str]) -> None:
    assert due_times(cron, zone, start, len(expected)) == expected


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"cron": "0 6 * *"}, r"'daily-report' has cron='0 6 \* \*'.*Five fields"),
        ({"cron": "99 6 * * *"}, "Bad minute"),
        ({"cron": "0 0 31 2 *"}, "Bad day-of-month"),
        ({"zone": "Europe/Nowhere"}, "'Europe/Nowhere', which is not a time zone"),
        ({"name": "a b"}, "letters, digits"),
        ({"topic": "no topic"}, "topic 'no topic'"),
        ({"data": object()}, "cannot be written as JSON"),
    ],
)
def test_what_can_never_be_published_is_refused_where_it_is_written(
    sqlite_path: Path, changes: dict[str, Any], says: str
) -> None:
    once = Onefold(sqlite_path, source="shop")
    given = {"name": "daily-report", "cron": "0 6 * * *", "topic": "report.due", **changes}
    with pytest.raises((ConfigurationError, MessageInvalid), match=says):
        once.recurring(**given)
    once.close()


def test_two_of_one_name_and_one_of_a_nameless_application_are_refused(sqlite_path: Path) -> None:
    with closing(Onefold(sqlite_path, source="shop")) as once:
        once.recurring("report", cron="0 6 * * *", topic="report.due")
        with pytest.raises(ConfigurationError, match="two recurring events are named 'report'"):
            once.recurring("report", cron="0 7 * * *", topic="report.due")
    with closing(Onefold(sqlite_path)) as nameless, pytest.raises(ConfigurationError, match="give Onefold a source"):
        nameless.recurring("report", cron="0 6 * * *", topic="report.due")


# --- firing ---------------------------------------------------------------------------------------------------


class Stage:
    """Processes over one database, each with its own Onefold."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.stack = AsyncExitStack()

    async def process(self, cron: str = "0 6 * * *", **given: Any) -> tuple[AsyncOnefold, Timetable]:
        once = AsyncOnefold(self.address, source="shop")
        self.stack.push_async_callback(once.close)
        await once.migrate()
        once.recurring("report", cron=cron, topic="report.due", **given)
        return once, Timetable(once._database.dialect, "shop", once._recurring)

    async def ask(self, once: AsyncOnefold, sql: str) -> Any:
        async with once.transaction() as tx:
            rows = await tx.connection.fetch(sql)
            return [tuple(row) for row in rows]

    async def change(self, once: AsyncOnefold, sql: str) -> None:
        async with once.transaction() as tx:
            await tx.connection.execute(sql)

    async def make_due(self, once: AsyncOnefold, ago_ms: int) -> int:
        due_ms = int(datetime.now(UTC).timestamp() * 1000) - ago_ms
        await self.change(once, f"UPDATE onefold_schedule SET due_ms = {due_ms}")
        return due_ms


async def fire(once: AsyncOnefold, timetable: Timetable) -> float | None:
    return await run_flow(once, lambda dialect: timetable.fire())


@pytest.fixture(params=["sqlite", "postgres"])
async def stage(request: pytest.FixtureRequest, sqlite_path: Path) -> AsyncIterator[Stage]:
    address = str(request.getfixturevalue("postgres_dsn") if request.param == "postgres" else sqlite_path)
    stage = Stage(address)
    async with stage.stack:
        yield stage


async def test_it_is_published_when_it_is_due_and_then_when_it_is_due_next(stage: Stage) -> None:
    once, timetable = await stage.process(data={"kind": "daily"}, key="all", headers={"team": "finance"})
    wait_s = await fire(once, timetable)
    assert wait_s is not None
    assert 0 < wait_s <= 86_400
    assert await stage.ask(once, "SELECT id FROM onefold_outbox") == []
    due_ms = await stage.make_due(once, 5)
    wait_s = await fire(once, timetable)
    assert wait_s is not None
    assert 0 < wait_s <= 86_400
    await fire(once, timetable)
    [row] = await stage.ask(once, "SELECT id, topic, key, version, time, headers, data FROM onefold_outbox")
    moment = datetime.fromtimestamp(due_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    assert row[:5] == (event_id("shop", "report", due_ms), "report.due", "all", 1, moment)
    assert (json.loads(row[5]), json.loads(row[6])) == ({"team": "finance"}, {"kind": "daily"})
    [seen] = await run_flow(once, schedules)
    assert (seen.name, seen.rule, seen.fired_ms) == ("shop/report", "0 6 * * * UTC", due_ms)
    assert seen.due_ms is not None
    assert seen.due_ms > due_ms


async def test_due_times_that_were_missed_are_published_as_one(stage: Stage) -> None:
    once, timetable = await stage.process(cron="* * * * *")
    await fire(once, timetable)
    due_ms = await stage.make_due(once, 3 * DAY_MS)
    after_restart = Timetable(once._database.dialect, "shop", once._recurring)
    for _ in range(2):
        await fire(once, after_restart)
    assert await stage.ask(once, "SELECT id FROM onefold_outbox") == [(event_id("shop", "report", due_ms),)]


async def test_however_many_processes_there_are_each_due_time_is_published_once(stage: Stage) -> None:
    processes = [await stage.process() for _ in range(6)]
    await asyncio.gather(*(fire(*process) for process in processes))
    dues = []
    for round_ in range(5):
        dues.append(await stage.make_due(processes[0][0], 1000 - round_))
        await asyncio.gather(*(fire(*process) for process in processes))
    found = Counter(await stage.ask(processes[0][0], "SELECT id FROM onefold_outbox"))
    assert found == {(event_id("shop", "report", due_ms),): 1 for due_ms in dues}


async def test_the_rule_of_the_process_that_was_started_last_holds(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    old = await stage.process()
    await fire(*old)
    new = await stage.process(cron="0 7 * * *", zone="Europe/Berlin")
    await fire(*new)
    due_ms = await stage.make_due(old[0], 5)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert await fire(*old) is None
    assert await stage.ask(old[0], "SELECT id FROM onefold_outbox") == []
    assert [record.message for record in caplog.records] == [
        "recurring event 'report' is not published by this process: one that was started later has another rule for "
        "it, 0 7 * * * Europe/Berlin (here 0 6 * * * UTC)"
    ]
    await fire(*new)
    assert await stage.ask(old[0], "SELECT id FROM onefold_outbox") == [(event_id("shop", "report", due_ms),)]
    assert await fire(*await stage.process()) is not None
    [seen] = await run_flow(new[0], schedules)
    assert seen.rule == "0 6 * * * UTC", "rolled back to the former release"


class Crash(BaseException):
    """The process is gone."""


class DyingExecutor(TaskExecutor[Any]):
    """Dies before its n-th effect on the database."""

    def __init__(self, database: Any, effects: int) -> None:
        super().__init__(database)
        self.left = effects

    def _count(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Crash

    def batch(self, steps: Any) -> Any:
        self._count()
        return super().batch(steps)

    def fetch(self, statement: Any) -> Any:
        self._count()
        return super().fetch(statement)


async def test_a_process_that_dies_at_any_point_loses_and_doubles_nothing(stage: Stage) -> None:
    survivor = await stage.process()
    for effects in range(20):
        once, timetable = await stage.process()
        await fire(*survivor)
        due_ms = await stage.make_due(once, 1000 - effects)
        try:
            await run_async(timetable.fire(), DyingExecutor(once._database, effects))
            ended = True
        except Crash:
            ended = False
        give_up_at = asyncio.get_running_loop().time() + PATIENCE_S
        while await fire(*survivor) == TAKEN_S:  # the server may still be about to undo what the dead one began
            assert asyncio.get_running_loop().time() < give_up_at
        assert await stage.ask(once, "SELECT id FROM onefold_outbox") == [(event_id("shop", "report", due_ms),)]
        await stage.change(once, "DELETE FROM onefold_outbox")
        if ended:
            break
    assert effects >= 5, "it died at every point before"


async def test_a_process_that_stands_still_while_it_publishes_holds_up_no_other(postgres_dsn: str) -> None:
    stage = Stage(postgres_dsn)
    async with stage.stack:
        once, timetable = await stage.process()
        await fire(once, timetable)
        await stage.make_due(once, 5)
        holder = await asyncpg.connect(postgres_dsn)
        async with holder.transaction():
            await holder.execute("UPDATE onefold_schedule SET fired_ms = 1")
            assert await asyncio.wait_for(fire(once, timetable), PATIENCE_S) == TAKEN_S
        await holder.close()
        assert await stage.ask(once, "SELECT id FROM onefold_outbox") == []


async def test_what_is_never_due_again_stays_so(stage: Stage) -> None:
    once, _ = await stage.process()
    [recurring] = once._recurring
    never = type(recurring)(name="never", rule="never", after=lambda ms: None, make_event=recurring.make_event)
    await fire(once, Timetable(once._database.dialect, "shop", [never]))
    [seen] = await run_flow(once, schedules)
    assert (seen.name, seen.due_ms) == ("shop/never", None)
    assert await stage.ask(once, "SELECT due_ms FROM onefold_schedule") == [(NEVER_MS,)]


async def test_services_that_share_a_database_have_schedules_of_their_own(stage: Stage) -> None:
    once, shop = await stage.process()
    bank = Timetable(once._database.dialect, "bank", once._recurring)
    for service in (shop, bank):
        await fire(once, service)
    due_ms = await stage.make_due(once, 1000)
    for service in (shop, bank):
        await fire(once, service)
    found = await stage.ask(once, "SELECT id FROM onefold_outbox")
    assert {row[0] for row in found} == {event_id(source, "report", due_ms) for source in ("shop", "bank")}


async def test_a_rule_that_no_process_serves_any_more_is_taken_back_by_those_that_are_left(stage: Stage) -> None:
    once, current = await stage.process("0 6 * * *")
    await fire(once, current)
    short_lived, former = await stage.process("0 7 * * *")
    await fire(short_lived, former)
    await stage.make_due(once, 1000)
    await fire(once, current)
    [left] = await run_flow(once, schedules)
    assert left.rule.startswith("0 7"), "its process may be at work"
    await stage.make_due(once, int(ABANDONED_S * 1000) + 60_000)
    await fire(once, current)
    [taken] = await run_flow(once, schedules)
    assert taken.rule.startswith("0 6")


async def test_a_clock_that_was_ahead_for_a_while_does_not_silence_it(stage: Stage) -> None:
    """Its row says when it is due by that clock. By the right one, it is due before."""
    once, timetable = await stage.process("* * * * *")
    await fire(once, timetable)
    [(due_ms,)] = await stage.ask(once, "SELECT due_ms FROM onefold_schedule")
    await stage.change(
        once, f"UPDATE onefold_schedule SET due_ms = {due_ms + 30 * DAY_MS}, fired_ms = {due_ms - 60_000}"
    )
    wait_s = await fire(once, timetable)
    assert wait_s is not None
    assert wait_s <= 60
    [seen] = await run_flow(once, schedules)
    assert seen.due_ms is not None
    assert 0 <= seen.due_ms - due_ms <= 3_600_000
    assert await stage.ask(once, "SELECT id FROM onefold_outbox") == []


async def test_a_clock_that_is_set_back_fires_no_due_time_again(stage: Stage) -> None:
    once, timetable = await stage.process("0 6 * * *")
    await fire(once, timetable)
    [(due_ms,)] = await stage.ask(once, "SELECT due_ms FROM onefold_schedule")
    await stage.change(once, f"UPDATE onefold_schedule SET due_ms = {due_ms + DAY_MS}, fired_ms = {due_ms}")
    await fire(once, timetable)
    assert await stage.ask(once, "SELECT due_ms FROM onefold_schedule") == [(due_ms + DAY_MS,)]


# --- the relay ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("onefold_type", [Onefold, AsyncOnefold])
async def test_relays_publish_it_and_consumers_get_it(onefold_type: Callable[..., Any], sqlite_path: Path) -> None:
    got: list[Message] = []
    enough = asyncio.Event()
    processes = []
    for _ in range(3):
        once = onefold_type(sqlite_path, source="shop")
        once.recurring("tick", cron="* * * * * *", topic="ticked", data={"n": 1})
        processes.append(once)

    async def count(message: Message) -> None:
        got.append(message)
        if len(got) >= 3:
            enough.set()

    processes[0].consumer("counter", topic="ticked")(count)
    stop = asyncio.Event()
    works = [asyncio.create_task(once.relay(stop)) for once in processes]
    works.append(asyncio.create_task(processes[0].consume(stop)))
    await asyncio.wait_for(enough.wait(), PATIENCE_S)
    stop.set()
    await asyncio.gather(*works)
    times = [datetime.fromisoformat(message.time or "") for message in got]
    assert len(set(times)) == len(times)
    assert all(moment.microsecond == 0 for moment in times)
    assert [message.id for message in got] == [
        event_id("shop", "tick", int(moment.timestamp() * 1000)) for moment in times
    ]
    for once in processes:
        closed = once.close()
        if closed is not None:
            await closed


def test_the_command_lists_them(tmp_path: Path) -> None:
    once = Onefold(tmp_path / "shop.db", source="shop")
    empty = onefold("recurring", "list", "-d", "shop.db", cwd=tmp_path)
    assert (empty.returncode, empty.stdout) == (0, "there are no recurring events\n")
    once.recurring("report", cron="0 6 * * *", topic="report.due", zone="Europe/Berlin")
    with once.relaying():
        deadline = datetime.now(UTC) + timedelta(seconds=PATIENCE_S)
        while not (found := told(onefold("recurring", "list", "-d", "shop.db", "--json", cwd=tmp_path))):
            assert datetime.now(UTC) < deadline
    [seen] = found
    assert (seen["name"], seen["rule"], seen["fired"]) == ("shop/report", "0 6 * * * Europe/Berlin", None)
    assert datetime.fromisoformat(seen["due"]) > datetime.now(UTC)
    assert "report" in onefold("recurring", "list", "-d", "shop.db", cwd=tmp_path).stdout
    once.close()
