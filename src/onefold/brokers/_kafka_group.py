"""A member of one of Kafka's consumer groups, on a thread of its own.

Invariant: an offset is committed when every message below it, in its partition, has been acknowledged. A partition
that is taken away takes its unsettled messages along: an acknowledgement of one of them comes too late, and says so.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Record

from onefold._kernel.messages import Delivery, Origin, key_text, read_delivery
from onefold.errors import BrokerUnavailable, ConfigurationError

T = TypeVar("T")

PREFIX: Final = "ce_"
"""Of the CloudEvents binding for Kafka."""

PROBE_S: Final = 1.0
SLICE_S: Final = 0.1
_NEVER: Final = 2**63


@dataclass(slots=True)
class ClusterHealth:
    """Collects the client's errors about the cluster, on whichever thread they are reported."""

    down: bool = False
    fatal: str | None = None

    def report(self, error: KafkaError) -> None:
        if error.fatal():
            self.fatal = str(error)
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            self.down = True


@dataclass(slots=True, eq=False)
class _Share:
    """One partition, while it is assigned to this process. After that, acknowledgements have no effect."""

    topic: str
    partition: int
    old_below: int
    """What lies below this offset may have been handed out before the partition was ours."""
    last: int = -1
    unsettled: deque[int] = field(default_factory=deque)
    """The offsets that have come and are not committed, in their order."""
    acknowledged: set[int] = field(default_factory=set)
    due: int = -1
    committed: int = -1
    ended: bool = False

    def advance(self) -> None:
        """The offset to commit: below it, everything is acknowledged."""
        while self.unsettled and self.unsettled[0] in self.acknowledged:
            offset = self.unsettled.popleft()
            self.acknowledged.remove(offset)
            self.due = offset + 1


#: Of what follows the committed offset, no more than this can a predecessor have handed out. What lies further on is
#: new to every member: a long backlog is not taken for messages that killed a process.
AT_HAND_MAX = 10_000


@dataclass(slots=True, eq=False)
class _Arrival:
    share: _Share
    offset: int
    record: Record
    redelivered: bool
    waiting: bool = True
    """It lies here, to be taken."""
    settled: bool = False


class KafkaSubscription:
    """A member of a consumer group. Made by `KafkaBroker.subscribe`."""

    def __init__(
        self, settings: Mapping[str, Any], *, group: str, topics: Sequence[str], topic_prefix: str, patience_s: float
    ) -> None:
        self._group = group
        self._topics = [topic_prefix + topic for topic in topics]
        self._topic_prefix = topic_prefix
        self._patience_s = patience_s
        self._health = ClusterHealth()
        self._shares: dict[tuple[str, int], _Share] = {}
        self._ready: deque[_Arrival] = deque()
        self._joined = False
        self._problem: KafkaError | None = None
        self._answers: dict[tuple[str, int], tuple[int, KafkaError | None]] = {}
        self._consumer: Consumer | None = make_client(
            Consumer,
            {
                "allow.auto.create.topics": True,
                **settings,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                # Partitions that stay are not taken away first: what is being worked on stays ours.
                "partition.assignment.strategy": "cooperative-sticky",
                "error_cb": self._health.report,
                "on_commit": self._on_commit,
            },
        )
        self._thread = ThreadPoolExecutor(1, f"onefold-kafka-{group}")

    @property
    def is_closed(self) -> bool:
        return self._consumer is None

    async def join(self) -> None:
        """Wait for the topics to be there, and for the group to have taken us in."""
        await self._call(self._join)

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        loop = asyncio.get_running_loop()
        until = loop.time() + wait_s
        while True:
            if self.is_closed:
                raise self._over()
            if taken := self._take(limit):
                return taken
            left_s = until - loop.time()
            if left_s <= 0:
                return []
            # In slices, so that acknowledgements get a turn. Messages that a cancelled call has polled are kept.
            await self._call(partial(self._poll, limit, min(left_s, SLICE_S)))

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            await self._call(partial(self._ack, [delivery.receipt for delivery in deliveries]))

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """Keep them here: Kafka can only deliver a whole partition again, from some offset on."""
        for delivery in reversed(deliveries):
            arrival: _Arrival = delivery.receipt
            if not (arrival.waiting or arrival.settled or arrival.share.ended):
                arrival.redelivered = arrival.waiting = True
                self._ready.appendleft(arrival)

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            await self._call(partial(self._poll, 1, 0.0))

    async def close(self) -> None:
        if not self.is_closed:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._end)
            self._thread.shutdown()

    def _take(self, limit: int) -> list[Delivery]:
        taken: list[Delivery] = []
        while self._ready and len(taken) < limit:
            arrival = self._ready.popleft()
            if not arrival.share.ended:
                arrival.waiting = False
                taken.append(_delivery(arrival, self._topic_prefix))
        return taken

    # --- on the subscription's own thread ----------------------------------------------------------------

    async def _call(self, function: Callable[[], T]) -> T:
        if self.is_closed:
            raise self._over()
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guard, function)

    def _over(self) -> BrokerUnavailable:
        return BrokerUnavailable(f"the subscription of {self._group!r} is closed")

    def _guard(self, function: Callable[[], T]) -> T:
        if self.is_closed:  # Meanwhile.
            raise self._over()
        try:
            return function()
        except KafkaException as error:
            raise BrokerUnavailable(f"Kafka, as consumer {self._group!r}: {error.args[0]}") from error

    def _end(self) -> None:
        if self._consumer is None:
            return
        with suppress(BrokerUnavailable, KafkaException):
            self._commit()  # Messages that were acknowledged while Kafka did not answer.
        consumer, self._consumer = self._consumer, None
        consumer.close()
        self._lose(list(self._shares))

    def _join(self) -> None:
        assert self._consumer is not None
        until = time.monotonic() + self._patience_s
        for topic in self._topics:
            while not (partitions := self._consumer.list_topics(topic, self._patience_s).topics[topic]).partitions:
                if time.monotonic() > until:
                    raise ConfigurationError(
                        f"there is no topic {topic!r}, and Kafka does not make it: create it ({partitions.error})"
                    )
                time.sleep(SLICE_S)
        self._consumer.subscribe(
            self._topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_revoke
        )
        # A member that joins a group whose members are busy gets partitions when they next poll: not waited for.
        while not self._joined and time.monotonic() < until:
            self._poll(1, SLICE_S)

    def _poll(self, limit: int, wait_s: float) -> None:
        assert self._consumer is not None
        if self._health.down:
            probe_cluster(self._consumer, self._health, PROBE_S)
        found = self._consumer.poll(wait_s)
        if found is not None:
            self._arrive(found)
            if limit > 1:
                for record in self._consumer.consume(limit - 1, 0.0):
                    self._arrive(record)
        problem, self._problem = self._problem, None
        if problem is not None and not self._ready:
            raise KafkaException(problem)

    def _arrive(self, record: Record) -> None:
        error = record.error()
        if error is not None:
            if error.code() in (KafkaError.GROUP_AUTHORIZATION_FAILED, KafkaError.TOPIC_AUTHORIZATION_FAILED):
                self._problem = error
            return  # All others pass: the client comes back by itself.
        topic, number, offset = record.topic(), record.partition(), record.offset()
        assert topic is not None
        assert number is not None
        assert offset is not None
        share = self._shares.get((topic, number))
        if share is None or offset <= share.last:
            share = self._adopt(topic, number)  # The log is another one: it was lost, or cut back.
        if share.last < 0:
            share.old_below = min(share.old_below, offset + AT_HAND_MAX)
        share.last = offset
        share.unsettled.append(offset)
        self._ready.append(_Arrival(share, offset, record, offset < share.old_below))

    def _adopt(self, topic: str, number: int) -> _Share:
        self._lose([(topic, number)])
        assert self._consumer is not None
        try:
            bounds = self._consumer.get_watermark_offsets(TopicPartition(topic, number), self._patience_s)
        except KafkaException:
            bounds = None
        share = self._shares[topic, number] = _Share(topic, number, old_below=_NEVER if bounds is None else bounds[1])
        return share

    def _lose(self, partitions: Sequence[tuple[str, int]]) -> None:
        for partition in partitions:
            if (share := self._shares.pop(partition, None)) is not None:
                share.ended = True

    def _on_assign(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._joined = True
        if self.is_closed:
            return  # Dealt out while the client leaves the group, in the last polls of its close: none is taken.
        for partition in partitions:
            self._adopt(partition.topic, partition.partition)

    def _on_revoke(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self._lose([(partition.topic, partition.partition) for partition in partitions])

    def _ack(self, arrivals: Sequence[_Arrival]) -> None:
        for arrival in arrivals:
            if not arrival.settled:
                arrival.settled = True
                arrival.share.acknowledged.add(arrival.offset)
        for share in self._shares.values():
            share.advance()
        self._commit()
        if late := sum(arrival.share.ended for arrival in arrivals):
            raise BrokerUnavailable(
                f"the partitions of {late} messages were taken from {self._group!r} before they were acknowledged: "
                "they come again"
            )

    def _commit(self) -> None:
        """Commit without blocking, and poll for the answer: a commit that blocks has no end while Kafka is away."""
        assert self._consumer is not None
        shares = [share for share in self._shares.values() if share.due > share.committed]
        if not shares:
            return
        self._answers.clear()
        self._consumer.commit(
            offsets=[TopicPartition(share.topic, share.partition, share.due) for share in shares], asynchronous=True
        )
        until = time.monotonic() + self._patience_s
        while time.monotonic() < until:
            answers = [(share, self._answers.get((share.topic, share.partition))) for share in shares]
            if all(answer is not None and answer[0] == share.due for share, answer in answers):
                break
            if all(share.ended for share in shares):
                return
            self._poll(1, 0.01)
        for share in shares:
            offset, error = self._answers.get((share.topic, share.partition), (-1, None))
            if offset == share.due and error is None:
                share.committed = offset
        if failed := [share for share in shares if share.committed != share.due and not share.ended]:
            _, error = self._answers.get((failed[0].topic, failed[0].partition), (-1, None))
            raise BrokerUnavailable(
                f"Kafka did not take the acknowledgement of {self._group!r} for {failed[0].topic!r}: "
                f"{error or 'it did not answer in time'}"
            )

    def _on_commit(self, error: KafkaError | None, partitions: list[TopicPartition]) -> None:
        for partition in partitions:
            self._answers[partition.topic, partition.partition] = (partition.offset, error or partition.error)


def make_client(kind: Callable[[dict[str, Any]], T], settings: dict[str, Any]) -> T:
    try:
        return kind(settings)
    except KafkaException as error:
        raise ConfigurationError(f"Kafka's client does not take its settings: {error.args[0]}") from error


def probe_cluster(client: Producer | Consumer, health: ClusterHealth, patience_s: float) -> None:
    try:
        client.list_topics(timeout=patience_s)
    except KafkaException as error:
        raise BrokerUnavailable(f"no server of Kafka answers: {error.args[0]}") from error
    health.down = False


def _delivery(arrival: _Arrival, topic_prefix: str) -> Delivery:
    record, share = arrival.record, arrival.share
    key: Any = record.key()
    return read_delivery(
        _headers(record),
        record.value() or b"",
        redelivered=arrival.redelivered,
        receipt=arrival,
        origin=Origin(
            broker="kafka",
            subject=share.topic,
            topic=share.topic.removeprefix(topic_prefix),
            id=f"{share.partition}/{arrival.offset}",
            key=None if key is None else key_text(key if isinstance(key, bytes) else str(key).encode()),
            prefix=PREFIX,
            percent=False,
        ),
    )


#: The application's headers as one JSON object: a connector that reads the outbox table cannot take them apart.
TOGETHER: Final = "onefold-headers"


def _headers(record: Record) -> dict[str, str]:
    try:
        pairs: Any = record.headers() or ()
    except Exception:  # a name that is not text: what the headers say is lost, the message is not
        return {}
    # A connector writes a column that is NULL as a header without a value: the event has no such attribute.
    found = {
        name: (value or b"").decode(errors="replace")
        for name, value in pairs
        if value is not None or not name.startswith(PREFIX)
    }
    try:
        together = json.loads(found.get(TOGETHER, ""))
    except (ValueError, RecursionError):
        return found
    if not isinstance(together, dict):
        return found
    own = {name: value for name, value in together.items() if isinstance(value, str) and name not in found}
    return {**own, **{name: value for name, value in found.items() if name != TOGETHER}}
