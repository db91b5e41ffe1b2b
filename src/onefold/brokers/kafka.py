"""Kafka, on confluent-kafka: a topic of Kafka for each topic, a consumer group for each consumer.

Invariant: a message counts as confirmed when all in-sync replicas have it (`acks=all`, idempotent producer); an offset
is committed when every message below it, in its partition, has been acknowledged.

How it works: librdkafka wants to be polled. One thread does so for the producer and hands the delivery reports to the
loop; one thread for each subscription makes every call of its consumer, so nothing here takes a lock. A consumer gives
out what a partition holds from the last committed offset on. Kafka does not know what was handed out before: whatever
was in the partition when it became ours may have been.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final, TypeAlias

from onefold._kernel.extras import missing_extra

try:
    from confluent_kafka import KafkaError, KafkaException, Producer
except ModuleNotFoundError as error:
    raise missing_extra(error, "kafka") from None
from confluent_kafka import Message as Record

from onefold._kernel.messages import Confirm, Message, write
from onefold._kernel.redaction import redact
from onefold._kernel.topics import refuse_patterns
from onefold._policy.ranges import require
from onefold.brokers._kafka_group import (
    PREFIX,
    PROBE_S,
    SLICE_S,
    ClusterHealth,
    KafkaSubscription,
    make_client,
    probe_cluster,
)
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused

__all__ = ["KafkaBroker", "Setting"]

Setting: TypeAlias = str | int | float | bool

_TOPIC_CHARACTERS_MAX: Final = 249
_TOPIC_OURS_MAX: Final = 200

#: Settings that could lose messages, and what each must be.
_REQUIRED: Final[Mapping[str, Setting]] = {
    "enable.idempotence": True,
    "acks": "all",
    "request.required.acks": "all",
    "enable.auto.commit": False,
    "auto.commit.enable": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
}
#: Settings that this adapter sets itself.
_TAKEN: Final = frozenset(
    {"bootstrap.servers", "metadata.broker.list", "group.id", "message.timeout.ms", "delivery.timeout.ms"}
    | {"partition.assignment.strategy", "transactional.id", "test.mock.num.brokers"}
)
_DEFAULTS: Final[Mapping[str, Setting]] = {
    "log_level": 0,  # Errors are raised; the client's own log would repeat them every second.
    "linger.ms": 1,
    "partitioner": "murmur2_random",  # As the Java client does: a key has one partition, from any client.
    "reconnect.backoff.ms": 50,
    "reconnect.backoff.max.ms": 1000,
}
_REFUSING: Final = frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.INVALID_MSG,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
    }
)


class KafkaBroker:
    """A Kafka cluster, named by its `bootstrap` servers: host:port, several joined by commas."""

    #: In spans.
    system = "kafka"

    def __init__(
        self,
        bootstrap: str,
        *,
        topic_prefix: str = "",
        confirm_s: float = 10.0,
        redelivery_s: float = 7 * 86_400,
        settings: Mapping[str, Setting] | None = None,
    ) -> None:
        """Topics of Kafka are called `topic_prefix` and the event's topic. An event counts as published when all
        in-sync replicas have confirmed it within `confirm_s`. `settings` are librdkafka's own, such as those for TLS
        and SASL. `redelivery_s` is the retention of the topics, or more: Kafka's default is a week."""
        require("confirm_s", confirm_s, least=0.1, most=600)
        require("redelivery_s", redelivery_s, least=1, most=10 * 366 * 86_400)
        if not bootstrap.strip():
            raise ConfigurationError("bootstrap='' names no server: give host:port, several joined by commas")
        if "@" in bootstrap:  # librdkafka would log it
            raise ConfigurationError(
                f"bootstrap={redact(f'kafka://{bootstrap}').removeprefix('kafka://')!r} was given with a user: Kafka's "
                "credentials are settings, settings={'sasl.username': ..., 'sasl.password': ...}"
            )
        if len(topic_prefix) > _TOPIC_CHARACTERS_MAX - _TOPIC_OURS_MAX:
            raise ConfigurationError(
                f"topic_prefix={topic_prefix!r} is too long: give up to {_TOPIC_CHARACTERS_MAX - _TOPIC_OURS_MAX} "
                f"characters, for Kafka takes {_TOPIC_CHARACTERS_MAX} for a topic"
            )
        self._settings: dict[str, Any] = {
            **_DEFAULTS,
            **_check_settings(settings or {}),
            "bootstrap.servers": bootstrap,
        }
        self._topic_prefix = topic_prefix
        self._confirm_s = confirm_s
        self._redelivery_s = redelivery_s
        self._sender: _PolledProducer | None = None
        self._closed = False
        self._starting = asyncio.Lock()
        self._subscriptions: set[KafkaSubscription] = set()

    @property
    def keep_every_s(self) -> float:
        """Kafka gives the partitions to others when a consumer has not polled for `max.poll.interval.ms`."""
        return float(self._settings.get("max.poll.interval.ms", 300_000)) / 1000 / 5

    @property
    def redelivery_s(self) -> float:
        return self._redelivery_s

    async def open(self) -> None:
        self._closed = False
        sender = await self._live_sender()
        try:
            await sender.probe(self._confirm_s)
        except BaseException:
            await self.close()
            self._closed = False  # A caller that retries without opening gets the error.
            raise

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        if not messages:
            return []
        sender = await self._live_sender()
        if sender.health.down:
            await sender.probe(PROBE_S)
        answers = [sender.send(self._topic_prefix + message.topic, message) for message in messages]
        # librdkafka gives up after confirm_s, and looks once a second.
        await asyncio.wait(answers, timeout=self._confirm_s + 2.0)
        return [answer.result() if answer.done() else _no_report() for answer in answers]

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> KafkaSubscription:
        if not consumer or len(consumer) > _TOPIC_CHARACTERS_MAX:
            raise ConfigurationError(
                f"consumer={consumer!r} cannot name a consumer group: give 1 to {_TOPIC_CHARACTERS_MAX} characters"
            )
        if not topics:
            raise ConfigurationError(f"consumer={consumer!r} has no topics: name those that it receives")
        refuse_patterns("Kafka", consumer, topics)
        if self._closed:
            raise _over()
        subscription = KafkaSubscription(
            self._settings,
            group=consumer,
            topics=topics,
            topic_prefix=self._topic_prefix,
            patience_s=self._confirm_s,
        )
        try:
            await subscription.join()
        except BaseException:
            await subscription.close()
            raise
        self._subscriptions = {*(each for each in self._subscriptions if not each.is_closed), subscription}
        return subscription

    async def close(self) -> None:
        self._closed = True
        for subscription in tuple(self._subscriptions):
            await subscription.close()
        self._subscriptions.clear()
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    async def _live_sender(self) -> _PolledProducer:
        """The producer; a new one if the last had a fatal error."""
        if self._closed:
            raise _over()
        async with self._starting:
            if self._sender is not None and self._sender.health.fatal is not None:
                sender, self._sender = self._sender, None
                await sender.close()
            if self._sender is None:
                self._sender = _PolledProducer(self._settings, self._confirm_s)
            return self._sender


class _PolledProducer:
    """A producer, and the thread that polls it. Delivery reports come to the loop in bunches."""

    def __init__(self, settings: Mapping[str, Any], confirm_s: float) -> None:
        self.health = ClusterHealth()
        self._loop = asyncio.get_running_loop()
        self._settled: list[tuple[asyncio.Future[Confirm], Confirm]] = []
        self._producer: Producer | None = make_client(
            Producer,
            {
                **settings,
                "enable.idempotence": True,
                "acks": "all",
                "message.timeout.ms": int(confirm_s * 1000),
                # A topic that is not there is known not to be before the message's time is over.
                "topic.metadata.propagation.max.ms": int(confirm_s * 500),
                "error_cb": self.health.report,
            },
        )
        self._stopping = threading.Event()
        self._asking = ThreadPoolExecutor(1, "onefold-kafka-ask")
        self._pump = threading.Thread(target=self._poll, name="onefold-kafka-pump", daemon=True)
        self._pump.start()

    async def probe(self, patience_s: float) -> None:
        """Raises BrokerUnavailable where no broker answers."""
        assert self._producer is not None
        await self._loop.run_in_executor(self._asking, probe_cluster, self._producer, self.health, patience_s)

    def send(self, topic: str, message: Message) -> asyncio.Future[Confirm]:
        answer: asyncio.Future[Confirm] = self._loop.create_future()
        assert self._producer is not None
        try:
            self._producer.produce(
                topic,
                message.data,
                key=None if message.key is None else message.key.encode(),
                headers=[(name, text.encode()) for name, text in write(message, prefix=PREFIX, percent=False).items()],
                on_delivery=partial(self._report, answer, topic),
            )
        except BufferError:
            answer.set_result(BrokerUnavailable("too many messages wait to be sent to Kafka"))
        except KafkaException as error:
            answer.set_result(_verdict(error.args[0], topic))
        return answer

    async def close(self) -> None:
        """Drop unsent messages; their callers have had their answers, or get them now."""
        self._stopping.set()
        await self._loop.run_in_executor(self._asking, self._end)
        self._asking.shutdown()

    def _report(self, answer: asyncio.Future[Confirm], topic: str, error: KafkaError | None, _: Record) -> None:
        self._settled.append((answer, None if error is None else _verdict(error, topic)))

    def _poll(self) -> None:
        while not self._stopping.is_set():
            producer = self._producer
            if producer is None:
                return
            producer.poll(SLICE_S)
            del producer
            self._hand_over()

    def _hand_over(self) -> None:
        settled, self._settled = self._settled, []
        if settled:
            self._loop.call_soon_threadsafe(_settle, settled)

    def _end(self) -> None:
        self._pump.join()
        if self._producer is not None:
            self._producer.purge()
            self._producer.poll(0)
            self._hand_over()
            self._producer = None  # Its threads and sockets end here, with the last reference.


def _check_settings(settings: Mapping[str, Setting]) -> Mapping[str, Setting]:
    for name, value in settings.items():
        if name in _TAKEN:
            raise ConfigurationError(f"settings[{name!r}] is set by onefold itself: leave it out")
        if name in _REQUIRED and not _same(value, _REQUIRED[name]):
            raise ConfigurationError(
                f"settings[{name!r}]={value!r} could lose messages, or deliver what was never sent: leave it out, "
                f"it is {_REQUIRED[name]!r}"
            )
    return settings


def _same(value: Setting, required: Setting) -> bool:
    text = {"-1": "all"}.get(str(value).lower(), str(value).lower())
    return text == str(required).lower()


def _verdict(error: KafkaError, topic: str) -> Confirm:
    if error.code() in _REFUSING:
        return MessageRefused(f"Kafka refuses it for topic {topic!r}: {error}")
    return BrokerUnavailable(f"Kafka did not confirm it for topic {topic!r}: {error}")


def _over() -> BrokerUnavailable:
    return BrokerUnavailable("this broker is closed: open it again, or make another")


def _no_report() -> Confirm:
    return BrokerUnavailable("Kafka's client did not report on it in time")


def _settle(settled: Sequence[tuple[asyncio.Future[Confirm], Confirm]]) -> None:
    for answer, confirm in settled:
        if not answer.done():
            answer.set_result(confirm)
