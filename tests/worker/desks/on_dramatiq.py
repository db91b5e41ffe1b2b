"""A desk on Dramatiq."""

from __future__ import annotations

import sys
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from onefold import Onefold, Transaction
from onefold._worker.dramatiq_actors import handled_once
from tests.worker.desks.orders import DATABASE, URL, get_into_trouble, insert

#: Dead workers are found after a second, by whoever asks next.
made: Any = RedisBroker
broker = made(url=URL, heartbeat_timeout=1000, maintenance_chance=1_000_000)
dramatiq.set_broker(broker)
once = Onefold(DATABASE)


@handled_once(once, "desk", dramatiq.actor, min_backoff=1)
def ship(order: str, tx: Transaction[Any]) -> None:
    tx.connection.execute(insert(order))
    get_into_trouble(order, tx)


if __name__ == "__main__":
    for order in sys.argv[1:]:
        broker.enqueue(ship.message(order).copy(message_id=f"m-{order}"))
