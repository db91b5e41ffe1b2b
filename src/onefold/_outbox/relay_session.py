"""One session of a relay: lease buckets, claim waiting rows, publish them, mark them.

Theory of operation. A relay session has an id of its own that is never used again: the id is the fence, its row in
`onefold_relay` the lease. Each relay deletes rows whose lease ran out; a session without a row claims nothing and marks
no failure. A tick claims rows of its buckets, publishes them with no transaction open, one event per stream in flight,
and marks them. Confirms are marked in any case. Reasons: docs/why/at-least-once-relay.md.

A relay holds no lock from one round trip to the next, so one that is stopped holds up no other, even in the middle of
a statement: drivers have a new one parsed before they send its values, and there the server counts the transaction as
busy, which no time-out of idle ones ends. Only rows that are copied for endpoints stay locked, for a lease at most.

Most claims take the oldest rows. Where those are of few streams, or may not go, the next claims tour the streams
instead: no stream and no destination waits for another one's backlog.

What a destination does not take now (BrokerUnavailable) is judged by the rest of the tick. If the destination
confirmed something else, it is the event: it is put off, and from the second time on that counts as an attempt; not
where the broker has not even sent it (NotSent). If it confirmed nothing it is paused, and its events stay as they are.
If nothing was confirmed at all it is an outage.

Failure windows. A crash before the mark publishes again: ids are stable, and the inbox absorbs it. Two sessions may for
a moment publish from one bucket (a stopped process that goes on): each sends a stream in order, so what comes late is a
duplicate. A row that kills its relay was noted in `trying`: it is sent alone from then on, and set aside in the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Final, NamedTuple

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Now
from onefold._kernel.messages import Message, NotSent
from onefold._outbox.claimed_rows import (
    START,
    ClaimedRow,
    ClaimResult,
    Failure,
    Limits,
    assign_buckets,
    read_scan,
    read_tour,
    rounds,
    shorten,
)
from onefold._outbox.confirms import PublishRows, publish_rows
from onefold._outbox.destinations import Destinations
from onefold._outbox.endpoint_copies import EndpointCopy, EndpointsOf, split_by_endpoint
from onefold._outbox.publish_log import log_failure, log_not_subscribed
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.schema import BUCKETS
from onefold._outbox.sql import STATEMENTS
from onefold._outbox.sql.statements import Changes
from onefold._policy.backoff import Backoff, Draw
from onefold.errors import BrokerError, BrokerUnavailable, MessageRefused, StoreError, TopicNotSubscribed

#: A refused event is tried again at growing distances, until it has no attempts left.
RETRIES: Final = Backoff(transient_base_s=1.0, cap_s=300.0)

#: No further round of a tick is begun later than this: events that came meanwhile have waited for long enough.
ROUND_S: Final = 1.0

#: Of a stream a claim takes so many rows; more, where there are not many streams.
STREAM_ROWS: Final = 16

#: So many rows of a bucket are looked at in any case: enough to see whether they are of few streams.
BUCKET_ROWS_MIN: Final = 4

#: After a crowded claim, so many are tours. One that brought a good part of a batch all the same goes on for as long.
TOURS: Final = 16

#: Tours that one tick makes at the most, while they find nothing but stopped streams.
TOURS_MAX: Final = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalanced:
    """How many buckets are ours, how many relays had died, and which events became dead letters (id and topic)."""

    buckets: int
    expired: int = 0
    set_aside: tuple[tuple[str, str], ...] = ()


class Dead(NamedTuple):
    """An event that is not tried again until an operator retries it."""

    id: str
    topic: str
    error: str


@dataclass(slots=True, kw_only=True)
class TickResult:
    """The outcomes of the rows of one tick."""

    claimed: int = 0
    more: bool = False
    """More may wait to be claimed."""
    confirmed: list[int] = field(default_factory=list)
    destinations: dict[str, tuple[int, int]] = field(default_factory=dict)  # how many each confirmed, and refused
    failures: list[Failure] = field(default_factory=list)
    dead: list[Dead] = field(default_factory=list)
    paused: dict[str, BrokerUnavailable] = field(default_factory=dict)
    """Destinations that took nothing for the first time, with their errors."""
    resumed: list[str] = field(default_factory=list)
    """Destinations that take events again."""
    idle: bool = False
    """Nothing waits any more, not for those that were paused either."""
    outage: BrokerUnavailable | None = None
    """Nothing was confirmed: the broker is down, and no attempt is counted."""

    def count(self, destination: str, *, confirmed: int = 0, refused: int = 0) -> None:
        before = self.destinations.get(destination, (0, 0))
        self.destinations[destination] = (before[0] + confirmed, before[1] + refused)


class RelaySession:
    """What a relay does under one id. Its flows are run one after the other, never two at once; but `renew` may be run
    beside any."""

    def __init__(
        self,
        relay: str,
        dialect: str,
        settings: RelayConfig,
        draw: Draw,
        endpoints_of: EndpointsOf | None = None,
        former: RelaySession | None = None,
        publish: PublishRows = publish_rows,
    ) -> None:
        self.relay = relay
        #: Set from outside: nothing more is sent after what is in flight.
        self.stopping = False
        #: Found out on the way: its row is gone, and the relay begins another session.
        self.expired = False
        #: Sent, but not marked yet, because the database could not be reached.
        self.unmarked: TickResult | None = None
        self._sql, self._settings = STATEMENTS[dialect], settings
        self._draw, self._publish_rows = draw, publish
        self._endpoints_of = endpoints_of
        self._destinations: Destinations = Destinations(draw) if former is None else former._destinations
        self._leased_at = float("-inf")
        self._per_bucket = ceil(settings.batch_max / BUCKETS)
        self._per_stream = STREAM_ROWS
        #: How many of the next claims are tours, and how many scans in a row were crowded.
        self._tours = 0
        self._crowded = 0
        self._start = START
        self._idle = False
        self._more = False

    async def enter(self) -> Rebalanced:
        """Begin the session."""
        rebalanced = await with_connection(
            lambda: self._renew_and_rebalance(self._sql.enter(self.relay, self._settings.lease_s))
        )
        assert rebalanced is not None, "a row that was inserted is there"
        return rebalanced

    async def renew_and_rebalance(self) -> Rebalanced | None:
        """Renew the lease, expire dead relays, share the buckets. None: this session has expired."""
        return await with_connection(
            lambda: self._renew_and_rebalance(self._sql.renew(self.relay, self._settings.lease_s))
        )

    async def leave(self) -> None:
        """End the session in order: the others have our buckets at once."""

        async def work() -> None:
            changes, _ = await self._share(leaving=True)
            await Batch((*self._change(changes), self._sql.leave(self.relay), Boundary.COMMIT))

        await with_connection(work)

    async def tick(self, *, rows_max: int | None = None, probing: bool = False) -> TickResult:
        """Claim, publish, mark. Raises what the database raises; what was sent by then is marked by the next call.
        Probing: events of as many destinations and streams as there are."""
        if self.unmarked is None:
            rows = await with_connection(lambda: self._claim(rows_max or self._settings.batch_max, touring=probing))
            if not rows:
                return await self._end_pauses_if_idle()
            going = rows if self._endpoints_of is None else await self._split(rows, self._endpoints_of)
            self.unmarked = await self._publish(going)
            self.unmarked.claimed = len(rows)
            self.unmarked.more = self._more or len(self.unmarked.confirmed) < len(rows)
        sent = self.unmarked
        await with_connection(lambda: self._mark(sent))
        self.unmarked = None
        return sent

    @property
    def any_paused(self) -> bool:
        """Whether a destination is: events may wait for the end of its pause."""
        return self._destinations.any_paused

    async def _end_pauses_if_idle(self) -> TickResult:
        """What destinations did not take may have been discarded: then no confirm ends their pauses. An expired session
        finds nothing either, and knows nothing by that."""
        if self._idle and self._destinations.any_paused and await self.renew():
            return TickResult(idle=True, resumed=self._destinations.forget())
        return TickResult()

    # --- the lease ---

    async def _renew_and_rebalance(self, ours: BatchItem) -> Rebalanced | None:
        now = await Now()
        if await Batch((ours,)) == 0:
            self.expired = True
            return None
        self._leased_at = now
        expired, aside = await self._sql.expire_dead()
        changes, count = await self._share(leaving=False)
        if changes:
            await Batch((*self._change(changes), Boundary.COMMIT))
        return Rebalanced(buckets=count, expired=expired, set_aside=aside)

    async def _share(self, *, leaving: bool) -> tuple[Changes, int]:
        """Which buckets change hands, from whom to whom, and how many are ours after that. Looked at without a lock: a
        relay that stops here holds nothing. What another one changes meanwhile stays as that has changed it."""
        rows = await Fetch(self._sql.shares(self.relay))
        relays = sorted(relay for bucket, relay in rows if bucket is None)
        owners: dict[int, str | None] = dict(sorted(row[:2] for row in rows if row[0] is not None))
        changes = assign_buckets(self.relay, relays, owners, leaving=leaving)
        count = list((owners | changes).values()).count(self.relay)
        return {bucket: (owners[bucket], taker) for bucket, taker in changes.items()}, count

    def _change(self, changes: Changes) -> tuple[BatchItem, ...]:
        """The beginning of a batch: buckets change hands."""
        assign = (self._sql.assign(changes),) if changes else ()
        return (Boundary.BEGIN, *self._sql.turn(self._settings.lease_s), *assign)

    async def _goes_on(self, began: float) -> bool:
        """Whether another round may be sent. A third of the lease is kept for the round, a third for surprises."""
        now = await Now()
        if self.stopping or now > began + ROUND_S:
            return False
        if now < self._leased_at + self._settings.lease_s / 3:
            return True
        try:
            return await self.renew()
        except StoreError:
            return False  # it is not known whether the lease is still ours

    async def renew(self) -> bool:
        """Extend the lease; False: this session has expired."""
        now = await Now()

        async def work() -> int:
            return await Batch((self._sql.renew(self.relay, self._settings.lease_s),))

        if await with_connection(work) == 0:
            self.expired = True
        else:
            self._leased_at = now
        return not self.expired

    # --- claim, publish, mark ---

    async def _claim(self, rows_max: int, *, touring: bool = False) -> list[ClaimedRow]:
        now = await Now()
        closed = self._destinations.paused_at(now)
        claimed = None if touring or self._tours else await self._scan(rows_max, closed)
        self._more = claimed is None or claimed.full or len(claimed.rows) >= rows_max
        if claimed is None or (claimed.crowded and not claimed.rows):
            claimed = await self._tour(rows_max, closed)
        self._idle = not (claimed.rows or closed) and claimed.goes_on == START
        if claimed.rows:
            self._leased_at = now
            streams = len({row.stream for row in claimed.rows if row.stream is not None})
            self._per_stream = max(STREAM_ROWS, ceil(self._settings.batch_max / max(1, streams)))
        return claimed.rows

    def _limits(self, rows_max: int) -> Limits:
        return Limits(
            per_bucket=max(BUCKET_ROWS_MIN, min(self._per_bucket, rows_max)),
            rows=rows_max,
            data_bytes=self._settings.batch_bytes_max,
            per_stream=self._per_stream,
            steps=max(self._settings.batch_max, BUCKETS),
        )

    async def _scan(self, rows_max: int, closed: list[str]) -> ClaimResult:
        limits = self._limits(rows_max)
        claimed = read_scan(await self._sql.scan(self.relay, self._settings.lease_s, limits, closed), limits.per_bucket)
        buckets = BUCKETS if claimed.crowded else len({row.bucket for row in claimed.rows})
        self._crowded = self._crowded + 1 if claimed.crowded else 0
        if claimed.crowded and 2 * len(claimed.rows) < rows_max:
            self._tours = TOURS
        elif self._crowded % TOURS == 1:
            self._tours = 1
        self._per_bucket = ceil(self._settings.batch_max / (buckets or BUCKETS))
        return claimed

    async def _tour(self, rows_max: int, closed: list[str]) -> ClaimResult:
        """Go on from stream to stream, from the first one on after the last; until there is a row, or there is none."""
        self._tours = max(0, self._tours - 1)
        limits = self._limits(rows_max)
        starts = 0
        for _ in range(TOURS_MAX):
            starts += self._start == START
            claimed = read_tour(await self._sql.tour(self.relay, self._settings.lease_s, limits, closed, self._start))
            self._start = claimed.goes_on
            if claimed.rows or (starts and self._start == START):
                break
        return claimed

    async def _split(self, rows: Sequence[ClaimedRow], endpoints_of: EndpointsOf) -> Sequence[ClaimedRow]:
        """Make copies of what goes to endpoints; what is left to be sent now."""
        going, copies = split_by_endpoint(rows, endpoints_of)
        if copies:
            await with_connection(lambda: self._copy(copies))
        return going

    async def _copy(self, copies: Sequence[EndpointCopy]) -> None:
        # A relay that stands still, and its successor, may both want to: the first has the rows, for a lease at most.
        await Batch((Boundary.BEGIN, *self._sql.limit_transaction(self._settings.lease_s)))
        positions = sorted({copy.position for copy in copies})
        copyable = {position for (position,) in await Fetch(self._sql.copyable(positions))}
        copied = [self._sql.copy(*copy) for copy in copies if copy.position in copyable]
        await Batch((*copied, self._sql.mark_published(sorted(copyable), keep=False), Boundary.COMMIT))

    async def _publish(self, rows: Sequence[ClaimedRow]) -> TickResult:
        sent = TickResult()
        began = await Now()
        stopped: set[bytes | None] = set()
        confirming: set[str] = set()
        not_taken: list[tuple[ClaimedRow, BrokerUnavailable]] = []
        for number, ready in enumerate(rounds(rows)):
            closed = {row.destination for row, _ in not_taken} - confirming
            sendable = [row for row in ready if row.stream not in stopped and row.destination not in closed]
            going = self._destinations.select(sendable, first=number == 0)
            if not going or (number and not await self._goes_on(began)):
                break
            for row, confirm in zip(going, await self._publish_rows(going), strict=True):
                match confirm:
                    case None:
                        sent.confirmed.append(row.position)
                        sent.count(row.destination, confirmed=1)
                        if row.destination not in confirming:
                            confirming.add(row.destination)
                            if self._destinations.note_confirmed(row.destination):
                                sent.resumed.append(row.destination)
                        continue
                    case MessageRefused():
                        self._fail(sent, row, confirm, counted=True)
                    case BrokerUnavailable():
                        not_taken.append((row, confirm))
                if row.stream is not None:
                    stopped.add(row.stream)
        self._judge(sent, not_taken, confirming, await Now())
        return sent

    def _judge(
        self, sent: TickResult, not_taken: list[tuple[ClaimedRow, BrokerUnavailable]], confirming: set[str], now: float
    ) -> None:
        """What it means that some were not taken now."""
        closed: dict[str, BrokerUnavailable] = {}
        for row, error in not_taken:
            if row.destination in confirming:
                self._fail(sent, row, error, counted=row.failed_before and not isinstance(error, NotSent))
            else:
                closed[row.destination] = error
        for name, error in closed.items():
            if self._destinations.note_refused_all(name, now):
                sent.paused[name] = error
        if closed and not sent.confirmed:
            sent.outage = next(iter(closed.values()))

    def _fail(self, sent: TickResult, row: ClaimedRow, error: BrokerError, *, counted: bool) -> None:
        attempt = row.finished + counted
        message = row.message
        wait_s = RETRIES.pause_s(attempt or 1, draw=self._draw)
        attempts_max = self._settings.attempts_max
        if waits := isinstance(error, TopicNotSubscribed):  # for as long as it takes: there is nothing to mend
            # From the second try on: a consumer that starts beside the relay subscribes in between.
            if attempt > 1 and self._destinations.note_not_subscribed(row.destination):
                log_not_subscribed(row.destination, error)
        elif not isinstance(error, NotSent):
            log_failure(row, error, attempt=attempt, attempts_max=attempts_max, wait_s=wait_s)
        dead = attempt >= attempts_max and not waits
        if dead:
            id_, topic = (message.id, message.topic) if isinstance(message, Message) else (f"row {row.position}", "?")
            sent.dead.append(Dead(id_, topic, str(error)))
        sent.count(row.destination, refused=1)
        wait_ms = None if dead else round(wait_s * 1000)
        sent.failures.append(Failure(row.position, shorten(error), wait_ms, int(counted)))

    async def _mark(self, sent: TickResult) -> None:
        batch: list[BatchItem] = []
        if len(sent.confirmed) < sent.claimed:
            # Rows that are no longer at hand must not be counted should this relay die now.
            batch.append(self._sql.forget_trying(self.relay))
        if sent.confirmed:
            batch.append(self._sql.mark_published(sent.confirmed, keep=self._settings.keep_published_s > 0))
        if sent.failures:
            batch.append(self._sql.mark_failed(self.relay, sent.failures))
        # One statement commits by itself, beside the consumers that have the events by now.
        await Batch(tuple(batch) if len(batch) == 1 else (Boundary.BEGIN, *batch, Boundary.COMMIT))
