"""A broker that writes what it is given to a file. `down`: it cannot be reached; `refuse`: it takes nothing; `gate`:
it confirms when there is `go`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path

from onefold import AsyncOnefold
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.ports import Subscription
from onefold.errors import BrokerUnavailable, MessageRefused


class Depot:
    """Implements `Broker`, for relays."""

    keep_every_s = 10.0
    redelivery_s = 60.0

    async def open(self) -> None:
        pass

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return await asyncio.to_thread(self._publish, messages)

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        raise NotImplementedError("nobody consumes from a depot")

    async def close(self) -> None:
        pass

    def _publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        Path("publishing").touch()
        while Path("gate").exists() and not Path("go").exists():
            time.sleep(0.01)
        if Path("down").exists():
            raise BrokerUnavailable("the depot is closed")
        if Path("refuse").exists():
            return [MessageRefused("the depot does not want it")] * len(messages)
        with Path("published.txt").open("a") as file:
            file.writelines(f"{message.json()['order']}\n" for message in messages)
        return [None] * len(messages)


once = AsyncOnefold("shop.db", source="shop", broker=Depot)
