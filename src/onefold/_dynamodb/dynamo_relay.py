"""The relay of events that wait in DynamoDB: from the index of its table to any broker.

Theory of operation. An event is in the index `outbox` for as long as it waits. A relay leases shards of it, reads
what is there from the beginning each time, publishes it and deletes what was confirmed. The index follows the table
with a delay and not in the order of commits: an event may be seen late, and is seen in the end, because nothing keeps a
place in it. A relay that dies between confirm and delete, or outlives its lease, publishes twice, under the same id.

What DynamoDB cannot give: versions. A counter for each key would be one more item that every transaction of the key
writes, and a conflict for those at the same time. So events of one call leave in their order; those of two calls with
the same key leave by the clocks of the hosts that made them.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from onefold._dynamodb.cancellations import KeyTaken, call_dynamodb
from onefold._dynamodb.dynamo_table import INDEX, DynamoTable
from onefold._dynamodb.item_values import read_item, write_item
from onefold._kernel.messages import STRUCTURED, Confirm, Message, read
from onefold._kernel.ports import Broker
from onefold._outbox.claimed_rows import rounds
from onefold._outbox.confirms import publish_messages
from onefold._outbox.relay_session import RETRIES
from onefold._policy.backoff import PAUSES
from onefold._policy.ranges import require
from onefold.errors import (
    BrokerUnavailable,
    ConfigurationError,
    OnefoldError,
    StatementRefused,
    StoreError,
    TopicNotSubscribed,
)

DEAD: Final = "dead"
_log: Final = logging.getLogger("onefold.dynamodb")
_IDLE_S: Final = (0.2, 5.0)
_ERROR_BYTES_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class WaitingEvent:
    """An event of the index."""

    pk: str
    """Its item in the table."""
    message: Message
    """What is published."""
    refused: int
    """How often the broker has refused it."""
    error: str | None = None
    """Why, the last time."""

    @property
    def stream(self) -> bytes | None:
        """What its order is kept by; None: it has no key."""
        return self.message.stream


@dataclass(slots=True)
class _HeldEvents:
    """What stays where it is until the next tick."""

    streams: set[bytes] = field(default_factory=set)
    topics: dict[str, BrokerUnavailable] = field(default_factory=dict)

    def hold(self, event: WaitingEvent) -> None:
        """What follows it in its stream waits for it."""
        if event.stream is not None:
            self.streams.add(event.stream)

    def has(self, event: WaitingEvent) -> bool:
        return event.message.topic in self.topics or (event.stream is not None and event.stream in self.streams)


class DynamoRelay:
    """`await DynamoRelay(table, SqsBroker("sqs://eu-central-1")).run(stop)`: as many processes as you like."""

    def __init__(
        self,
        table: DynamoTable,
        broker: Broker,
        *,
        attempts_max: int = 25,
        lease_s: float = 30.0,
        batch: int = 100,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """Publishes the events of `table` through `broker`, at most `batch` at once. After `attempts_max` refusals an
        event is a dead letter (`list_dead`). `lease_s` is for how long the shards of a relay that died are left alone,
        by the clocks of the hosts: skewed clocks publish more often, and lose nothing. `now_s` is the clock."""
        require("attempts_max", attempts_max, least=1, most=10_000, whole=True)
        require("lease_s", lease_s, least=1, most=3600)
        require("batch", batch, least=1, most=1000, whole=True)
        if not isinstance(table, DynamoTable):
            raise ConfigurationError(f"DynamoRelay({table!r}): give a DynamoTable")
        self._table = table
        self._broker = broker
        self._attempts_max = attempts_max
        self._lease_s = lease_s
        self._batch = batch
        self._now_s = now_s
        self._name = uuid.uuid4().hex
        self._until: dict[str, float] = {}
        #: When a refused event is sent again, by its item. A new process sends it at once.
        self._again_at: dict[str, float] = {}
        #: Topics without a consumer that the log has named.
        self._not_subscribed: set[str] = set()

    async def run(self, stop: asyncio.Event) -> None:
        """Relay until `stop`. A broker or a DynamoDB that is away is tried again, with growing pauses, and so is what
        may be there again in a moment, such as the credentials of a role."""
        idle_s, failures = _IDLE_S[0], 0
        await self._open(stop)
        try:
            while not stop.is_set():
                try:
                    idle_s = _IDLE_S[0] if await self.tick() else min(2 * idle_s, _IDLE_S[1])
                    failures, pause_s = 0, idle_s
                except OnefoldError as error:
                    failures += 1
                    pause_s = PAUSES.pause_s(failures, draw=random.random)
                    _log.warning("relay of table %s paused for %.1f s: %s", self._table.name, pause_s, error)
                await _pause(stop, pause_s)
        finally:
            await asyncio.to_thread(self._release)
            await self._broker.close()

    async def tick(self) -> int:
        """Publish what waits in the shards that this relay has, or can have; how many were confirmed. The broker is
        open. Raises StoreError, and BrokerUnavailable: after the events of the topics that could be published."""
        held = _HeldEvents()
        confirmed = 0
        now = self._now_s()
        self._again_at = {pk: at for pk, at in self._again_at.items() if at > now}
        for number in range(self._table.shards):
            shard = f"{number:03}"
            if await asyncio.to_thread(self._lease, shard):
                confirmed += await self._relay_shard(shard, held)
        if held.topics:
            raise next(iter(held.topics.values()))
        return confirmed

    async def list_dead(self) -> Sequence[WaitingEvent]:
        """The oldest 1000 dead letters: events that the broker has refused too often, each with its last error."""
        found, _ = await asyncio.to_thread(self._read, DEAD, 1000)
        return found

    async def retry(self, dead: WaitingEvent) -> None:
        """Have a dead letter published again."""
        self._again_at.pop(dead.pk, None)
        await asyncio.to_thread(self._change, dead, shard=self._table.shard_of(dead.message), refused=0)

    async def _open(self, stop: asyncio.Event) -> None:
        failures = 0
        while not stop.is_set():
            try:
                await self._broker.open()
                return
            except BrokerUnavailable as error:
                failures += 1
                pause_s = PAUSES.pause_s(failures, draw=random.random)
                _log.warning("relay of table %s waits %.1f s for its broker: %s", self._table.name, pause_s, error)
                await _pause(stop, pause_s)

    async def _relay_shard(self, shard: str, held: _HeldEvents) -> int:
        """Page by page to the end: what waits behind events that cannot leave is not held up by them."""
        confirmed = 0
        after: Mapping[str, Any] | None = None
        while True:
            waiting, after = await asyncio.to_thread(self._read, shard, self._batch, after)
            for events in rounds(waiting):
                confirmed += await self._publish(events, held)
            if after is None or not await asyncio.to_thread(self._lease, shard):
                return confirmed

    async def _publish(self, events: Sequence[WaitingEvent], held: _HeldEvents) -> int:
        """One event of a stream at a time, and none that is `held` or was refused a moment ago; how many were
        confirmed."""
        for event in events:
            if event.pk in self._again_at:
                held.hold(event)
        sent = [event for event in events if event.pk not in self._again_at and not held.has(event)]
        answers = await publish_messages([event.message for event in sent], self._broker.publish) if sent else ()
        answered = list(zip(sent, answers, strict=True))
        for event, answer in answered:
            if isinstance(answer, BrokerUnavailable):
                # One queue may be away and the others not. The rest of its topic is not tried in this tick.
                held.topics.setdefault(event.message.topic, answer)
            self._note_subscribed(event.message.topic, answer)
            if answer is not None:
                held.hold(event)
        for event in await asyncio.to_thread(self._note_all, answered):
            held.hold(event)
        return sum(answer is None for answer in answers)

    def _note_subscribed(self, topic: str, answer: Confirm) -> None:
        """Log once for a topic, until it takes something, that its events wait for a consumer."""
        if answer is None:
            self._not_subscribed.discard(topic)
        elif isinstance(answer, TopicNotSubscribed) and topic not in self._not_subscribed:
            self._not_subscribed.add(topic)
            _log.warning("events on %s in table %s are not sent yet: %s", topic, self._table.name, answer)

    # What follows blocks, and runs on a thread.

    def _note_all(self, answers: Sequence[tuple[WaitingEvent, Confirm]]) -> list[WaitingEvent]:
        """Delete what was confirmed, and count what was refused. A crash before this publishes again, under the id.
        Returns the events that could not be noted, and raises what is not the fault of one event: StoreError."""
        failed = []
        for event, answer in answers:
            try:
                self._note(event, answer)
            except StoreError:
                raise
            except OnefoldError as error:
                failed.append(event)
                _log.error(
                    "event %s on %s is sent again in the next tick: the broker's answer could not be stored: %s",
                    event.message.id, event.message.topic, error,
                )  # fmt: skip
        return failed

    def _note(self, event: WaitingEvent, answer: Confirm) -> None:
        if answer is None:
            self._call(partial(self._table.client.delete_item, TableName=self._table.name, Key={"pk": {"S": event.pk}}))
        elif not isinstance(answer, BrokerUnavailable | TopicNotSubscribed):
            refused = event.refused + 1
            self._again_at[event.pk] = self._now_s() + RETRIES.pause_s(refused, draw=random.random)
            changes: dict[str, Any] = {"refused": refused}
            if refused >= self._attempts_max:
                changes["shard"] = DEAD
            text = str(answer).encode(errors="replace")[:_ERROR_BYTES_MAX].decode(errors="ignore")
            try:
                self._change(event, **changes, error=text)
            except StatementRefused:
                # An event of nearly 400 KB has no room for the text. It has for the count and the mark: the sizes
                # that `once` checks are a few bytes above those of DynamoDB.
                self._change(event, **changes)
            if refused >= self._attempts_max:
                _log.error(
                    "event %s on %s is a dead letter after %d refusals: %s",
                    event.message.id, event.message.topic, refused, answer,
                )  # fmt: skip

    def _change(self, event: WaitingEvent, **changes: Any) -> None:
        try:
            self._call(
                lambda: self._update(
                    {"pk": {"S": event.pk}},
                    UpdateExpression="SET " + ", ".join(f"#{name} = :{name}" for name in changes),
                    ConditionExpression="attribute_exists(#pk)",
                    ExpressionAttributeNames={f"#{name}": name for name in ("pk", *changes)},
                    ExpressionAttributeValues=write_item(
                        {f":{name}": value for name, value in changes.items()}, event.pk
                    ),
                )
            )
        except KeyTaken:
            _log.info("event %s is gone: another relay has published it", event.message.id)

    def _read(
        self, shard: str, limit: int, after: Mapping[str, Any] | None = None
    ) -> tuple[list[WaitingEvent], Mapping[str, Any] | None]:
        """A page of a shard, and where the next one begins; None: it was the last."""
        answer = self._call(
            lambda: self._table.client.query(
                TableName=self._table.name,
                IndexName=INDEX,
                KeyConditionExpression="#shard = :shard",
                ExpressionAttributeNames={"#shard": "shard"},
                ExpressionAttributeValues={":shard": {"S": shard}},
                Limit=limit,
                **({} if after is None else {"ExclusiveStartKey": after}),
            )
        )
        found = (self._read_event(read_item(item)) for item in answer.get("Items", ()))
        return [event for event in found if event is not None], answer.get("LastEvaluatedKey")

    def _read_event(self, item: Mapping[str, Any]) -> WaitingEvent | None:
        try:
            return _event_of(item)
        except OnefoldError as error:
            _log.error(
                "item %s of table %s cannot be read as an event, and stays there: %s",
                item["pk"],
                self._table.name,
                error,
            )
            return None

    def _lease(self, shard: str) -> bool:
        """Whether this relay has the shard for at least half of its lease."""
        now = self._now_s()
        if self._until.get(shard, 0.0) - now > self._lease_s / 2:
            return True
        until = now + self._lease_s
        try:
            self._call(
                lambda: self._update(
                    {"pk": {"S": f"lease#{shard}"}},
                    UpdateExpression="SET #owner = :me, #until = :until",
                    ConditionExpression="attribute_not_exists(#pk) OR #owner = :me OR #until < :now",
                    ExpressionAttributeNames={"#pk": "pk", "#owner": "owner", "#until": "until"},
                    ExpressionAttributeValues={
                        ":me": {"S": self._name}, ":until": {"N": f"{until:.3f}"}, ":now": {"N": f"{now:.3f}"},
                    },
                )
            )  # fmt: skip
        except KeyTaken:
            self._until.pop(shard, None)
            return False
        self._until[shard] = until
        return True

    def _release(self) -> None:
        """Leave the shards to others, at once."""
        for shard in self._until:
            try:
                self._table.client.delete_item(
                    TableName=self._table.name,
                    Key={"pk": {"S": f"lease#{shard}"}},
                    ConditionExpression="#owner = :me",
                    ExpressionAttributeNames={"#owner": "owner"},
                    ExpressionAttributeValues={":me": {"S": self._name}},
                )
            except Exception:
                _log.info("shard %s was not given back; it is free in %.0f s", shard, self._lease_s)
        self._until.clear()

    def _update(self, key: Mapping[str, Any], **parameters: Any) -> None:
        try:
            self._table.client.update_item(TableName=self._table.name, Key=key, **parameters)
        except self._table.client.exceptions.ConditionalCheckFailedException:
            raise KeyTaken({}) from None

    def _call(self, call: Callable[[], Any]) -> Any:
        return call_dynamodb(call, f"the relay of table {self._table.name!r}", writes=False)


def _event_of(item: Mapping[str, Any]) -> WaitingEvent:
    message = read({"content-type": STRUCTURED}, item["event"])
    return WaitingEvent(item["pk"], replace(message, headers=item["headers"]), int(item["refused"]), item.get("error"))


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
