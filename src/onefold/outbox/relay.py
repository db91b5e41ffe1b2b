"""One relay's work: lease buckets, claim waiting rows, publish them, mark them.

Theory of operation. A relay lives under an id that nobody had before and nobody gets again: the id is the fence. Its
row in `onefold_relay` is its lease; whoever tends buries relays whose lease ran out, and what is buried never claims
again. A tick claims rows of the buckets that the database says are ours, publishes them with no transaction open, one
message per stream in flight, and marks them. What the broker confirmed is marked whoever asks; a failure is marked only
by a relay that is still there.

Failure windows. A crash before the mark publishes again: ids are stable, and the inbox absorbs it. Two relays may for a
moment publish from one bucket (a stopped process that goes on): both send a stream's events in order, each after the
one before it was confirmed, so the first arrivals are in order, and what comes late is a duplicate. A row that kills
its relay is known by having been noted in `trying`: it is sent alone from then on, and set aside in the end.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from onefold._kernel.borrow import borrowing
from onefold._kernel.effects import Batch, Boundary, Fetch, Now, Publish, Step
from onefold._kernel.messages import Confirm, Message
from onefold.errors import BrokerUnavailable, MessageRefused, StoreError
from onefold.outbox.schema import BUCKETS
from onefold.outbox.sql import STATEMENTS
from onefold.outbox.waiting import Failure, Limits, Waiting, assigned, read, shortened, waves
from onefold.policy.backoff import Backoff, Draw
from onefold.policy.ranges import require

#: A refused event is tried again for ever, at growing distances.
RETRIES: Final = Backoff(transient_base_s=1.0, cap_s=300.0)

#: After an outage the broker is tried with so many events.
PROBE_ROWS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What all lives of a relay share."""

    lease_s: float = 30.0
    batch_max: int = 1000
    batch_bytes_max: int = 16 * 1024 * 1024
    """How much data is at hand at once; a single larger event goes alone."""
    keep_published_s: float = 0.0
    """How long published rows are kept to be looked at. 0: they are deleted at once."""

    def __post_init__(self) -> None:
        require("lease_s", self.lease_s, least=0.5, most=3600)
        require("batch_max", self.batch_max, least=1, most=10_000)
        require("batch_bytes_max", self.batch_bytes_max, least=1, most=1024**3)
        require("keep_published_s", self.keep_published_s, most=366 * 86_400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tended:
    """What tending found: how many buckets are ours, and what was set aside (id and topic)."""

    buckets: int
    set_aside: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True, kw_only=True)
class Sent:
    """What became of the rows of one tick."""

    claimed: int = 0
    confirmed: list[int] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    outage: BrokerUnavailable | None = None
    """The broker takes nothing: nobody's fault, and nobody's attempt."""


class Carrier:
    """One life of a relay, under one id. Its flows are run one after the other, never two at once."""

    def __init__(self, relay: str, dialect: str, settings: Settings, draw: Draw) -> None:
        self.relay = relay
        #: Set from outside: nothing more is sent after what is in flight.
        self.stopping = False
        #: Found out on the way: this life is over.
        self.buried = False
        #: Sent, but not marked yet, because the database could not be reached.
        self.owed: Sent | None = None
        self._sql = STATEMENTS[dialect]
        self._settings = settings
        self._draw = draw
        self._leased_at = float("-inf")
        self._per_bucket = ceil(settings.batch_max / BUCKETS)

    async def enter(self) -> Tended:
        """Begin this life."""
        tended = await borrowing(lambda: self._tend(self._sql.enter(self.relay, self._settings.lease_s)))
        assert tended is not None, "a row that was inserted is there"
        return tended

    async def tend(self) -> Tended | None:
        """Renew the lease, bury the dead, share the buckets. None: we were buried ourselves."""
        return await borrowing(lambda: self._tend(self._sql.renew(self.relay, self._settings.lease_s)))

    async def leave(self) -> None:
        """End this life in order: the others have our buckets at once."""

        async def work() -> None:
            await Batch((Boundary.BEGIN, *self._sql.turn(self._settings.lease_s)))
            share, _ = await self._share(leaving=True)
            await Batch((*share, self._sql.leave(self.relay), Boundary.COMMIT))

        await borrowing(work)

    async def tick(self, *, rows_max: int | None = None) -> Sent:
        """Claim, publish, mark. Raises what the database raises; what was sent by then is marked by the next call."""
        if self.owed is None:
            rows = await borrowing(lambda: self._claim(rows_max or self._settings.batch_max))
            if not rows:
                return Sent()
            self.owed = await self._publish(rows)
        sent = self.owed
        await borrowing(lambda: self._mark(sent))
        self.owed = None
        return sent

    # --- the lease ---

    async def _tend(self, ours: Step) -> Tended | None:
        now = await Now()
        if await Batch((Boundary.BEGIN, *self._sql.turn(self._settings.lease_s), ours)) == 0:
            await Batch((Boundary.ROLLBACK,))
            self.buried = True
            return None
        tried = [position for (trying,) in await Fetch(self._sql.bury()) for position in json.loads(trying)]
        aside = await self._sql.suspect(tried) if tried else []
        share, held = await self._share(leaving=False)
        await Batch((*share, Boundary.COMMIT))
        self._leased_at = now
        return Tended(buckets=held, set_aside=tuple((id_, topic) for id_, topic in aside))

    async def _share(self, *, leaving: bool) -> tuple[tuple[Step, ...], int]:
        """What hands buckets over, and how many are ours after that."""
        relays = [relay for (relay,) in await Fetch(self._sql.relays())]
        owners: dict[int, str | None] = {row[0]: row[1] for row in await Fetch(self._sql.owners())}
        changes = assigned(self.relay, relays, owners, leaving=leaving)
        held = list((owners | changes).values()).count(self.relay)
        return ((self._sql.assign(changes),) if changes else ()), held

    async def _still_ours(self) -> bool:
        """Whether another wave may be sent. A third of the lease is kept for the wave itself, a third for surprises."""
        now = await Now()
        if now < self._leased_at + self._settings.lease_s / 3:
            return True
        try:
            renewed = await borrowing(self._renew)
        except StoreError:
            return False  # nobody can say whether it is still ours
        self._leased_at = now
        self.buried = renewed == 0
        return not self.buried

    async def _renew(self) -> int:
        return await Batch((self._sql.renew(self.relay, self._settings.lease_s),))

    # --- claim, publish, mark ---

    async def _claim(self, rows_max: int) -> list[Waiting]:
        now = await Now()
        settings = self._settings
        limits = Limits(min(self._per_bucket, rows_max), rows_max, settings.batch_bytes_max)
        rows = [read(row) for row in await self._sql.claim(self.relay, settings.lease_s, limits)]
        if rows:
            self._leased_at = now
            self._per_bucket = ceil(settings.batch_max / len({row.bucket for row in rows}))
        return rows

    async def _publish(self, rows: Sequence[Waiting]) -> Sent:
        sent = Sent(claimed=len(rows))
        stopped: set[bytes | None] = set()
        for number, wave in enumerate(waves(rows)):
            going = [row for row in wave if row.stream not in stopped] if stopped else wave
            if number and (self.stopping or not going or not await self._still_ours()):
                break
            for row, confirm in zip(going, await self._confirms(going), strict=True):
                match confirm:
                    case None:
                        sent.confirmed.append(row.position)
                    case MessageRefused():
                        sent.failures.append(self._failure(row, confirm))
                        if row.stream is not None:
                            stopped.add(row.stream)
                    case BrokerUnavailable():
                        sent.outage = confirm
            if sent.outage is not None:
                break
        return sent

    async def _confirms(self, rows: Sequence[Waiting]) -> Sequence[Confirm]:
        messages = [row.message for row in rows if isinstance(row.message, Message)]
        if len(messages) == len(rows):
            return await _published(messages)
        answers = iter(await _published(messages) if messages else ())
        return [
            next(answers)
            if isinstance(row.message, Message)
            else MessageRefused(f"its row cannot be read as an event: {row.message}")
            for row in rows
        ]

    def _failure(self, row: Waiting, error: MessageRefused) -> Failure:
        # Half of the wait is certain: without it, a refusal could be asked for again at once.
        ceiling_s = RETRIES.ceiling_s(row.finished + 1, throttled=False)
        return Failure(row.position, shortened(error), round(ceiling_s * (0.5 + self._draw() / 2) * 1000))

    async def _mark(self, sent: Sent) -> None:
        steps: list[Step] = []
        if len(sent.confirmed) < sent.claimed:
            # Rows that are no longer at hand must not be counted should this relay die now.
            steps.append(self._sql.forget_trying(self.relay))
        if sent.confirmed:
            steps.append(self._sql.published(sent.confirmed, keep=self._settings.keep_published_s > 0))
        if sent.failures:
            steps.append(self._sql.failed(self.relay, sent.failures))
        await Batch((Boundary.BEGIN, *steps, Boundary.COMMIT))


async def _published(messages: Sequence[Message]) -> Sequence[Confirm]:
    """Publish, and have an answer for each message whatever happens."""
    try:
        confirms = await Publish(messages)
    except BrokerUnavailable as error:
        return [error] * len(messages)
    except Exception as error:
        # Not what a broker may raise: one of them brings its client down. Alone, it is found.
        if len(messages) == 1:
            return [MessageRefused(f"the broker's adapter failed: {type(error).__name__}: {error}")]
        return [confirm for message in messages for confirm in await _published([message])]
    if len(confirms) != len(messages):
        problem = BrokerUnavailable(f"the broker's adapter gave {len(confirms)} answers for {len(messages)} messages")
        return [problem] * len(messages)
    return confirms


async def release_due(dialect: str, *, limit: int = 1000) -> float | None:
    """Let go what is due, at most `limit`; in how many seconds the next will be. None: there is none."""
    sql = STATEMENTS[dialect]

    async def work() -> float | None:
        rows = await Fetch(sql.next_due())
        if rows and rows[0][0] <= 0:
            await Batch((Boundary.BEGIN, sql.release_due(limit), Boundary.COMMIT))
            rows = await Fetch(sql.next_due())
        return max(0.0, rows[0][0] / 1000) if rows else None

    return await borrowing(work)
