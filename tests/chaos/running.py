"""A path while it is used: writers in the test's own process, relays and consumers as processes that are killed,
stopped and started again."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._kernel.ports import AsyncDatabase
from onefold._outbox.status_report import Chosen, retry_all
from onefold.errors import OnefoldError
from tests.chaos.job_processes import Fate, JobProcesses
from tests.chaos.jobs import Job, Role
from tests.chaos.ledger_checks import Event, Written, violations
from tests.chaos.places import Place, arrivals, opened, shop, until


@dataclass(slots=True)
class Running:
    """A place at work."""

    place: Place
    processes: JobProcesses
    database: AsyncDatabase[Any]
    once: AsyncOnefold
    written: Written = field(default_factory=Written)
    unsure: set[str] = field(default_factory=set)
    """Whether these are committed is not known: the database died while it was told to."""
    children: dict[int, Job] = field(default_factory=dict)
    kills: int = 0
    retried: int = 0

    def start(self, role: Role, **settings: Any) -> int:
        job = Job(role=role, place=self.place, **settings)
        pid = self.processes.start(job)
        self.children[pid] = job
        return pid

    def kill(self, pid: int) -> Job:
        """kill -9; what it was doing."""
        assert self.processes.end(pid, signal.SIGKILL).state == "killed"
        self.kills += 1
        return self.children.pop(pid)

    def end(self) -> list[Fate]:
        """All of them, in order."""
        for pid in self.children:
            self.processes.send(pid, signal.SIGTERM)
        fates = [self.processes.wait(pid) for pid in self.children]
        self.children.clear()
        return fates

    async def write(self, chance: random.Random, *, keys: int, overlap: bool = False) -> None:
        """One transaction with up to three events; with `overlap` it takes its time before it commits. Which of its
        events are committed is written down only then."""
        names: list[str] = []
        fails = chance.random() < 0.1
        try:
            async with self.once.transaction() as tx:
                for key in chance.choices(range(keys), k=chance.randint(1, 3)):
                    name = await tx.publish(self.place.topic, {}, key=f"k{key}")
                    names.append(name)
                if overlap:
                    await asyncio.sleep(chance.uniform(0.0, 0.01))
                if fails:
                    raise LookupError("the order was not to be")
        except LookupError:
            self.written.undone.update(names)
        except OnefoldError:
            self.unsure.update(names)
        else:
            self.written.committed.update(names)

    async def arrived(self) -> list[Event]:
        return await arrivals(self.database, self.place.consumer)

    async def more_arrive(self, events: int, *, within_s: float) -> None:
        """Wait until so many more have arrived."""
        enough = await self._count() + events

        async def there() -> bool:
            return await self._count() >= enough

        assert await until(there, within_s=within_s), f"after {within_s:g} s nothing flows"

    async def _count(self) -> int:
        try:
            return len(await self.arrived())
        except OnefoldError:
            return 0  # the database is still on its way

    async def complete(self, *, within_s: float, attended: bool = False) -> float:
        """Wait until what was committed has arrived; for how long. Fails with what is missing. Attended: an operator
        retries what has become a dead letter, such as an event that was at hand at three deaths."""
        began_at = time.monotonic()

        async def all_there() -> bool:
            try:
                if attended:
                    self.retried += await run_flow(self.once, lambda dialect: retry_all(dialect, Chosen(dead=True)))
                return {event.id for event in await self.arrived()} >= self.written.committed
            except OnefoldError:
                return False  # the database is still on its way

        done = await until(all_there, within_s=within_s)
        missing = self.written.committed - {event.id for event in await self.arrived()}
        assert done, f"after {within_s:g} s {len(missing)} of {len(self.written.committed)} events have not arrived"
        return time.monotonic() - began_at

    async def violations(self) -> list[str]:
        """Of what nobody is sure, whatever arrived was committed."""
        arrived = await self.arrived()
        known = self.written.committed | (self.unsure & {event.id for event in arrived})
        return violations(Written(known, self.written.undone), arrived, strict=self.place.order == "strict")


@asynccontextmanager
async def running(place: Place, processes: JobProcesses) -> AsyncIterator[Running]:
    async with opened(place) as database:
        found = Running(place, processes, database, shop(place, database, lambda: place.reach(database)))
        try:
            yield found
        finally:
            for pid in list(found.children):
                found.kill(pid)
            await found.once.close()
