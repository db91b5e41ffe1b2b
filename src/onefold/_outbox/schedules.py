"""Recurring events: one row per schedule has its next due time; the process that advances it publishes the event.

Invariant: a due time is fired once, however many processes run. The row is advanced, and the event written, in one
transaction, and only if the due time is still as it was read; the event's id follows from the schedule and the due
time.

Theory of operation. A process notes its schedules when it begins; where a row has another rule it is that process's
from then on, and counts from now. Processes that go on with the former rule leave the row alone. So the rule of the
process that was started last holds, also while a release is rolled out; a row that nothing has fired for minutes is
taken back by those that are left. A row is named by source and name: services that share a database have schedules of
their own. What is due is judged by the clock of the database. Due times that passed while no process ran are fired as
one, with the first of them; the next is to come. A row that was advanced by a clock that ran ahead is set back, but
never to a due time that was fired.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID, uuid5

from onefold._kernel.checkout import with_connection
from onefold._kernel.dialects import SQLITE_NOW_MS, postgres_lease, sqlite_values
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Statement, Value
from onefold._kernel.messages import Message
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.wakeup_signals import NOTIFY_RELAYS
from onefold._outbox.event_checks import rfc3339
from onefold._outbox.sql import STATEMENTS
from onefold.errors import ConfigurationError

SCHEDULES_MAX: Final = 10_000

#: Later than any clock.
NEVER_MS: Final = 2**62

#: How long another process may take to publish an event before its turn is over; and when to look whether it has.
TURN_S: Final = 10.0
TAKEN_S: Final = 1.0

#: So long after its due time, no process is left that has the rule of a row.
ABANDONED_S: Final = 300.0

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_NAMESPACE: Final = UUID("9f7c5f0e-53a6-5d0c-8d2e-6d1f3f0a7b11")

_NOW: Final = {
    "postgres": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    "sqlite": f"({SQLITE_NOW_MS})",
}

_DEFINE: Final = """
INSERT INTO onefold_schedule AS s (name, rule, due_ms) VALUES ($1::text, $2::text, $3::bigint)
ON CONFLICT (name) DO UPDATE SET rule = excluded.rule, due_ms = excluded.due_ms WHERE s.rule <> excluded.rule
"""

_SET_BACK: Final = """
UPDATE onefold_schedule SET due_ms = $4::bigint WHERE name = $1::text AND rule = $2::text AND due_ms = $3::bigint
"""

#: One that another process is about to fire is left to it.
_ADVANCE: Final = """
UPDATE onefold_schedule SET due_ms = $4::bigint, fired_ms = $3::bigint WHERE name = (
    SELECT name FROM onefold_schedule WHERE name = $1::text AND rule = $2::text AND due_ms = $3::bigint
    FOR UPDATE SKIP LOCKED)
"""

_log = logging.getLogger("onefold.relay")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurring:
    """An event that is published again and again."""

    name: str
    rule: str
    """When it is due, as people write it: with another text it is another rule."""
    after: Callable[[int], int | None]
    """The first due time after a time, both in milliseconds since 1970. None: there is none."""
    make_event: Callable[[str, int], Message]
    """The event with this id, of this time."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigurationError(
                f"the name of a recurring event is {self.name!r}; it must be letters, digits, '.', '_' and '-', at "
                "most 100: it names its row in the database"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleSeen:
    """A schedule as its row has it."""

    name: str
    """Of its source, a slash, and its own."""
    rule: str
    due_ms: int | None
    """None: never again."""
    fired_ms: int | None
    """The due time that was fired last."""


class Timetable:
    """The recurring events of one application, for one process that fires them."""

    def __init__(self, dialect: str, source: str, recurring: Sequence[Recurring]) -> None:
        self._dialect = dialect
        self._source = source
        #: By the names of their rows. The name of a schedule has no slash.
        self._recurring = {f"{source}/{each.name}": each for each in recurring}
        self._defined = False
        self._logged: set[str] = set()

    async def fire(self) -> float | None:
        """Publish what is due; in how many seconds the next will be. None: never."""
        waits_s = await with_connection(self._fire)
        return min(waits_s, default=None)

    async def _fire(self) -> list[float]:
        if not self._defined:
            await self._define_all()
        waits_s: list[float] = []
        for name, rule, due_ms, fired_ms, now_ms in await Fetch(_look(self._dialect)):
            recurring = self._recurring.get(name)
            if recurring is None:
                continue
            if rule != recurring.rule:
                if now_ms - due_ms > ABANDONED_S * 1000:
                    waits_s.append((await self._define(name, recurring, now_ms) - now_ms) / 1000)
                else:
                    self._leave(recurring, rule)
                continue
            if due_ms > now_ms:
                sooner_ms = recurring.after(max(now_ms, fired_ms or 0)) or NEVER_MS
                if sooner_ms < due_ms:
                    await Batch((_statement(self._dialect, _SET_BACK, name, rule, due_ms, sooner_ms),))
                waits_s.append((min(due_ms, sooner_ms) - now_ms) / 1000)
                continue
            next_ms = recurring.after(now_ms) or NEVER_MS
            fired = await self._publish(name, recurring, due_ms, next_ms)
            waits_s.append((next_ms - now_ms) / 1000 if fired else TAKEN_S)
        return waits_s

    async def _define_all(self) -> None:
        [(now_ms,)] = await Fetch(_statement(self._dialect, f"SELECT {_NOW[self._dialect]}"))
        for name, recurring in self._recurring.items():
            await self._define(name, recurring, now_ms)
        self._defined = True

    async def _define(self, name: str, recurring: Recurring, now_ms: int) -> int:
        """Our rule holds from now on; when it is due next."""
        due_ms = recurring.after(now_ms) or NEVER_MS
        await Batch((_statement(self._dialect, _DEFINE, name, recurring.rule, due_ms),))
        return due_ms

    def _leave(self, recurring: Recurring, rule: str) -> None:
        if recurring.name not in self._logged:
            self._logged.add(recurring.name)
            _log.warning(
                "recurring event %r is not published by this process: one that was started later has another rule for "
                "it, %s (here %s)", recurring.name, rule, recurring.rule,
            )  # fmt: skip

    async def _publish(self, name: str, recurring: Recurring, due_ms: int, next_ms: int) -> bool:
        """Advance the row and write the event. False: another process has done so, or is about to."""
        advance = _statement(self._dialect, _ADVANCE, name, recurring.rule, due_ms, next_ms)
        # A process that stands still here must not keep the others from firing.
        bounded: tuple[BatchItem, ...] = (postgres_lease(TURN_S),) if self._dialect == "postgres" else ()
        notify: tuple[BatchItem, ...] = (Statement(NOTIFY_RELAYS),) if self._dialect == "postgres" else ()
        if await Batch((Boundary.BEGIN, *bounded, advance)) == 0:
            await Batch((Boundary.ROLLBACK,))
            return False
        event = recurring.make_event(event_id(self._source, recurring.name, due_ms), due_ms)
        await Batch((*STATEMENTS[self._dialect].write(event), *notify, Boundary.COMMIT))
        _log.info("recurring event %r: published for %s, as %s", recurring.name, rfc3339(due_ms), event.id)
        return True


def event_id(source: str, name: str, due_ms: int) -> str:
    """The id of the event that a schedule fires for a due time: always the same."""
    return str(uuid5(_NAMESPACE, f"{source}\n{name}\n{due_ms}"))


async def schedules(dialect: str) -> list[ScheduleSeen]:
    """All schedules, by name."""

    async def work() -> list[ScheduleSeen]:
        return [
            ScheduleSeen(name=name, rule=rule, due_ms=None if due_ms == NEVER_MS else due_ms, fired_ms=fired_ms)
            for name, rule, due_ms, fired_ms, _ in await Fetch(_look(dialect))
        ]

    return await with_connection(work)


def _look(dialect: str) -> Statement:
    sql = f"SELECT name, rule, due_ms, fired_ms, {_NOW[dialect]} FROM onefold_schedule ORDER BY name LIMIT $1::integer"
    return _statement(dialect, sql, SCHEDULES_MAX)


def _statement(dialect: str, sql: str, *values: Value) -> Statement:
    if dialect == "postgres":
        return Statement(qualified(sql), values)
    return Statement(sqlite_values(sql).replace("FOR UPDATE SKIP LOCKED", ""), values)
