"""The server that is called: an idempotent API of FastAPI and uvicorn, over SQLite or Postgres, in its own process.

A row is one payment that really happened. Nothing but onefold keeps an intent from having two: there is no UNIQUE.
It says its port on standard output, and ends when its standard input does: with whoever started it.

    POST /payments   pays
    GET  /figures    how many payments were asked for, answered, and answered from memory
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onefold import AsyncOnefold, single_principal
from onefold._http.fastapi_dependencies import Tx
from onefold.testing.fault_proxy import HOST
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

STOP_S_MAX = 60.0

TABLE = {
    "sqlite": "CREATE TABLE payments (id INTEGER PRIMARY KEY, intent TEXT NOT NULL)",
    "postgres": "CREATE TABLE payments (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, intent text NOT NULL)",
}


class Payment(BaseModel):
    """What is asked for. `intent` is only here to be counted."""

    intent: str


class Counted:
    """Outermost: what is counted as answered is committed."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.figures = {"asked": 0, "answered": 0, "replayed": 0}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.figures["answered"] += 1
                self.figures["replayed"] += any(name == b"idempotent-replayed" for name, _ in message["headers"])
            await send(message)

        if scope["type"] != "http" or scope["method"] != "POST":
            return await self._app(scope, receive, send)
        self.figures["asked"] += 1
        return await self._app(scope, receive, counted)


def bank(database: str, keys: str) -> Counted:
    """The application. `keys`: "required", or "optional" for clients that have none."""
    once = AsyncOnefold(database, principal=single_principal)
    app = FastAPI()
    once.install(app)

    async def written(tx: Any, intent: str) -> int:
        if "://" in database:
            return int(await tx.connection.fetchval("INSERT INTO payments (intent) VALUES ($1) RETURNING id", intent))
        cursor = await tx.connection.execute("INSERT INTO payments (intent) VALUES (?)", (intent,))
        return int(cursor.lastrowid)

    @app.post("/payments", status_code=201)
    @once.idempotent(required=keys == "required")
    async def pay(payment: Payment, tx: Tx[Any]) -> dict[str, Any]:
        return {"payment": await written(tx, payment.intent), "intent": payment.intent}

    counted = Counted(app)

    @app.get("/figures")
    async def figures() -> dict[str, int]:
        return counted.figures

    return counted


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


@dataclass(frozen=True, slots=True)
class Bank:
    """A bank that answers."""

    port: int

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def figures(self) -> dict[str, int]:
        return figures(self.url)


def figures(url: str) -> dict[str, int]:
    """What the bank has counted."""
    with urllib.request.urlopen(f"{url}/figures", timeout=PATIENCE_S) as answer:
        found: dict[str, int] = json.load(answer)
        return found


@contextmanager
def open_bank(database: str, keys: str = "required") -> Iterator[Bank]:
    """A bank over a database that has its tables."""
    server = fork_server("import tests.client.chaos.bank")
    process = server.start_with_pipes("-c", "from tests.client.chaos.bank import main; main()", database, keys)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        said = process.stdout.readline()
        assert said, "the bank did not open; it says above why"
        yield Bank(int(said))
    finally:
        process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S_MAX)
        process.close()


def main() -> None:
    database, keys = sys.argv[1:]
    listening = socket.create_server((HOST, 0), backlog=256)
    config = uvicorn.Config(
        lambda: bank(database, keys),
        factory=True,
        loop="uvloop",
        http="httptools",
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=2,
    )
    Server(config).run(sockets=[listening])
