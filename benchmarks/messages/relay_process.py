"""A relay in a process of its own, for as long as its standard input is open. Says `ready` when it holds its buckets.

Usage: python -m benchmarks.messages.relay_process DSN NATS_URL STREAM listens|polls
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from onefold._worker.relay_loop import Relay
from onefold.brokers.nats import NatsBroker
from onefold.db._drivers import async_database
from onefold.telemetry import BucketsHeld, Event

_ROOT: Final = Path(__file__).parents[2]  # where `-m benchmarks...` is found


@asynccontextmanager
async def relay_process(dsn: str, url: str, stream: str, *, listens: bool) -> AsyncIterator[None]:
    """One that is at work, and listens for NOTIFY or only polls; it ends with the block."""
    wakes = "listens" if listens else "polls"
    command = (sys.executable, "-m", "benchmarks.messages.relay_process", dsn, url, stream, wakes)
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, cwd=_ROOT)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if await process.stdout.readline() != b"ready\n":
            raise SystemExit("the process of the relay did not start; it says above why")
        yield
    finally:
        process.stdin.close()
        await process.wait()


async def main(dsn: str, url: str, stream: str, wakes: str) -> None:
    def hear(event: Event) -> None:
        if isinstance(event, BucketsHeld):
            print("ready", flush=True)

    database = async_database(dsn)
    relay = Relay(database, NatsBroker(url, stream=stream), listens=wakes == "listens", listener=hear)
    stop = asyncio.Event()
    relaying = asyncio.create_task(relay.run(stop))
    ended = asyncio.create_task(asyncio.to_thread(sys.stdin.read))
    await asyncio.wait((relaying, ended), return_when=asyncio.FIRST_COMPLETED)
    stop.set()
    await relaying
    await database.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
