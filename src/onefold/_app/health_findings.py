"""Health findings from onefold's own tables, each with the way out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from onefold._app.migrations import MIGRATIONS
from onefold._inbox.failed_lists import tally_failed
from onefold._inbox.pausing import pauses
from onefold._inbox.registry import EARLIER, list_processes
from onefold._kernel.readable import write_count
from onefold._outbox.event_lists import list_dead_events, list_retrying
from onefold._outbox.status_report import report
from onefold._steps.unfinished_works import list_works
from onefold.db._migrations import missing, newer

#: An event that has waited for longer has no relay, or one that cannot publish it.
OLD_S: Final = 300.0
COUNT_MAX: Final = 1001
CONSUMERS_MAX: Final = 100

Level: TypeAlias = Literal["good", "warn", "bad"]


@dataclass(frozen=True, slots=True)
class HealthFinding:
    """The result of one check."""

    what: str
    level: Level
    said: str
    way_out: str = ""


async def check_health(dialect: str) -> list[HealthFinding]:
    """All findings, by bounded reads."""
    tables = await check_tables(dialect)
    if tables.level == "bad":
        return [tables]
    return [
        tables,
        await check_relays(dialect),
        await check_refused_events(dialect),
        *await check_consumers(dialect),
        await check_dead_letters(dialect),
        await check_works(dialect),
    ]


async def check_tables(dialect: str) -> HealthFinding:
    migrations = MIGRATIONS[dialect]
    if lacking := await missing(dialect, migrations):
        none_there = "onefold's tables are not there."
        text = (
            none_there
            if len(lacking) == len(migrations)
            else f"Migrations are missing: {', '.join(map(str, lacking))}."
        )
        return HealthFinding("Tables", "bad", text, "onefold migrate.")
    if newer_versions := await newer(dialect, migrations):
        text = f"A newer onefold has applied {', '.join(map(str, newer_versions))}; this one works beside it."
        return HealthFinding("Tables", "good", text)
    return HealthFinding("Tables", "good", "Up to date.")


async def check_relays(dialect: str) -> HealthFinding:
    status = await report(dialect, count_max=COUNT_MAX, stopped_max=1)
    alive = sum(relay.lease_left_s > 0 for relay in status.relays)
    if status.oldest_s is not None and status.oldest_s > OLD_S:
        text = f"{alive} at work; the oldest event has waited for {status.oldest_s:.0f} s."
        return HealthFinding(
            "Relays", "bad", text, "Is onefold relay running, and does it reach the broker? See its log."
        )
    waits = status.pending or (await list_retrying(dialect, limit=1)).events
    if waits and not alive:
        return HealthFinding("Relays", "warn", "None is at work, and events wait.", "Start onefold relay.")
    return HealthFinding("Relays", "good", f"{alive} at work." if alive else "None is at work, and nothing waits.")


async def check_refused_events(dialect: str) -> HealthFinding:
    if (await list_dead_events(dialect, limit=1)).events:
        text = "Some are dead letters of the outbox, and what has their key waits behind them."
        return HealthFinding("Refused events", "bad", text, "onefold outbox retry or discard.")
    if refused := (await list_retrying(dialect, limit=1)).events:
        text = f"Some are tried again, such as one on {refused[0].topic}: {refused[0].error}"
        return HealthFinding("Refused events", "warn", text, "onefold outbox has them all.")
    return HealthFinding("Refused events", "good", "None.")


async def check_consumers(dialect: str) -> list[HealthFinding]:
    processes = [each for each in await list_processes(dialect) if each.process != EARLIER]
    paused = {each.consumer: each.actor for each in await pauses(dialect)}
    findings = []
    for name in sorted({each.consumer for each in processes} | paused.keys())[:CONSUMERS_MAX]:
        alive = sum(each.alive for each in processes if each.consumer == name)
        what, text = f"Consumer {name}", f"{write_count(alive, 'process runs', 'processes run')}."
        if name in paused:
            findings.append(
                HealthFinding(
                    what, "warn", f"{text} It is paused by {paused[name]}.", f"onefold consumers resume {name}"
                )
            )
        elif not alive:
            findings.append(HealthFinding(what, "bad", "No process runs.", "Start onefold consume."))
        else:
            findings.append(HealthFinding(what, "good", text))
    return findings


async def check_dead_letters(dialect: str) -> HealthFinding:
    tallies = await tally_failed(dialect, count_max=1, consumers_max=CONSUMERS_MAX)
    dead = [tally.consumer for tally in tallies if tally.dead]
    if dead:
        return HealthFinding("Dead letters", "bad", f"Of {', '.join(dead)}.", "onefold dlq redrive or discard.")
    return HealthFinding("Dead letters", "good", "None.")


async def check_works(dialect: str) -> HealthFinding:
    if await list_works(dialect, parked_only=True, limit=1):
        return HealthFinding(
            "Works", "bad", "Some are parked, and wait for a person.", "onefold keys list, then resume or release."
        )
    return HealthFinding("Works", "good", "None is parked.")
