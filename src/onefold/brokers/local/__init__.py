"""`local`: a broker inside the database, for those who have no other. One row per consumer and message.

Theory of operation. Publishing copies a message to every consumer that has subscribed to its topic; receiving leases
rows, oldest first; acknowledging deletes them. What is leased and not acknowledged in time is given out again. A topic
that no consumer has subscribed to refuses its messages, so that they wait in the outbox instead of getting lost.

Patterns of topics are matched here; the database copies by whole texts, those of patterns as well as of topics. A
pattern that is subscribed to after the subscriptions were read was not there when the message was published.
"""

from __future__ import annotations

import json
import time
from base64 import b64encode
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar
from uuid import uuid4

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Flow, Row, Statement
from onefold._kernel.executors import run_on
from onefold._kernel.messages import Confirm, Delivery, Message, Origin, name_apart, read_delivery, write
from onefold._kernel.ports import AsyncDatabase, SubscriptionSeen
from onefold._kernel.topics import is_pattern, matches
from onefold._kernel.wakeup_signals import Wakeups
from onefold.brokers.local._sql import STATEMENTS
from onefold.errors import BrokerUnavailable, ConfigurationError, StoreBusy, StoreError, TopicNotSubscribed

__all__ = ["LocalBroker"]

T = TypeVar("T")

#: Is called with topics that a consumer has subscribed to for the first time: their events need not wait any longer.
Awaited: TypeAlias = Callable[[Sequence[str]], Awaitable[object]]

#: How long what was received may be worked on before it is given out again, unless it is kept.
LEASE_S: Final = 30.0

#: How long a lock that another transaction holds is waited for.
BUSY_S_MAX: Final = 10.0

#: Of a consumer that is removed, rows that one statement deletes.
REMOVED_AT_ONCE: Final = 1000

#: How often an empty queue is looked at: quickly at first, then seldom. A publish in the same process wakes at once.
PAUSE_S_MIN: Final = 0.005
PAUSE_S_MAX: Final = 0.1

#: The same where publishes of other processes are notified (Postgres): each after its COMMIT, so that one poll finds
#: it. Further polls are for expired leases, and for notifications while no process listened.
PAUSE_NOTIFIED_S: Final = 20.0


class LocalBroker:
    """Delivers to the consumers of the same database."""

    #: In spans.
    system = "local"

    #: A relay that publishes again after a crash does so within its lease; a day is generous.
    redelivery_s = 24 * 3600.0

    matches_patterns = True

    def __init__(
        self,
        database: AsyncDatabase[Any],
        *,
        lease_s: float = LEASE_S,
        awaited: Awaited | None = None,
        wakeups: Wakeups | None = None,
    ) -> None:
        """A message whose process was silent for `lease_s` is given to another. `awaited` is called with topics that
        are subscribed to for the first time, whose events wait in the outbox. `wakeups` is shared by those that publish
        and those that consume over one database, in one process."""
        if not 0.1 <= lease_s <= 3600:
            raise ConfigurationError(f"lease_s={lease_s} must be between 0.1 and 3600")
        self._database = database
        self._awaited = awaited
        self._sql = STATEMENTS[database.dialect]
        self._lease_ms = int(lease_s * 1000)
        self.wakeups = Wakeups() if wakeups is None else wakeups
        #: The patterns that the last publish has found.
        self._patterns: frozenset[str] = frozenset()

    @property
    def keep_every_s(self) -> float:
        return self._lease_ms / 3000

    async def open(self) -> None:
        await self._run(self._topics)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        if not messages:
            return []

        async def deliver() -> Collection[str]:
            # On SQLite a power cut that takes these rows back takes the relay and its marks with them.
            if self._sql.deliver_all:
                subscribed = await self._deliver_together(messages)
            else:
                subscribed = await self._topics()
                routes = _routes(messages, subscribed)
                rows = [self._deliver(message, text) for message in messages for text in routes[message.topic]]
                if rows:
                    await Batch((Boundary.BEGIN_LIGHT, *rows, Boundary.COMMIT))
            self.wakeups.set()  # now: giving the connection back takes its time
            self.wakeups.notify_others()
            return subscribed

        routes = _routes(messages, await self._run(deliver))
        return [None if routes[message.topic] else _unrouted_error(message) for message in messages]

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> LocalSubscription:
        known = await self._run(self._topics)
        await self._write(*(self._sql.subscribe(consumer, topic) for topic in topics))
        new = [topic for topic in topics if topic not in known]
        if new and self._awaited is not None:
            await self._awaited(new)
        return LocalSubscription(self, consumer)

    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        await self._write(self._sql.unsubscribe(consumer, json.dumps(sorted(topics))))

    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        async def look() -> list[SubscriptionSeen]:
            topics: dict[str, list[str]] = {}
            for consumer, topic in await Fetch(self._sql.subscriptions()):
                topics.setdefault(consumer, []).extend([] if topic is None else [topic])
            counts = {consumer: await Fetch(self._sql.count(consumer)) for consumer in topics}
            return [
                SubscriptionSeen(consumer=consumer, topics=tuple(sorted(found)), waiting=counts[consumer][0][0])
                for consumer, found in topics.items()
            ]

        return await self._run(look)

    async def remove(self, consumer: str) -> int | None:
        async def delete() -> int | None:
            # First nothing more is copied to it; then what waits goes, some at a time.
            removed = await Batch((self._sql.remove_subscription(consumer),))
            dropped = 0
            while some := await Batch((self._sql.remove_waiting(consumer, REMOVED_AT_ONCE),)):
                dropped += some
            return dropped if removed or dropped else None

        return await self._run(delete)

    async def close(self) -> None:
        """The database is its owner's to close."""

    def _deliver(self, message: Message, subscribed: str) -> Statement:
        return self._sql.deliver(subscribed, _name(message), _headers(message), message.data)

    async def _deliver_together(self, messages: Sequence[Message]) -> Collection[str]:
        """In one statement, by topics and by the patterns that were there last time; in a second one by those that have
        come since. What a crash in between has delivered is published once more, under its id."""
        known = self._patterns
        routes = _routes(messages, {message.topic for message in messages} | known)
        subscribed = await self._send(messages, routes)
        self._patterns = frozenset(filter(is_pattern, subscribed))
        if new := self._patterns - known:
            await self._send(messages, _routes(messages, new))
        return subscribed

    async def _send(self, messages: Sequence[Message], routes: Mapping[str, Sequence[str]]) -> Collection[str]:
        rows = [_as_row(n, message, text) for n, message in enumerate(messages) for text in routes[message.topic]]
        if not rows:
            return ()
        sent = json.dumps(rows, ensure_ascii=False)
        return {topic for (topic,) in await Fetch(self._sql.deliver_together(sent, self.wakeups.sender))}

    async def _topics(self) -> set[str]:
        return {topic for (topic,) in await Fetch(self._sql.topics())}

    async def _write(self, *statements: Statement) -> None:
        # On Postgres one statement is a transaction by itself: BEGIN and COMMIT may be round trips of their own.
        alone = len(statements) == 1 and not self._sql.opens

        async def work() -> None:
            await Batch(statements if alone else (Boundary.BEGIN_LIGHT, *statements, Boundary.COMMIT))

        await self._run(work)

    async def _take(self, consumer: str, holder: str, limit: int) -> list[Row]:
        async def work() -> list[Row]:
            if self._sql.opens:
                # Looking takes no lock: an idle consumer holds up no other. (On Postgres taking nothing locks nothing.)
                if not await Fetch(self._sql.waiting(consumer)):
                    return []
                await Batch(self._sql.opens)
            rows = await Fetch(self._sql.take(consumer, holder, limit, self._lease_ms))
            if self._sql.opens:
                await Batch((Boundary.COMMIT,))
            return sorted(rows)

        return await self._run(work)

    async def _run(self, work: Callable[[], Flow[T]]) -> T:
        give_up_at = time.monotonic() + BUSY_S_MAX
        while True:
            try:
                return await run_on(self._database, with_connection(work))
            except StoreError as error:
                # A lock that another holds (on SQLite there is only one) is not an outage: it is worth waiting for.
                if not isinstance(error, StoreBusy) or time.monotonic() >= give_up_at:
                    raise BrokerUnavailable(f"the database that carries local messages: {error}") from error


class LocalSubscription:
    """Implements `Subscription` on the rows of one consumer."""

    def __init__(self, broker: LocalBroker, consumer: str) -> None:
        self._broker = broker
        self._consumer = consumer
        self._holder = uuid4().hex
        self._held: set[int] = set()
        self._signal = broker.wakeups.listen()
        self._look_at = self._pause_s = 0.0

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        give_up_at = time.monotonic() + wait_s
        rows = await self._look(limit)
        while not rows and (left_s := give_up_at - time.monotonic()) > 0:
            await self._signal.wait(min(left_s, max(0.0, self._look_at - time.monotonic())))
            rows = await self._look(limit)
        self._held.update(row[0] for row in rows)
        return [_delivery(*row) for row in rows]

    async def _look(self, limit: int) -> list[Row]:
        """What there is to take, if it was signalled or is time to look. Each look in vain makes the next pause longer,
        however often we are asked."""
        if not self._signal.is_set() and time.monotonic() < self._look_at:
            return []
        if self._signal.is_set():
            self._pause_s = 0.0
        self._signal.clear()
        rows = await self._broker._take(self._consumer, self._holder, limit)
        if rows:
            self._pause_s = 0.0
        if len(rows) == limit:
            self._look_at = 0.0  # there may be more; else a new message is notified, or found by the next poll
        else:
            self._pause_s = min(PAUSE_S_MAX, max(PAUSE_S_MIN, 2 * self._pause_s))
            if self._broker.wakeups.listeners:
                self._pause_s = min(PAUSE_NOTIFIED_S, self._broker._lease_ms / 2000)
            self._look_at = time.monotonic() + self._pause_s
        return rows

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        await self._settle(self._broker._sql.remove, deliveries)

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self._settle(self._broker._sql.give_back, deliveries)
        self._broker.wakeups.set()

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            positions = json.dumps([delivery.receipt for delivery in deliveries])
            await self._broker._write(self._broker._sql.keep(positions, self._holder, self._broker._lease_ms))

    async def close(self) -> None:
        self._broker.wakeups.leave(self._signal)
        if self._held:
            held, self._held = json.dumps(sorted(self._held)), set()
            await self._broker._write(self._broker._sql.give_back(held, self._holder))

    async def _settle(self, statement: Callable[[str, str], Statement], deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            positions = [delivery.receipt for delivery in deliveries]
            self._held.difference_update(positions)  # what does not arrive comes again, and is no longer ours
            await self._broker._write(statement(json.dumps(positions), self._holder))


def _routes(messages: Sequence[Message], subscribed: Collection[str]) -> dict[str, list[str]]:
    """For each topic of these messages, what stands for it."""
    patterns = sorted(filter(is_pattern, subscribed))
    return {
        topic: [*([topic] if topic in subscribed else ()), *(each for each in patterns if matches(each, topic))]
        for topic in {message.topic for message in messages}
    }


def _as_row(number: int, message: Message, subscribed: str) -> dict[str, int | str]:
    """For `deliver_together`."""
    return {
        "number": number,
        "topic": subscribed,
        "id": _name(message),
        "headers": _headers(message),
        "data": b64encode(message.data).decode(),
    }


def _name(message: Message) -> str:
    return name_apart(message.id, message.source)


def _headers(message: Message) -> str:
    return json.dumps(write(message, percent=False), ensure_ascii=False, separators=(",", ":"))


def _delivery(position: int, headers: str, data: bytes, taken: int) -> Delivery:
    origin = Origin(broker="local", id=str(position), percent=False)
    return read_delivery(json.loads(headers), bytes(data), redelivered=taken > 1, receipt=position, origin=origin)


def _unrouted_error(message: Message) -> TopicNotSubscribed:
    return TopicNotSubscribed(
        f"no consumer has subscribed to {message.topic!r} on this database; the event waits in the outbox until one "
        "does (onefold consume)"
    )
