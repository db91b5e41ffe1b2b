"""Requests in processes that are killed or stopped: each is made against the shop in a forked process, which kills or
stops itself at the crossing it was given. Its client got an answer if that was printed before.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from signal import SIGCONT
from typing import Any, Literal

from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import async_sqlite
from tests.crash.asgi_harness import AsgiShop, call
from tests.crash.shop import PostgresBooks, Shop, SqliteBooks, insert_asyncpg, insert_sqlite
from tests.support.crash import Act, Boundaries, Crossing, Edge, Strike, Suspensions, kill_process, stop_process
from tests.support.fork_server import Child, State, fork_server
from tests.support.invariants import Attempt, Reply

_ACTS: dict[str, Act] = {"kill": kill_process, "stop": stop_process}


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """One request for a child to make, and where to strike it. `sqlite` is a path, `postgres` a DSN."""

    route: str
    key: str
    payload: str
    sqlite: str | None = None
    postgres: str | None = None
    act: Literal["kill", "stop"] | None = None
    at: int = 0
    edges: tuple[Edge, ...] = ("before", "after")
    after_s: float | None = None
    """Instead of a crossing, a time: the child is killed by the clock."""
    breaks: bool = False
    splits: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a child: whether it is alive, what its client saw, and what it crossed if it ended."""

    child: Child
    state: State
    attempt: Attempt
    crossings: list[Crossing]


class RequestProcesses:
    """Where they are forked."""

    def __init__(self) -> None:
        self._server = fork_server("import tests.crash.request_processes")

    def ask(self, order: Order) -> Fate:
        """Fork a child that makes this request; returns when it has ended, died or stopped."""
        begun_s = time.monotonic()
        program = "from tests.crash.request_processes import obey; obey()"
        child = self._server.start_with_pipes("-c", program, json.dumps(asdict(order)))
        if order.after_s is not None:
            time.sleep(order.after_s)
            child.kill()
        return _fate(child, Attempt(key=order.key, payload=order.payload, reply=None, begun_s=begun_s))

    def go_on(self, stopped: Fate) -> Fate:
        """SIGCONT to a stopped child; returns when it has ended."""
        stopped.child.send_signal(SIGCONT)
        return _fate(stopped.child, stopped.attempt)

    def kill(self, stopped: Fate) -> Fate:
        """SIGKILL to a stopped child."""
        stopped.child.kill()
        return _fate(stopped.child, stopped.attempt)


def _fate(child: Child, attempt: Attempt) -> Fate:
    state, reply, crossings = child.wait_for_change(), None, []
    if state != "stopped":
        assert child.stdout is not None
        lines = [json.loads(line) for line in child.stdout]
        child.close()
        if lines:
            headers = tuple((name.encode(), value.encode()) for name, value in lines[0]["headers"])
            reply = Reply(lines[0]["status"], headers, lines[0]["body"].encode())
        if len(lines) > 1:
            crossings = [Crossing(*crossing) for crossing in lines[1]]
    seen = replace(attempt, reply=reply, ended_s=time.monotonic())
    return Fate(child=child, state=state, attempt=seen, crossings=crossings)


# --- in the child --------------------------------------------------------------------------------------------


def obey() -> None:
    """Whatever happens to it, it ends here: an error on the way is an answer that never came."""
    try:
        asyncio.run(_obey(Order(**json.loads(sys.argv[1]))))
    finally:
        os._exit(0)


async def _obey(order: Order) -> None:
    strike = Strike(order.at, _ACTS[order.act]) if order.act is not None else None
    boundaries = Boundaries(strike, edges=order.edges)
    shop = Shop(boundaries)
    if order.breaks:
        shop.breaking.add(order.key)
    if order.sqlite is not None:
        shop.splits = SqliteBooks(Path(order.sqlite)) if order.splits else None
        file = async_sqlite(order.sqlite, busy_timeout_s=1.0)
        app = AsgiShop(file, insert_sqlite, shop, **order.settings).app
    else:
        assert order.postgres is not None
        shop.splits = PostgresBooks(order.postgres) if order.splits else None
        app = AsgiShop(AsyncpgDatabase(order.postgres), insert_asyncpg, shop, **order.settings).app
    reply = await Suspensions(call(app, order.route, order.key, order.payload), boundaries)
    assert reply is not None
    headers = [(name.decode(), value.decode()) for name, value in reply.headers]
    with boundaries.around_step("answer"):
        _print({"status": reply.status, "headers": headers, "body": reply.body.decode()})
    _print([[crossing.number, crossing.verb, crossing.edge] for crossing in boundaries.crossings])


def _print(said: Any) -> None:
    print(json.dumps(said), flush=True)
