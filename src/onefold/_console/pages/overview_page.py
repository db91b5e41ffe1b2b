"""The overview: what waits and what is stuck now, and what was done and absorbed in the last hour, day or week."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from starlette.responses import Response

from onefold._console.consumers_now import ConsumersNow, look_at_consumers
from onefold._console.live import Fragments
from onefold._console.plots import Plot, level, stack
from onefold._console.sections import Page, Section, Visit
from onefold._inbox.failed_lists import tally_failed
from onefold._kernel.effects import Flow
from onefold._kernel.telemetry.request_events import STEPPED_ASIDE
from onefold._observe import instrument_table as table
from onefold._observe.activity.history import Activity, TimeWindow, last_day, last_hour, last_week, read_activity
from onefold._observe.instruments import Labels
from onefold._outbox.status_report import Report, report
from onefold._steps.unfinished_works import WorkView, list_works

COUNT_MAX: Final = 1000
CONSUMERS_MAX: Final = 50
PARKED_MAX: Final = 100

WINDOWS: Final[dict[str, tuple[str, Callable[[int], TimeWindow]]]] = {
    "hour": ("last hour", last_hour),
    "day": ("last 24 hours", last_day),
    "week": ("last 7 days", last_week),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedNow:
    """Failed messages of all consumers, each of which is counted up to COUNT_MAX."""

    waiting: int
    parked: int
    dead: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """The values of the page."""

    outbox: Report
    failed: FailedNow
    consumers: ConsumersNow
    parked: int
    """Works that wait for a person, counted up to PARKED_MAX."""
    activity: Activity
    plots: tuple[Plot, ...]
    absorbed: tuple[tuple[str, int], ...]
    """What was answered from a record or acknowledged without its handler, by where: the most first."""

    @property
    def waiting(self) -> int:
        return sum(topic.waiting for topic in self.outbox.pending)

    @property
    def outbox_dead(self) -> int:
        return sum(stopped.next_try_s is None for stopped in self.outbox.stopped)

    @property
    def retrying(self) -> int:
        return len(self.outbox.stopped) - self.outbox_dead

    @property
    def relays(self) -> int:
        return sum(relay.lease_left_s > 0 for relay in self.outbox.relays)


def look_at_outbox(dialect: str) -> Flow[Report]:
    return report(dialect, count_max=COUNT_MAX, stopped_max=COUNT_MAX)


def look_at_parked(dialect: str) -> Flow[list[WorkView]]:
    return list_works(dialect, parked_only=True, limit=PARKED_MAX)


async def measure_all_failed(dialect: str) -> FailedNow:
    """Over all consumers that have any."""
    tallies = await tally_failed(dialect, count_max=COUNT_MAX, consumers_max=CONSUMERS_MAX)
    return FailedNow(
        waiting=sum(tally.waiting for tally in tallies),
        parked=sum(tally.parked for tally in tallies),
        dead=sum(tally.dead for tally in tallies),
    )


def draw(activity: Activity) -> tuple[Plot, ...]:
    """The plots of a window."""
    window = activity.window
    outcomes = split_outcomes(activity)
    retried = {
        **{f"calls, {cause}": amounts for cause, amounts in activity.by(table.RETRIES, "cause").items()},
        "messages": activity.by(table.MESSAGES, "outcome").get("failed", []),
        "events": _sum(activity.by(table.PUBLISH_FAILURES, "destination").values()),
    }
    dead = {
        "messages": activity.by(table.MESSAGES, "outcome").get("dead", []),
        "events": _sum(activity.by(table.OUTBOX_DEAD_LETTERS, "topic").values()),
    }
    ordered = {name: outcomes[name] for name in sorted(outcomes, key=_outcome_order)}
    return (
        stack("Requests by outcome", "request", ordered, window),
        stack("Duplicates absorbed", "duplicate", activity.by(table.DUPLICATES, "hop"), window),
        level("Age of the outbox", "s", activity.by(table.OUTBOX_OLDEST).get("", [0] * window.spans), window),
        stack("Retries", "attempt", _fill(retried), window),
        stack("Dead letters", "dead letter", _fill(dead), window),
    )


_ORDER: Final = (
    "run",
    "replay",
    "in_flight",
    "mismatch",
    "expired",
    "limited",
    "unavailable",
    "unprotected",
    "released",
)


def split_outcomes(activity: Activity) -> dict[str, list[int]]:
    """Requests by outcome: of those that were run, `released` left nothing behind, because they raised or
    answered 5xx. A request that waited for its turn is run twice, and counts once."""
    outcomes = activity.by(table.REQUESTS, "outcome")
    reasons = activity.by(table.RELEASED, "reason")
    released = _sum(reasons.values())
    if released and "run" in outcomes:  # one may have been released in another span than it was run in: never below 0
        outcomes["run"] = [max(0, run - gone) for run, gone in zip(outcomes["run"], released, strict=True)]
    reasons.pop(STEPPED_ASIDE, None)
    return _fill({**outcomes, "released": _sum(reasons.values())})


def _outcome_order(outcome: str) -> tuple[int, str]:
    return (_ORDER.index(outcome) if outcome in _ORDER else len(_ORDER), outcome)


def _sum(several: Any) -> list[int]:
    return [sum(amounts) for amounts in zip(*several, strict=True)]


def _fill(series: dict[str, list[int]]) -> dict[str, list[int]]:
    return {name: amounts for name, amounts in series.items() if amounts}


def list_absorbed(activity: Activity, limit: int = 20) -> tuple[tuple[str, int], ...]:
    """By operation and by consumer, the most first."""
    found: dict[str, int] = {}
    for (name, labels), amounts in activity.series.items():
        if where := _absorbed_where(name, labels):
            found[where] = found.get(where, 0) + sum(amounts)
    return tuple(sorted(found.items(), key=lambda item: (-item[1], item[0]))[:limit])


def _absorbed_where(name: str, labels: Labels) -> str | None:
    match name, labels:
        case "onefold.requests", (operation, "replay"):
            return operation
        case "onefold.messages", (consumer, topic, "duplicate"):
            return f"consumer {consumer}, topic {topic}"
        case _:
            return None


def chosen_window(visit: Visit) -> str:
    asked = visit.query("window", "hour")
    return asked if asked in WINDOWS else "hour"


async def look(visit: Visit) -> Overview:
    """All that the page shows: bounded reads."""
    window = WINDOWS[chosen_window(visit)][1](int(visit.parts.now()))
    activity = await visit.run(lambda dialect: read_activity(dialect, window))
    return Overview(
        outbox=await visit.run(look_at_outbox),
        failed=await visit.run(measure_all_failed),
        consumers=await visit.run(lambda dialect: look_at_consumers(dialect, count_max=COUNT_MAX)),
        parked=len(await visit.run(look_at_parked)),
        activity=activity,
        plots=draw(activity),
        absorbed=list_absorbed(activity),
    )


def _values(visit: Visit, found: Overview) -> dict[str, Any]:
    window = chosen_window(visit)
    return {"found": found, "window": window, "windows": WINDOWS, "count_max": COUNT_MAX, "parked_max": PARKED_MAX}


async def show(visit: Visit) -> Response:
    return visit.render("overview.html", **_values(visit, await look(visit)))


async def stream(visit: Visit) -> Response:
    async def make() -> Fragments:
        values = {"visit": visit, "url": visit.url, **_values(visit, await look(visit))}
        parts: Sequence[tuple[str, str]] = (("now", "overview_now.html"), ("plots", "overview_plots.html"))
        return {name: visit.parts.render(template, values) for name, template in parts}

    return visit.parts.live.answer(visit, make)


SECTION = Section(
    title="Overview",
    path="/overview",
    pages=(Page(path="/overview", answer=show), Page(path="/overview/live", answer=stream)),
)
