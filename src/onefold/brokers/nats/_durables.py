"""What the stream keeps for consumers: their durables, made, widened, narrowed, listed and removed.

Invariant: a durable has every subject that a process of its consumer has subscribed to, until that is unsubscribed.
NATS replaces the filter of a durable as a whole and under no condition, so two processes that change one at a time
could take away what the other has added. A process that changes a durable therefore holds a lock, which is a consumer
of a name that NATS makes only once, and which NATS removes by itself if its holder dies.

A filter must not have two subjects of which one stands for the other (`order.*` and `order.placed`): it has the widest
of them, and the durable's metadata all requested ones, so that either can be unsubscribed.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, Protocol
from uuid import uuid4

import nats.js.errors
from nats.js.api import AckPolicy, ConsumerConfig, ConsumerInfo, DeliverPolicy, StreamConfig

from onefold._kernel.ports import SubscriptionSeen
from onefold._kernel.topics import widest
from onefold.brokers.nats._connection import TROUBLE, NatsConnection
from onefold.errors import BrokerUnavailable

#: After so long a lock ends whose holder does nothing more. A change that takes half of that is given up.
LOCK_S: Final = 5.0
#: No name of a durable ends like this: after "=" they have hexadecimal digits.
_LOCK: Final = "=lock"
#: The server's error code for an existing consumer of that name.
_EXISTS: Final = 10148
_REQUESTED: Final = "onefold-subjects"


class Source(Protocol):
    """What a subscription needs of its broker."""

    stream: str
    prefix: str
    confirm_s: float
    ack_wait_s: float
    duplicate_window_s: float

    async def connect(self) -> NatsConnection: ...
    def trims(self, config: StreamConfig) -> bool: ...
    def unavailable(self, reason: object) -> BrokerUnavailable: ...


def durable_name(consumer: str) -> str:
    """NATS takes few characters for a name."""
    return re.sub(r"[^A-Za-z0-9_-]", lambda found: f"={found[0].encode().hex()}", consumer)


def filters_of(config: ConsumerConfig) -> list[str]:
    """The subjects that a consumer gets."""
    return config.filter_subjects or [config.filter_subject or ">"]


def subjects_of(config: ConsumerConfig) -> list[str]:
    """The requested subjects. The filter alone, if another release of onefold has set it."""
    filters = filters_of(config)
    try:
        requested = json.loads((config.metadata or {}).get(_REQUESTED, "null"))
    except ValueError:
        return filters
    is_whole = isinstance(requested, list) and all(isinstance(subject, str) for subject in requested)
    return requested if is_whole and set(widest(requested)) == set(filters) else filters


async def widen(broker: Source, connection: NatsConnection, consumer: str, subjects: Sequence[str]) -> None:
    """Have a durable with these subjects, and with those that it has: another process of the consumer may have
    subscribed to more (a deployment under way). Most often it is there already."""

    def config_for(found: ConsumerConfig | None) -> ConsumerConfig:
        return _config(broker, consumer, [*subjects, *(subjects_of(found) if found else ())])

    found = await _find(broker, connection, consumer)
    if found is None and await _create(broker, connection, config_for(None)):
        return
    if found is not None and _is_like(found, config_for(found)):
        return
    async with alone(broker, connection, consumer):
        await connection.jetstream.add_consumer(broker.stream, config_for(await _find(broker, connection, consumer)))


async def unsubscribe(broker: Source, consumer: str, subjects: Collection[str]) -> None:
    """Take these subjects from its filter. With the last of them the consumer itself ends: a filter of none is all."""
    connection = await broker.connect()
    try:
        async with asyncio.timeout(broker.confirm_s):
            if await _find(broker, connection, consumer) is not None:
                async with alone(broker, connection, consumer):
                    await _narrow(broker, connection, consumer, subjects)
    except TROUBLE as error:
        raise broker.unavailable(error) from error


async def subscriptions(broker: Source) -> list[SubscriptionSeen]:
    """The durables of the stream, onefold's and others."""
    connection = await broker.connect()
    found: list[SubscriptionSeen] = []
    try:
        async with asyncio.timeout(broker.confirm_s):
            offset = 0
            while some := await connection.jetstream.consumers_info(broker.stream, offset):
                offset += len(some)
                for info in some:
                    if info.name.endswith(_LOCK):
                        continue
                    topics = sorted(subject.removeprefix(f"{broker.prefix}.") for subject in subjects_of(info.config))
                    found.append(
                        SubscriptionSeen(
                            consumer=info.config.description or info.name,
                            topics=tuple(topics),
                            waiting=(info.num_pending or 0) + (info.num_ack_pending or 0),
                        )
                    )
    except TROUBLE as error:
        raise broker.unavailable(error) from error
    return found


async def remove(broker: Source, consumer: str) -> int | None:
    connection, name = await broker.connect(), durable_name(consumer)
    try:
        async with asyncio.timeout(broker.confirm_s):
            info = await connection.jetstream.consumer_info(broker.stream, name)
            await connection.jetstream.delete_consumer(broker.stream, name)
    except nats.js.errors.NotFoundError:
        return None
    except TROUBLE as error:
        raise broker.unavailable(error) from error
    return (info.num_pending or 0) + (info.num_ack_pending or 0)


@asynccontextmanager
async def alone(broker: Source, connection: NatsConnection, consumer: str) -> AsyncIterator[None]:
    """Hold the lock of a consumer's durable. Waits for it until its caller's time is over."""
    lock = ConsumerConfig(
        durable_name=durable_name(consumer) + _LOCK,
        description=uuid4().hex,  # of two that are alike, NATS would take the second for the first
        ack_policy=AckPolicy.NONE,
        filter_subjects=[f"{broker.prefix}.$lock"],  # no topic has such a name: it holds up nothing
        inactive_threshold=LOCK_S,
        mem_storage=True,
        num_replicas=1,
    )
    await _obtain(broker, connection, lock)
    expires_at = time.monotonic() + LOCK_S
    try:
        async with asyncio.timeout(LOCK_S / 2):
            yield
    finally:
        if time.monotonic() < expires_at:  # else it may be another's
            with suppress(*TROUBLE):
                await connection.jetstream.delete_consumer(broker.stream, durable_name(consumer) + _LOCK)


async def _obtain(broker: Source, connection: NatsConnection, lock: ConsumerConfig) -> None:
    for wait_s in itertools.chain((0.02, 0.05), itertools.repeat(0.1)):
        if await _create(broker, connection, lock):
            return
        await asyncio.sleep(wait_s)


async def _create(broker: Source, connection: NatsConnection, config: ConsumerConfig) -> bool:
    """Make a durable, unless there is another of that name: the client's own `add_consumer` would change that one."""
    request = {"stream_name": broker.stream, "config": config.as_dict(), "action": "create"}
    subject = f"$JS.API.CONSUMER.DURABLE.CREATE.{broker.stream}.{config.durable_name}"
    reply = await connection.client.request(subject, json.dumps(request).encode(), timeout=broker.confirm_s)
    error: dict[str, Any] | None = json.loads(reply.data).get("error")
    if error is not None and error.get("err_code") != _EXISTS:
        raise nats.js.errors.APIError(**error)
    return error is None


async def _find(broker: Source, connection: NatsConnection, consumer: str) -> ConsumerConfig | None:
    try:
        info: ConsumerInfo = await connection.jetstream.consumer_info(broker.stream, durable_name(consumer))
    except nats.js.errors.NotFoundError:
        return None
    return info.config


async def _narrow(broker: Source, connection: NatsConnection, consumer: str, subjects: Collection[str]) -> None:
    config = await _find(broker, connection, consumer)
    if config is None:
        return
    before = subjects_of(config)
    remaining = [subject for subject in before if subject not in subjects]
    if not remaining:
        await connection.jetstream.delete_consumer(broker.stream, durable_name(consumer))
    elif remaining != before:
        await connection.jetstream.add_consumer(broker.stream, _filter_by(config, remaining))


def _config(broker: Source, consumer: str, subjects: Sequence[str]) -> ConsumerConfig:
    plain = ConsumerConfig(
        durable_name=durable_name(consumer),
        description=consumer,
        deliver_policy=DeliverPolicy.ALL,
        ack_policy=AckPolicy.EXPLICIT,
        ack_wait=broker.ack_wait_s,
        max_deliver=-1,
        max_ack_pending=10_000,
    )
    return _filter_by(plain, subjects)


def _filter_by(config: ConsumerConfig, subjects: Sequence[str]) -> ConsumerConfig:
    requested = sorted(set(subjects))
    own = {name: value for name, value in (config.metadata or {}).items() if not name.startswith("_nats.")}
    return replace(
        config,
        filter_subject=None,
        filter_subjects=widest(requested),
        metadata={**own, _REQUESTED: json.dumps(requested)},
    )


def _is_like(found: ConsumerConfig, wanted: ConsumerConfig) -> bool:
    """Whether a durable has the settings that we would make."""
    settings = ("description", "deliver_policy", "ack_policy", "ack_wait", "max_deliver", "max_ack_pending")
    return set(subjects_of(found)) == set(subjects_of(wanted)) and all(
        getattr(found, setting) == getattr(wanted, setting) for setting in settings
    )
