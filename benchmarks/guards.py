"""What a request costs, counted instead of timed: the same on every machine, and so fit to fail a build.

On Postgres: round trips (ReadyForQuery answers, counted on the wire), bytes sent (few, where statements are prepared),
bytes of WAL and transaction ids, one request after the other; and the function calls of onefold's own code, which a
worker's CPU is spent on, and the Python instructions that metrics add. On SQLite: statements, commits, hops
between threads and function calls. `LIMITS` is the pinned table: it changes when onefold's protocol does, on purpose,
and in the same commit.
"""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, Literal, NamedTuple

import asyncpg
from starlette.applications import Starlette

import onefold
from benchmarks.applications import APPLICATIONS
from benchmarks.instructions import added_instructions, counted_instructions
from benchmarks.load import BODY, HOST
from benchmarks.stores import postgres_place, private_postgres, sqlite_place
from benchmarks.wire import counting_proxy
from onefold._kernel.serial_thread import SerialThread
from onefold._observe.recorder import HELD_MAX
from onefold.testing.servers import PrivatePostgres

Unit = Literal[
    "round trips",
    "bytes sent",
    "function calls",
    "instructions",
    "WAL bytes",
    "WAL bytes above bare",
    "transaction ids",
    "statements",
    "commits",
    "hops between threads",
    "buffers",
]

WARM_UP: Final = 100
COUNTED: Final = 100
WAL_COUNTED: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How much of something one request may cost at most."""

    subject: str
    unit: Unit
    most: float


#: Round trips include the reset query of asyncpg's pool: on its own in bare, with COMMIT in ours. A replay is of a key
#: this process has seen done; `replay elsewhere` is the first replay of a key that another process has settled.
LIMITS: Final = (
    Limit(subject="asyncpg bare", unit="round trips", most=4),
    Limit(subject="asyncpg first", unit="round trips", most=3),
    Limit(subject="asyncpg replay", unit="round trips", most=1),
    Limit(subject="asyncpg replay elsewhere", unit="round trips", most=3),
    Limit(subject="psycopg bare", unit="round trips", most=3),
    Limit(subject="psycopg first", unit="round trips", most=3),
    Limit(subject="psycopg replay", unit="round trips", most=1),
    Limit(subject="psycopg replay elsewhere", unit="round trips", most=3),
    # Statements that are parsed anew would need thousands.
    Limit(subject="asyncpg first", unit="bytes sent", most=1100),
    Limit(subject="psycopg first", unit="bytes sent", most=900),
    # A little above what Python 3.11 needs; later versions make fewer, because they call no comprehensions.
    Limit(subject="asyncpg first", unit="function calls", most=278),
    Limit(subject="asyncpg replay", unit="function calls", most=180),
    # What metrics add: two events of a request, which are held and counted 64 at once. A run has 206 to 209.
    Limit(subject="metrics first", unit="instructions", most=212),
    Limit(subject="metrics replay", unit="instructions", most=66),
    Limit(subject="asyncpg measured first", unit="function calls", most=288),
    Limit(subject="asyncpg measured replay", unit="function calls", most=184),
    Limit(subject="asyncpg bare", unit="WAL bytes", most=205),
    Limit(subject="asyncpg first", unit="WAL bytes above bare", most=400),
    Limit(subject="asyncpg replay", unit="WAL bytes", most=1),  # not 0: the server notes its snapshots now and then
    Limit(subject="asyncpg bare", unit="transaction ids", most=1),
    Limit(subject="asyncpg first", unit="transaction ids", most=2),  # one of them for the savepoint
    Limit(subject="asyncpg replay", unit="transaction ids", most=0),
    Limit(subject="sqlite first", unit="statements", most=6),
    Limit(subject="sqlite first", unit="commits", most=1),
    Limit(subject="sqlite first", unit="hops between threads", most=2),
    Limit(subject="sqlite first", unit="function calls", most=411.5),  # 411, and what a slow machine adds to some
    Limit(subject="sqlite replay", unit="statements", most=1),
    Limit(subject="sqlite replay", unit="commits", most=0),
    Limit(subject="sqlite replay", unit="hops between threads", most=0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A limit and what was counted. `found` is None when nothing was: that is a failure too."""

    limit: Limit
    found: float | None

    @property
    def broken(self) -> bool:
        return self.found is None or self.found > self.limit.most


Counts = dict[tuple[str, Unit], float]


def run_guards(say: Callable[[str], None]) -> list[Verdict]:
    """Count everything LIMITS names."""
    counts: Counts = {}
    with private_postgres() as server:
        for driver in ("asyncpg", "psycopg"):
            say(f"counting round trips of {driver}")
            asyncio.run(_count_round_trips(driver, server, postgres_place(server), counts))
        say("counting function calls")
        asyncio.run(_count_calls(postgres_place(server), counts))
        say("counting WAL")
        asyncio.run(_count_wal(postgres_place(server), counts))
    with tempfile.TemporaryDirectory() as folder:
        say("counting statements of SQLite")
        asyncio.run(_count_sqlite(sqlite_place(Path(folder), "counted"), counts))
    return [Verdict(limit=limit, found=counts.get((limit.subject, limit.unit))) for limit in LIMITS]


async def _count_round_trips(driver: str, server: PrivatePostgres, place: str, counts: Counts) -> None:
    async with counting_proxy(HOST, server.port) as (wire, port):
        through = place.replace(f":{server.port}/", f":{port}/")

        async def count_cycles(subject: str, application: Application) -> None:
            """The warm-up has prepared statements and, where keys repeat, filled what remembers them."""
            await application.post_all(WARM_UP, start=0)
            cycles, sent = wire.cycles, wire.bytes_sent
            await application.post_all(COUNTED, start=WARM_UP)
            counts[f"{driver} {subject}", "round trips"] = (wire.cycles - cycles) / COUNTED
            counts[f"{driver} {subject}", "bytes sent"] = (wire.bytes_sent - sent) / COUNTED

        async with _application(f"{driver}_bare", through) as bare:
            await count_cycles("bare", bare)
        async with _application(f"{driver}_onefold", through) as ours:
            await count_cycles("first", ours)
            await count_cycles("replay", ours)
        async with _application(f"{driver}_onefold", through) as elsewhere:
            await count_cycles("replay elsewhere", elsewhere)


async def _count_calls(place: str, counts: Counts) -> None:
    start = 0
    executed: dict[tuple[str, str], Counter[CodeType]] = {}
    for application, name in (("asyncpg_onefold", "asyncpg"), ("asyncpg_measured", "asyncpg measured")):
        async with _application(application, place) as ours:
            for _ in range(2):
                await ours.post_all(WARM_UP, start=start)  # of both: the second time they are replays
            for subject in ("first", "replay"):  # the same keys
                with counted_calls() as calls:
                    await ours.post_all(COUNTED, start=start + WARM_UP)
                counts[f"{name} {subject}", "function calls"] = calls.made / COUNTED
            start += WARM_UP + COUNTED
            for subject in ("first", "replay"):
                with counted_instructions() as instructions:
                    await ours.post_all(HELD_MAX, start=start)  # so that each that is held is counted in the end
                executed[name, subject] = instructions
            start += HELD_MAX
    for subject in ("first", "replay"):
        added = added_instructions(executed["asyncpg measured", subject], executed["asyncpg", subject])
        counts[f"metrics {subject}", "instructions"] = added / HELD_MAX


class Calls:
    """How many there were."""

    made = 0


@contextmanager
def counted_calls() -> Iterator[Calls]:
    """Functions of onefold that are called, or resumed, from now on, and functions of C that they call; on this thread
    and on those that are started meanwhile. What libraries do by themselves does not count: it differs from version to
    version."""
    calls = Calls()
    ours = str(Path(onefold.__file__).parent)

    def count(frame: FrameType, event: str, _: object) -> None:
        if event in ("call", "c_call") and frame.f_code.co_filename.startswith(ours):
            calls.made += 1

    threading.setprofile(count)
    sys.setprofile(count)
    try:
        yield calls
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


async def _count_wal(place: str, counts: Counts) -> None:
    """On a table that begins empty, after a checkpoint, with the pages' first images paid for in the warm-up."""
    watcher = await asyncpg.connect(place)

    async def count_log(subject: str, application: Application) -> None:
        before = await wal_position(watcher)
        await application.post_all(WAL_COUNTED, start=WARM_UP)
        after = await wal_position(watcher)
        counts[f"asyncpg {subject}", "WAL bytes"] = (after[0] - before[0]) / WAL_COUNTED
        counts[f"asyncpg {subject}", "transaction ids"] = (after[1] - before[1]) / WAL_COUNTED

    for name, subjects in (("bare", ("bare",)), ("onefold", ("first", "replay"))):
        await watcher.execute("CHECKPOINT")
        async with _application(f"asyncpg_{name}", place) as application:
            await application.post_all(WARM_UP, start=0)
            for subject in subjects:  # the same keys: what was first is a replay then
                await count_log(subject, application)
    await watcher.close()
    counts["asyncpg first", "WAL bytes above bare"] = (
        counts["asyncpg first", "WAL bytes"] - counts["asyncpg bare", "WAL bytes"]
    )


async def wal_position(watcher: asyncpg.Connection[asyncpg.Record]) -> tuple[int, int]:
    """Where the log ends, in bytes, and the next transaction id."""
    row = await watcher.fetchrow(
        "SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn, pg_snapshot_xmax(pg_current_snapshot())::text::bigint"
    )
    assert row is not None
    return int(row[0]), int(row[1])


async def _count_sqlite(place: str, counts: Counts) -> None:
    with traced_sqlite() as statements, counted_hops() as hops, counted_calls() as calls:

        async def count_statements(subject: str, application: Application, start: int) -> None:
            statements.clear()
            hops.clear()
            calls.made = 0
            await application.post_all(COUNTED, start=start)
            counts[f"sqlite {subject}", "statements"] = len(statements) / COUNTED
            counts[f"sqlite {subject}", "commits"] = sum(map(commits, statements)) / COUNTED
            counts[f"sqlite {subject}", "hops between threads"] = len(hops) / COUNTED
            counts[f"sqlite {subject}", "function calls"] = calls.made / COUNTED

        async with _application("sqlite_onefold", place) as ours:
            await ours.post_all(WARM_UP, start=0)
            await count_statements("first", ours, WARM_UP)
            await count_statements("replay", ours, WARM_UP)


class Traced(NamedTuple):
    """A statement that SQLite begins to execute."""

    sql: str
    in_transaction: bool


class _Tracer:
    """Follows one connection by what it executes. It does not hold the connection: one that is held by others than
    onefold is not used again."""

    def __init__(self, statements: list[Traced]) -> None:
        self._statements = statements
        self._in_transaction = False

    def __call__(self, sql: str) -> None:
        self._statements.append(Traced(sql, self._in_transaction))
        verb, *rest = sql.split(maxsplit=2)
        if verb in ("BEGIN", "COMMIT") or (verb == "ROLLBACK" and "TO" not in rest):
            self._in_transaction = verb == "BEGIN"


def commits(traced: Traced) -> bool:
    """COMMIT, or a write that is a transaction of its own."""
    verb = traced.sql.split(maxsplit=1)[0].upper()
    return verb == "COMMIT" or (verb in ("INSERT", "UPDATE", "DELETE") and not traced.in_transaction)


@contextmanager
def traced_sqlite() -> Iterator[list[Traced]]:
    """Every statement that connections opened from now on execute."""
    statements: list[Traced] = []
    connect = sqlite3.connect

    def traced(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        connection: sqlite3.Connection = connect(*args, **kwargs)
        connection.set_trace_callback(_Tracer(statements))
        return connection

    sqlite3.connect = traced  # type: ignore[assignment]
    try:
        yield statements
    finally:
        sqlite3.connect = connect


@contextmanager
def counted_hops() -> Iterator[list[None]]:
    """Every job that is submitted from the loop to a connection's thread from now on."""
    hops: list[None] = []
    submit = SerialThread.submit

    def counted(thread: SerialThread, job: Callable[[], None]) -> None:
        hops.append(None)  # not the job, which holds a cursor once it is run
        submit(thread, job)

    SerialThread.submit = counted  # type: ignore[method-assign, assignment]
    try:
        yield hops
    finally:
        SerialThread.submit = submit  # type: ignore[method-assign]


@asynccontextmanager
async def _application(name: str, place: str) -> AsyncIterator[Application]:
    """The application in this process, on one connection."""
    async with serve_in_process(APPLICATIONS[name](place, 1)) as application:
        yield application


@asynccontextmanager
async def serve_in_process(app: Starlette) -> AsyncIterator[Application]:
    async with app.router.lifespan_context(app):
        yield Application(app)


class Application:
    """An ASGI application and its one, patient caller."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def post_all(self, requests: int, *, start: int) -> None:
        """Payments with the keys `start`, `start + 1` ..., one after the other."""
        for number, _ in zip(count(start), range(requests), strict=False):
            status = await self.post(b'"key-%d"' % number)
            if status != 201:
                raise SystemExit(f"request {number} was answered {status}, so there is nothing to count")

    async def post(self, key: bytes) -> int:
        """One payment; the status of its answer."""
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": BODY, "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"content-type", b"application/json"), (b"x-account", b"acct_4711"), (b"idempotency-key", key)]
        scope = {
            "type": "http",
            "method": "POST",
            "path": "/payments",
            "root_path": "",
            "query_string": b"",
            "headers": headers,
        }
        await self._app(scope, receive, send)
        return int(sent[0]["status"])
