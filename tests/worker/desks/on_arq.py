"""A desk on arq."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from arq import create_pool
from arq.connections import RedisSettings
from arq.worker import Worker, func

from onefold import AsyncOnefold, Transaction
from onefold._worker.arq_jobs import handled_once
from tests.worker.desks.orders import DATABASE, URL, get_into_trouble, insert

once = AsyncOnefold(DATABASE)


@handled_once(once, "desk", retry_s=0.01)
async def ship(ctx: dict[str, Any], order: str, tx: Transaction[Any]) -> None:
    await tx.connection.execute(insert(order))
    get_into_trouble(order, tx)


REDIS = RedisSettings.from_dsn(URL)


def work() -> None:
    functions = [func(ship, name="ship", max_tries=5)]
    worker = Worker(functions, redis_settings=REDIS, max_jobs=1, poll_delay=0.05)
    worker.in_progress_timeout_s = 1  # after which the job of a dead worker is another's: else a time-out and 10 s
    worker.run()


async def send(orders: list[str]) -> None:
    pool = await create_pool(REDIS)
    for order in orders:
        await pool.enqueue_job("ship", order, _job_id=f"m-{order}")
    await pool.aclose()


if __name__ == "__main__":
    work() if sys.argv[1:] == ["work"] else asyncio.run(send(sys.argv[1:]))
