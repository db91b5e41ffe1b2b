"""A desk on taskiq."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from taskiq import SimpleRetryMiddleware
from taskiq_redis import RedisStreamBroker

from onefold import AsyncOnefold, Transaction
from onefold._worker.taskiq_tasks import handled_once
from tests.worker.desks.orders import DATABASE, URL, get_into_trouble, insert

#: Messages of dead workers are another's after a second.
broker = RedisStreamBroker(
    URL, consumer_id="0", idle_timeout=1000, xread_block=100, xread_count=1, unacknowledged_lock_timeout=1.0
).with_middlewares(SimpleRetryMiddleware())
once = AsyncOnefold(DATABASE)


@handled_once(once, "desk", broker.task, task_name="ship")
async def ship(order: str, tx: Transaction[Any]) -> None:
    await tx.connection.execute(insert(order))
    get_into_trouble(order, tx)


async def send(orders: list[str]) -> None:
    await broker.startup()
    for order in orders:
        await ship.kicker().with_task_id(f"m-{order}").kiq(order)
    await broker.shutdown()


if __name__ == "__main__":
    asyncio.run(send(sys.argv[1:]))
