"""What the stream keeps for consumers: their durables, listed, narrowed and removed."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import replace

import nats.js.errors

from onefold._kernel.ports import SubscriptionSeen
from onefold.brokers.nats.link import TROUBLE
from onefold.brokers.nats.subscription import Source, durable_name, filters_of


async def unsubscribe(broker: Source, consumer: str, subjects: Collection[str]) -> None:
    """Take these subjects from its filter. With the last of them the consumer itself ends: a filter of none is all."""
    link = await broker.link()
    try:
        async with asyncio.timeout(broker.confirm_s):
            try:
                config = (await link.jetstream.consumer_info(broker.stream, durable_name(consumer))).config
            except nats.js.errors.NotFoundError:
                return
            had = filters_of(config)
            left = [subject for subject in had if subject not in subjects]
            if not left:
                await link.jetstream.delete_consumer(broker.stream, durable_name(consumer))
            elif left != had:
                await link.jetstream.add_consumer(
                    broker.stream, replace(config, filter_subject=None, filter_subjects=left)
                )
    except TROUBLE as error:
        raise broker.unavailable(error) from error


async def subscriptions(broker: Source) -> list[SubscriptionSeen]:
    """The durables of the stream, onefold's and others."""
    link = await broker.link()
    found: list[SubscriptionSeen] = []
    try:
        async with asyncio.timeout(broker.confirm_s):
            offset = 0
            while some := await link.jetstream.consumers_info(broker.stream, offset):
                offset += len(some)
                for info in some:
                    topics = sorted(subject.removeprefix(f"{broker.prefix}.") for subject in filters_of(info.config))
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
    link, name = await broker.link(), durable_name(consumer)
    try:
        async with asyncio.timeout(broker.confirm_s):
            info = await link.jetstream.consumer_info(broker.stream, name)
            await link.jetstream.delete_consumer(broker.stream, name)
    except nats.js.errors.NotFoundError:
        return None
    except TROUBLE as error:
        raise broker.unavailable(error) from error
    return (info.num_pending or 0) + (info.num_ack_pending or 0)
