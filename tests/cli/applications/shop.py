"""Consumers over a SQLite file, as operators run them. Files in the working directory tell them what to do:

`gate`: a handler waits until there is `go`; `broken`: it fails; `down`: the broker cannot be reached; `refusing`: it
refuses every event.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from onefold import Onefold, Transaction
from onefold._kernel.messages import Confirm, Message
from onefold.brokers.local import LocalBroker
from onefold.db.sqlite import async_sqlite
from onefold.errors import BrokerUnavailable, MessageRefused


def _is_down() -> bool:
    return Path("down").exists()


def _is_refusing() -> bool:
    return Path("refusing").exists()


class Carrier(LocalBroker):
    """The local broker, with a short lease: who takes over from the dead shall not wait long."""

    def __init__(self) -> None:
        super().__init__(async_sqlite("shop.db"), lease_s=1.0)

    async def open(self) -> None:
        if _is_down():
            raise BrokerUnavailable("the carrier is down")
        await super().open()

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        if _is_refusing():
            return [MessageRefused("the carrier takes no parcels")] * len(messages)
        return await super().publish(messages)


once = Onefold("shop.db", source="shop", broker=Carrier)


@once.consumer("ship", topic="order.placed", attempts=1)
def ship(message: Message, tx: Transaction[object]) -> None:
    Path("begun").touch()
    give_up_at = time.monotonic() + 120
    while Path("gate").exists() and not Path("go").exists() and time.monotonic() < give_up_at:
        time.sleep(0.01)
    if Path("broken").exists():
        raise RuntimeError("the printer is on fire")
    connection = tx.connection
    connection.execute("INSERT INTO shipped VALUES (?)", (message.json()["order"],))  # type: ignore[attr-defined]


@once.consumer("pack", topic="order.packed", order="strict", attempts=1)
def pack(message: Message) -> None:
    if Path("broken").exists():
        raise RuntimeError("no boxes left")
