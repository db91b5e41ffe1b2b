"""Real processes to be killed: a small one, everything imported, single-threaded, that forks a child per request.

The child runs one keyed request against the shop in its own process, and stops or kills itself at the crossing it
was given; whether its client got an answer is whether the answer was written to a pipe before that. Starting an
interpreter for each would take a second; a fork takes a few milliseconds.

    fork server <- {"do": "ask", ...}                 one line of JSON per command
    fork server -> {"pid": ..., "state": "killed"}    and one per answer
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self, TypeAlias

from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import async_sqlite
from tests.crash.asgi_harness import AsgiShop, call
from tests.crash.shop import PostgresBooks, Shop, SqliteBooks, insert_asyncpg, insert_sqlite
from tests.support.crash import Act, Boundaries, Crossing, Edge, Strike, Suspensions, kill_process, stop_process
from tests.support.invariants import Attempt, Reply

ROOT = Path(__file__).parents[2]

State: TypeAlias = Literal["ended", "killed", "stopped"]

#: A child that hangs is a bug that should show, not a test run that never ends.
CHILD_S_MAX = 300

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
    """Instead of a crossing, a time: the fork server kills the child by the clock."""
    breaks: bool = False
    splits: bool = False
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fate:
    """What became of a child: whether it is alive, what its client saw, and what it crossed if it ended."""

    pid: int
    state: State
    attempt: Attempt
    crossings: list[Crossing]


class ForkServer:
    """The parent's end."""

    def __enter__(self) -> Self:
        command = [sys.executable, "-c", "from tests.crash.fork_server import serve; serve()"]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": _path()}
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._process.communicate()  # the end of its input is the end of it, and of its children
        assert self._process.returncode == 0

    def ask(self, order: Order) -> Fate:
        """Fork a child that makes this request; returns when it has ended, died or stopped."""
        begun_s = time.monotonic()
        said = self._told({"do": "ask", **asdict(order)})
        attempt = Attempt(key=order.key, payload=order.payload, reply=None, begun_s=begun_s)
        return _fate_of(attempt, said)

    def go_on(self, stopped: Fate) -> Fate:
        """SIGCONT to a stopped child; returns when it has ended."""
        said = self._told({"do": "signal", "pid": stopped.pid, "number": signal.SIGCONT})
        return _fate_of(stopped.attempt, said)

    def kill(self, stopped: Fate) -> Fate:
        """SIGKILL to a stopped child."""
        said = self._told({"do": "signal", "pid": stopped.pid, "number": signal.SIGKILL})
        return _fate_of(stopped.attempt, said)

    def _told(self, command: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(_line(command))
        self._process.stdin.flush()
        said: dict[str, Any] = json.loads(self._process.stdout.readline())
        return said


def _fate_of(attempt: Attempt, said: dict[str, Any]) -> Fate:
    reply = None
    if (answer := said["reply"]) is not None:
        headers = tuple((name.encode(), value.encode()) for name, value in answer["headers"])
        reply = Reply(answer["status"], headers, answer["body"].encode())
    crossings = [Crossing(*crossing) for crossing in said["crossings"]]
    seen = replace(attempt, reply=reply, ended_s=time.monotonic())
    return Fate(pid=said["pid"], state=said["state"], attempt=seen, crossings=crossings)


def _path() -> str:
    return os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)


# --- in the fork server -------------------------------------------------------------------------------------------


def serve() -> None:
    """Obey until the input ends; then no child is left."""
    pipes: dict[int, int] = {}
    for line in sys.stdin.buffer:
        command = json.loads(line)
        if command.pop("do") == "ask":
            order = Order(**command)
            pid = _forked(order, pipes)
            if order.after_s is not None:
                time.sleep(order.after_s)
                os.kill(pid, signal.SIGKILL)
        else:
            pid = command["pid"]
            os.kill(pid, command["number"])
        sys.stdout.buffer.write(_line(_fate(pid, pipes)))
        sys.stdout.buffer.flush()
    for pid in pipes:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _forked(order: Order, pipes: dict[int, int]) -> int:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive the fork server
        signal.alarm(CHILD_S_MAX)
        try:
            asyncio.run(_obey(order, writing))
        finally:
            os._exit(0)
    os.close(writing)
    pipes[pid] = reading
    return pid


def _fate(pid: int, pipes: dict[int, int]) -> dict[str, Any]:
    _, status = os.waitpid(pid, os.WUNTRACED)
    if os.WIFSTOPPED(status):
        return {"pid": pid, "state": "stopped", "reply": None, "crossings": []}
    with os.fdopen(pipes.pop(pid), "rb") as pipe:
        lines = [json.loads(line) for line in pipe]
    reply = lines[0] if lines else None
    crossings = lines[1] if len(lines) > 1 else []
    return {
        "pid": pid,
        "state": "killed" if os.WIFSIGNALED(status) else "ended",
        "reply": reply,
        "crossings": crossings,
    }


# --- in the child --------------------------------------------------------------------------------------------


async def _obey(order: Order, pipe: int) -> None:
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
        os.write(pipe, _line({"status": reply.status, "headers": headers, "body": reply.body.decode()}))
    os.write(pipe, _line([[crossing.number, crossing.verb, crossing.edge] for crossing in boundaries.crossings]))
    os._exit(0)


def _line(said: Any) -> bytes:
    return json.dumps(said).encode() + b"\n"
