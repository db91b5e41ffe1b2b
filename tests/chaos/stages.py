"""The pairs of store and broker that campaigns run on, new places on them, and the healthy who take over."""

from __future__ import annotations

import asyncio
import secrets
import shutil
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import asyncpg
import pytest

from onefold import AsyncOnefold
from onefold._app.migrations import MIGRATIONS
from onefold._inbox.consumer import Order
from onefold._kernel.ports import AsyncDatabase
from onefold.db._migrations import script
from onefold.telemetry import Event
from tests.chaos.ledger_checks import Written, violations
from tests.chaos.places import (
    ARRIVALS,
    HANDLER_S,
    LEASE_S,
    MARGIN_S,
    Place,
    arrivals,
    consume,
    leftovers,
    opened,
    rows,
    shop,
    subscribe,
    until,
    write,
)
from tests.support.crash import Boundaries

#: How many places are taken over at once.
AT_ONCE: Final = 8

#: Nothing that the dead held is held for longer.
PATIENCE_S: Final = LEASE_S + HANDLER_S + MARGIN_S


@dataclass(slots=True)
class Stage:
    """A store and a broker. Each new database is migrated and empty."""

    broker: str
    folder: Path
    dsn: str | None
    """Of the Postgres database that has a schema for each new one; None: SQLite files."""
    _template: Path | None = field(default=None, init=False)

    async def new_database(self) -> str:
        if self.dsn is not None:
            schema = f"s_{secrets.token_hex(6)}"
            # In one round trip: there is one for every kill.
            tables = f"{script('postgres', MIGRATIONS['postgres'])}{ARRIVALS['postgres']}"
            connection = await asyncpg.connect(self.dsn)
            await connection.execute(f"CREATE SCHEMA {schema}; SET search_path = {schema};\n{tables}")
            await connection.close()
            return f"{self.dsn}?search_path={schema}"
        if self._template is None:
            self._template = self.folder / "template.db"
            await _furnish(str(self._template))
        return str(shutil.copyfile(self._template, self.folder / f"{secrets.token_hex(6)}.db"))

    def place(self, database: str, *, order: Order = "strict") -> Place:
        name = secrets.token_hex(6)
        return Place(
            database=database, broker=self.broker, topic=f"placed.{name}", consumer=f"ship-{name}", order=order
        )


def stage_of(name: str, request: pytest.FixtureRequest, folder: Path) -> Stage:
    """`name` is a store and a broker: "postgres+nats"."""
    store, _, broker = name.partition("+")
    dsn = request.getfixturevalue("campaigns_dsn") if store == "postgres" else None
    if broker == "local":
        return Stage("local", folder, dsn)
    server = request.getfixturevalue(broker)
    url = f"kafka://{server.bootstrap}" if broker == "kafka" else server.url.replace("valkey://", "redis://")
    return Stage(url, folder, dsn)


async def _furnish(address: str) -> None:
    once = AsyncOnefold(address)
    await once.migrate()
    database: AsyncDatabase[Any] = once._database
    await rows(database, ARRIVALS[database.dialect])
    await once.close()


async def filled(stage: Stage) -> tuple[Place, Written]:
    """A place in a database of its own, with events in its outbox."""
    place = stage.place(await stage.new_database())
    async with opened(place) as database:
        await subscribe(place, database)
        once = shop(place, database, lambda: place.reach(database))
        written = await write(once, place.topic)
        await once.close()
        return place, written


@dataclass(slots=True)
class Findings:
    """What a campaign found and what it did. A campaign whose faults did not bite proves nothing."""

    wrong: list[str] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    patience_s: float = PATIENCE_S

    def listener(self, event: Event) -> None:
        self.told[type(event).__name__] += 1


@asynccontextmanager
async def at_work(once: AsyncOnefold, findings: Findings, name: str, *, relays: bool = False) -> AsyncIterator[None]:
    """Relay and consume; whoever does not end when told to is found out, and not waited for."""
    stop = asyncio.Event()
    tasks = {asyncio.create_task(once.consume(stop), name="consumer")}
    if relays:
        tasks.add(asyncio.create_task(once.relay(stop, lease_s=LEASE_S, poll_s_max=0.2), name="relay"))
    try:
        yield
    finally:
        stop.set()
        _, running = await asyncio.wait(tasks, timeout=findings.patience_s)
        for task in running:
            findings.wrong.append(f"{name}: the {task.get_name()} did not end when it was told to")
            task.cancel()
        await asyncio.wait(tasks)
        findings.wrong += [f"{name}: {error!r}" for task in tasks - running if (error := task.exception())]


async def take_over(victims: Sequence[tuple[str, Place, Written]], findings: Findings) -> None:
    """A healthy relay and a healthy consumer for each place, until everything has arrived; not for longer than what
    the dead held is held. `victims` are named for the report."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(name: str, place: Place, written: Written) -> None:
        async with room, opened(place) as database:
            once = shop(place, database, lambda: place.reach(database), listener=findings.listener)
            async with at_work(once, findings, name, relays=True):
                await check_arrival(name, place, written, database, findings)

    async with asyncio.TaskGroup() as group:
        for victim in victims:
            group.create_task(one(*victim))


async def take_over_consumers(victims: Sequence[tuple[str, Place, Written]], findings: Findings) -> None:
    """The same where all places are in one database and everything is at the broker already."""
    first = victims[0][1]
    async with opened(first) as database:
        for start in range(0, len(victims), AT_ONCE):
            some = victims[start : start + AT_ONCE]
            once = AsyncOnefold(
                database, source="shop", broker=lambda: first.reach(database), listener=findings.listener
            )
            for _, place, _ in some:
                consume(once, place, Boundaries())
            async with at_work(once, findings, "those who took over"), asyncio.TaskGroup() as group:
                for name, place, written in some:
                    group.create_task(check_arrival(name, place, written, database, findings))


async def check_arrival(
    name: str, place: Place, written: Written, database: AsyncDatabase[Any], findings: Findings
) -> None:
    """Wait for what was committed, for as long as a lease and a margin; then look at everything."""
    began_at = time.monotonic()

    async def complete() -> bool:
        return {event.id for event in await arrivals(database, place.consumer)} >= written.committed

    async def tidy() -> bool:
        return not await leftovers(place, database)

    in_time = await until(complete, within_s=findings.patience_s)
    findings.slowest_s = max(findings.slowest_s, time.monotonic() - began_at)
    wrong = violations(written, await arrivals(database, place.consumer), strict=place.order == "strict")
    if in_time and not await until(tidy, within_s=findings.patience_s):
        wrong += await leftovers(place, database)
    if not in_time:
        wrong.append(f"it was not complete after {findings.patience_s:g} s; {await leftovers(place, database)}")
    findings.wrong += [f"{name}: {sentence}" for sentence in wrong]


async def relayed(places: Sequence[Place]) -> list[Written]:
    """Events for places in one database, all of them at the broker."""
    first = places[0]
    async with opened(first) as database, AsyncExitStack() as stack:
        once = shop(first, database, lambda: first.reach(database))
        written = []
        for place in places:
            await subscribe(place, database)
            written.append(await write(once, place.topic, keys=1))

        async def empty() -> bool:
            return not await rows(database, "SELECT 1 FROM onefold_outbox LIMIT 1")

        await stack.enter_async_context(once.relaying(lease_s=LEASE_S, poll_s_max=0.05))
        assert await until(empty, within_s=PATIENCE_S)
        await stack.aclose()
        await once.close()
    return written
