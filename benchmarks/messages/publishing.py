"""Publishing to NATS JetStream through nats-py's private names, beside its public API.

The clock runs over the calls to `NatsBroker.publish`, 1,000 messages each, as a relay makes them.
"""

from __future__ import annotations

import itertools
import os
import time
from contextlib import AsyncExitStack
from typing import Final
from unittest.mock import patch

from benchmarks.messages.comparison import Contestant, Grounds, Outcome, race, raced_outcome
from benchmarks.messages.places import ORDER_BYTES, TOPIC, insist
from onefold._kernel.messages import Message
from onefold._kernel.public_drivers import PUBLIC_ONLY
from onefold.brokers.nats import NatsBroker

BASE: Final = "public API"
BATCH: Final = 1_000


async def measure(grounds: Grounds) -> Outcome:
    async with AsyncExitStack() as stack:

        async def contestant(name: str, public: str) -> Contestant:
            broker = NatsBroker(grounds.nats.url, stream=f"publishing_{public}")
            with patch.dict(os.environ, {PUBLIC_ONLY: public}):  # it is read when the broker connects
                await broker.open()
            stack.push_async_callback(broker.close)
            return Contestant(name=name, turn=_Publisher(broker, grounds.effort.backlog).turn)

        contestants = [await contestant(BASE, "1"), await contestant("private names", "0")]
        raced = await race(contestants, base=BASE, rounds=grounds.effort.rounds, say=grounds.say)
    return raced_outcome("Publishing to NATS JetStream, events", raced)


class _Publisher:
    def __init__(self, broker: NatsBroker, count: int) -> None:
        self._broker = broker
        self._count = count
        self._numbers = itertools.count()

    async def turn(self) -> float:
        messages = [
            Message(id=f"{next(self._numbers)}", source="shop", topic=TOPIC, data=ORDER_BYTES, key=f"{number}")
            for number in range(self._count)
        ]
        confirmed = 0
        since = time.perf_counter()
        for start in range(0, self._count, BATCH):
            answers = await self._broker.publish(messages[start : start + BATCH])
            confirmed += answers.count(None)
        took_s = time.perf_counter() - since
        insist("confirmed messages", confirmed, self._count)
        return self._count / took_s
