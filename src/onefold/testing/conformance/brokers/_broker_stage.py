"""Where broker scenarios play: brokers of their own, subscriptions, and names of their own.

A scenario is a coroutine that uses the port only; what differs from broker to broker, its subject says.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from onefold._kernel.messages import Delivery, Message
from onefold._kernel.ports import Broker, Subscription
from onefold.testing.conformance._stage import NotConforming, Outage, expect

#: As many as one call of a busy relay hands over.
MANY: Final = 500

#: No answer that a scenario waits for may take longer, beyond the waits that its subject allows: that hangs.
HANG_S: Final = 60.0

#: How many of those waits the longest scenario has, one after the other: two outages, each with a publish and a
#: collect; or four refusals of one outage.
WAITS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSubject:
    """A broker under test, and what the suite may expect of it."""

    broker: Callable[[], Broker]
    """A broker of its own, not open yet, on the same server. Make its leases and its own patience short."""
    inject: Callable[[str, bytes], Awaitable[Any]] | None = None
    """Put bytes without an envelope where consumers of this topic find them, past the adapter."""
    too_large_bytes: int | None = None
    """A message of this size is refused."""
    deduplicates: bool = False
    """The broker discards what it has already got under the same id."""
    tells_redelivery: bool = True
    """A first delivery is known to be one."""
    many: int = MANY
    """How many messages a call with many has. Fewer where the server is an emulator that takes seconds for them."""
    lease_s: float | None = None
    """When what is neither kept nor settled comes again by itself; None: when its connection ends."""
    tells_attached: bool = False
    """The broker knows which consumers are connected, and does not remove them."""
    warm_up_s: float = 0.0
    """For how long subscriptions of one name must be asked before each of them has its share."""
    patience_s: float = 10.0
    """How long a message may take to arrive."""
    quiet_s: float = 0.3
    """For how long nothing must come before the suite believes that nothing does."""
    outage: Outage | None = None
    """The broker's server, for it to be killed."""
    outage_s: float = 15.0
    """How long the adapter may sit out bounds of its own (a confirm, a reconnect) before it says that the server is
    gone, or finds that it is back."""


@dataclass(frozen=True, slots=True)
class BrokerScenario:
    """One promise of the port: the coroutine (`play`) keeps it or raises. `applies` says to which brokers it does."""

    play: ScenarioOn
    applies: Callable[[BrokerSubject], bool]

    def __str__(self) -> str:
        return self.play.__name__


@dataclass(slots=True)
class BrokerStage:
    """What a scenario sees of the broker, the `subject`: open brokers, subscriptions, and names of their own, which
    begin with `name`. `exits` closes them."""

    subject: BrokerSubject
    exits: AsyncExitStack
    name: str = field(default_factory=lambda: f"conformance.{uuid.uuid4().hex}")

    async def open(self) -> Broker:
        """A broker of its own, closed in the end."""
        broker = self.subject.broker()
        self.exits.push_async_callback(broker.close)
        await broker.open()
        return broker

    async def subscribe(self, broker: Broker, *topics: str, consumer: str = "billing") -> Subscription:
        """A subscription under this name (`consumer`), of this scenario only."""
        subscription = await broker.subscribe(f"{self.name}.{consumer}", [self.topic(topic) for topic in topics])
        self.exits.push_async_callback(subscription.close)
        return subscription

    async def both(self, *topics: str) -> tuple[Broker, Subscription]:
        """A broker, and a subscription on it."""
        broker = await self.open()
        return broker, await self.subscribe(broker, *topics)

    def topic(self, name: str = "orders") -> str:
        """A topic of this scenario only."""
        return f"{self.name}.{name}"

    def message(self, number: int = 0, *, topic: str = "orders") -> Message:
        """A message on this `topic` that is told from all others by its id and its data. Each has a key of its own:
        some brokers hold back a key while a message of it is not settled."""
        name = str(uuid.uuid4())
        return Message(
            id=name,
            source="conformance",
            topic=self.topic(topic),
            data=b'{"number":%d}' % number,
            key=f"key of {name}",
            version=number + 1,
            epoch=1,
        )

    def messages(self, count: int, *, topic: str = "orders") -> list[Message]:
        """So many of them, on this `topic`."""
        return [self.message(number, topic=topic) for number in range(count)]

    async def publish(self, broker: Broker, *messages: Message) -> None:
        """Publish in one call; every message must be confirmed."""
        confirms = await broker.publish(messages)
        expect(len(confirms) == len(messages), f"{len(messages)} messages got {len(confirms)} answers")
        failed = [confirm for confirm in confirms if confirm is not None]
        expect(not failed, f"{len(failed)} of {len(messages)} messages were not confirmed, one of them: {failed[:1]}")

    async def collect(self, subscription: Subscription, count: int) -> list[Delivery]:
        """So many deliveries."""
        found: list[Delivery] = []
        deadline = time.monotonic() + self.subject.patience_s
        while len(found) < count:
            left = deadline - time.monotonic()
            expect(left > 0, f"{len(found)} of {count} messages came within {self.subject.patience_s} s")
            found += await subscription.receive(count - len(found), min(left, 1.0))
        return found

    async def gets(self, subscription: Subscription, *messages: Message) -> list[Delivery]:
        """Exactly these must come, in any order; they are not acknowledged."""
        found = await self.collect(subscription, len(messages))
        got, wanted = sorted(map(ids, found)), sorted(message.id for message in messages)
        expect(got == wanted, f"the messages {wanted} were expected, {got} came")
        return found

    async def silent(self, subscription: Subscription) -> None:
        """Nothing must come."""
        found = await subscription.receive(10, self.subject.quiet_s)
        expect(not found, f"nothing was expected, {list(found)} came")


ScenarioOn: TypeAlias = Callable[[BrokerStage], Awaitable[None]]


async def check(scenario: BrokerScenario, subject: BrokerSubject) -> None:
    """Run a scenario on a broker."""
    allowed_s = subject.patience_s + (0.0 if subject.outage is None else subject.outage_s)
    limit_s = HANG_S + WAITS * allowed_s
    try:
        async with asyncio.timeout(limit_s) as timeout, AsyncExitStack() as exits:
            await scenario.play(BrokerStage(subject, exits))
    except TimeoutError as error:
        if not timeout.expired():
            raise
        raise NotConforming(f"{scenario} took longer than {limit_s:g} s") from error


def promise(applies: Callable[[BrokerSubject], bool] = lambda subject: True) -> Callable[[ScenarioOn], BrokerScenario]:
    """Make a coroutine function a scenario, for the brokers it applies to."""
    return lambda play: BrokerScenario(play, applies)


def ids(delivery: Delivery) -> str:
    """The id of what was delivered, or why it has none."""
    return delivery.message.id if delivery.message else f"<{delivery.problem}>"
