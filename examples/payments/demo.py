"""`make demo`: the payments API under fire. Clients retry, duplicate, race, give up and reuse keys for something else,
while the server is killed with -9 and started again. Afterwards the books must balance.

Exits non-zero if any payment was lost or happened twice.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import RANDOM_BYTES, uuid7

INTENTS = 300
CLIENTS = 24
KILLS = 3
DEADLINE_S = 120.0


class Server:
    """The API in a process of its own, which can be killed and started again on the same file and port."""

    def __init__(self, directory: Path) -> None:
        self.database = directory / "payments.db"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-m", "uvicorn", "examples.payments.app:app"]
        options = ["--host", "127.0.0.1", "--port", str(self.port), "--log-level", "error", "--no-access-log"]
        environment = os.environ | {"PAYMENTS_DATABASE": str(self.database)}
        self._process = subprocess.Popen(command + options, env=environment)

    def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()

    def wait_until_up(self, deadline_s: float = 30.0) -> None:
        give_up_at = time.monotonic() + deadline_s
        while time.monotonic() < give_up_at:
            assert self._process is not None
            if self._process.poll() is not None:
                raise SystemExit(f"the server ended by itself, with code {self._process.returncode}")
            try:
                httpx.get(f"{self.url}/onefold/specification", timeout=1.0)
                return
            except httpx.TransportError:
                time.sleep(0.05)
        raise SystemExit(f"the server did not answer within {deadline_s} s")


@dataclass
class Intent:
    """One payment somebody wants made, and what they were told about it."""

    key: str
    amount: int
    answers: set[bytes] = field(default_factory=set)


class Fire:
    """The clients."""

    def __init__(self, url: str, seed: int) -> None:
        self._random = random.Random(seed)
        self._url = url
        self.counts: Counter[str] = Counter()
        self.intents = [
            Intent(str(uuid7(wall_ms(), self._random.randbytes(RANDOM_BYTES))), self._random.randint(1, 1000))
            for _ in range(INTENTS)
        ]

    async def open(self) -> None:
        limits = httpx.Limits(max_connections=CLIENTS * 3)
        async with httpx.AsyncClient(base_url=self._url, limits=limits, timeout=10.0) as client:
            gate = asyncio.Semaphore(CLIENTS)

            async def pursue(intent: Intent) -> None:
                async with gate:
                    # Two or three clients want the same payment at the same time, each until it has an answer.
                    racers = self._random.choice((1, 2, 3))
                    await asyncio.gather(*(self._until_answered(client, intent) for _ in range(racers)))
                    if self._random.random() < 0.2:
                        await self._reuse(client, intent)

            await asyncio.gather(*map(pursue, self.intents))

    async def _until_answered(self, client: httpx.AsyncClient, intent: Intent) -> None:
        wait_s = 0.02
        while True:
            answer = await self._ask(client, intent.key, intent.amount)
            if answer is not None and answer.status_code == 201:
                intent.answers.add(answer.content)
                return
            await asyncio.sleep(wait_s * self._random.random())
            wait_s = min(1.0, wait_s * 2)

    async def _reuse(self, client: httpx.AsyncClient, intent: Intent) -> None:
        """The same key for another amount: a client's mistake, which must not pay."""
        answer = None
        while answer is None or answer.status_code in (409, 503):
            answer = await self._ask(client, intent.key, intent.amount + 1)

    async def _ask(self, client: httpx.AsyncClient, key: str, amount: int) -> httpx.Response | None:
        self.counts["requests"] += 1
        headers = {"Idempotency-Key": f'"{key}"', "X-Account": "acme"}
        # One in ten clients is impatient: it goes away, not knowing what became of its request, and asks again.
        timeout = 0.01 if self._random.random() < 0.1 else 10.0
        try:
            answer = await client.post("/payments", json={"amount": amount}, headers=headers, timeout=timeout)
        except httpx.TransportError:
            self.counts["no answer (gave up, or server killed)"] += 1
            return None
        replayed = answer.headers.get("idempotent-replayed") == "true"
        self.counts["replays" if replayed else f"answered {answer.status_code}"] += 1
        return answer


async def _under_fire(server: Server, fire: Fire) -> None:
    async def kill_now_and_then() -> None:
        for _ in range(KILLS):
            await asyncio.sleep(0.7)
            await asyncio.to_thread(server.kill)
            server.start()
            await asyncio.to_thread(server.wait_until_up)

    killer = asyncio.create_task(kill_now_and_then())
    async with asyncio.timeout(DEADLINE_S):
        await fire.open()
    await killer


def verdict(fire: Fire, rows: list[tuple[int, int]]) -> list[str]:
    """What is wrong with the books: nothing, if each intent was paid once and told so in the same words."""
    wanted = Counter(intent.amount for intent in fire.intents)
    paid = Counter(amount for _, amount in rows)
    faults = [
        f"an amount of {amount} was paid {paid[amount] - wanted[amount]} times too often" for amount in paid - wanted
    ]
    faults += [f"an amount of {amount} was lost {wanted[amount] - paid[amount]} times" for amount in wanted - paid]
    faults += [f"key {i.key} got {len(i.answers)} different answers" for i in fire.intents if len(i.answers) != 1]
    return faults


def report(console: Console, fire: Fire, rows: list[tuple[int, int]]) -> None:
    """The table."""
    table = Table(title=f"{INTENTS} payments wanted, the server killed {KILLS} times")
    table.add_column("what")
    table.add_column("how many", justify="right")
    for what, count in sorted(fire.counts.items(), key=lambda item: -item[1]):
        table.add_row(what, str(count))
    table.add_section()
    table.add_row("payments in the database", str(len(rows)), style="bold")
    console.print(table)


def main() -> int:
    """Run the demonstration; the exit code is the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stay", action="store_true", help="keep the server up afterwards")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="repeat a run")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(prefix="onefold-demo-") as directory:
        server = Server(Path(directory))
        server.start()
        try:
            server.wait_until_up()
            fire = Fire(server.url, arguments.seed)
            asyncio.run(_under_fire(server, fire))
            with sqlite3.connect(server.database) as database:
                rows = database.execute("SELECT id, amount FROM payments").fetchall()
            database.close()
            report(console, fire, rows)
            faults = verdict(fire, rows)
            for fault in faults:
                console.print(f"[red]{fault}[/red]")
            if not faults:
                console.print("[green]Every payment happened once.[/green]")
            if arguments.stay:
                console.print(
                    f"The API stays up at {server.url}/docs (its promises: {server.url}/onefold/specification)"
                )
                console.input("Press Enter to end it. ")
        finally:
            server.kill()
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
