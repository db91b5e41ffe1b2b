"""One server process: one application, one uvicorn worker with uvloop and httptools, a free port on loopback.

It says its port on standard output when it answers, and ends when its standard input does: with whoever started it.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import os
import socket
import sys

import uvicorn

from benchmarks.applications import APPLICATIONS
from benchmarks.load import HOST


class Server(uvicorn.Server):
    """Tells that it is ready, and notices when nobody needs it any more."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        asyncio.get_running_loop().add_reader(sys.stdin.fileno(), self._heard)
        for listening in sockets or ():
            print(listening.getsockname()[1], flush=True)

    def _heard(self) -> None:
        if not os.read(sys.stdin.fileno(), 1):
            self.should_exit = True


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.serve", description=__doc__)
    parser.add_argument("application", choices=APPLICATIONS)
    parser.add_argument("place", help="a DSN, or the path of a SQLite file")
    parser.add_argument("--pool", type=int, default=16)
    parser.add_argument("--core", type=int, help="run on this core only")
    told = parser.parse_args()
    if told.core is not None:
        os.sched_setaffinity(0, {told.core})
    listening = socket.create_server((HOST, 0), backlog=256)
    config = uvicorn.Config(
        # Made by a factory: asyncpg's pool belongs to the loop that runs when it is made.
        functools.partial(APPLICATIONS[told.application], told.place, told.pool),
        factory=True,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
    )
    Server(config).run(sockets=[listening])


if __name__ == "__main__":
    main()
