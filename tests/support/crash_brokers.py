"""Crash points at a broker: every verb of the ports Broker and Subscription is a boundary, as a database's verbs are.

One `BrokerBoundaries` numbers both, in the order of their happening: what a relay or a consumer does is one sequence,
and the interesting faults lie between the two.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from onefold._kernel.messages import Confirm, Delivery, Message
from onefold._kernel.ports import Broker, Subscription
from onefold.errors import BrokerUnavailable
from tests.support.crash import Boundaries, Crossing

T = TypeVar("T")


def lose_broker(crossing: Crossing) -> None:
    """The broker is gone: before a verb it heard nothing, after it its answer was lost."""
    raise BrokerUnavailable(f"the broker was cut off on purpose at {crossing}")


class BrokerBoundaries(Boundaries):
    """Boundaries that can also be put around a broker, and so around every subscription made at it."""

    def around_broker(self, broker: Broker) -> Broker:
        """The same broker, with its boundaries."""
        return _Broker(broker, self)

    async def perform(self, verb: str, work: Callable[[], Awaitable[T]]) -> T:
        """One verb and its edges. A refusal is an answer too, and can be lost."""
        self.cross(verb, "before")
        self.cross(verb, "during")
        try:
            result = await work()
        except Exception:
            self.cross(verb, "after")
            raise
        self.cross(verb, "after")
        return result


class _Broker:
    def __init__(self, broker: Broker, boundaries: BrokerBoundaries) -> None:
        self._broker = broker
        self._boundaries = boundaries

    @property
    def keep_every_s(self) -> float:
        return self._broker.keep_every_s

    @property
    def redelivery_s(self) -> float:
        return self._broker.redelivery_s

    async def open(self) -> None:
        await self._boundaries.perform("open", self._broker.open)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return await self._boundaries.perform("publish", lambda: self._broker.publish(messages))

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        made = await self._boundaries.perform("subscribe", lambda: self._broker.subscribe(consumer, topics))
        return _Subscription(made, self._boundaries)

    async def close(self) -> None:
        await self._boundaries.perform("close", self._broker.close)


class _Subscription:
    def __init__(self, subscription: Subscription, boundaries: BrokerBoundaries) -> None:
        self._subscription = subscription
        self._boundaries = boundaries

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        return await self._boundaries.perform("receive", lambda: self._subscription.receive(limit, wait_s))

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        await self._boundaries.perform("ack", lambda: self._subscription.ack(deliveries))

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self._boundaries.perform("give_back", lambda: self._subscription.give_back(deliveries))

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        await self._boundaries.perform("keep", lambda: self._subscription.keep(deliveries))

    async def close(self) -> None:
        await self._boundaries.perform("unsubscribe", self._subscription.close)
