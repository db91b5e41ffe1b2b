"""What a recorded step costs, counted: round trips, commits and bytes of WAL beside the bare handler of two commits.

A phase is a transaction as the bare handler's, with its record in it; a call is one round trip with one commit where
the bare handler has none. The claim of the work is a commit that does not wait for the disk.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from contextlib import AsyncExitStack, contextmanager
from functools import partial
from typing import Final

import asyncpg

from benchmarks.guards import (
    Application,
    Counts,
    Limit,
    Unit,
    Verdict,
    commits,
    counted_hops,
    traced_sqlite,
    wal_position,
)
from benchmarks.load import HOST
from benchmarks.steps.handlers import TABLE, WAYS, PostgresStore, SqliteStore, charge, insert_in, update_in
from benchmarks.wire import Wire, counting_proxy
from onefold import AsyncOnefold

_ROUND_TRIPS: Final[dict[str, float]] = {
    "bare": 8,
    "onefold request": 9,
    "onefold once.work": 8,
    # One after the other, in a block of `once.work`.
    "claim": 1,
    "phase": 3,
    "call": 1,
    "finish": 3,
    "end": 0,
}
_COMMITS: Final[dict[str, float]] = {
    "bare": 2,
    "onefold request": 4,
    "onefold once.work": 4,
    "claim": 1,
    "phase": 1,
    "call": 1,
    "finish": 1,
    "end": 0,
    "sqlite bare": 2,
    "sqlite onefold request": 4,
    "sqlite onefold once.work": 4,
}
_STATEMENTS: Final[dict[str, float]] = {
    "onefold request": 45,
    "onefold once.work": 36,
    "sqlite onefold request": 26,
    "sqlite onefold once.work": 21,
}
_HOPS: Final[dict[str, float]] = {"sqlite onefold request": 8, "sqlite onefold once.work": 8}

#: Round trips of the bare handler include the reset of asyncpg's pool, one per commit; where onefold ends a transaction
#: it goes along.
_MOST: Final[dict[Unit, dict[str, float]]] = {
    "round trips": _ROUND_TRIPS,
    "commits": _COMMITS,
    "statements": _STATEMENTS,
    "hops between threads": _HOPS,
}
LIMITS: Final = tuple(
    Limit(subject=subject, unit=unit, most=most) for unit, limits in _MOST.items() for subject, most in limits.items()
)

SQLITE_WAYS: Final = ("bare", "onefold request", "onefold once.work")  # DBOS has connections that are not traced
WARM_UP: Final = 20
COUNTED: Final = 20
WAL_COUNTED: Final = 300
_PAYMENT: Final = {"account": "acct_4711", "amount": 1250}


def judge(counts: Counts) -> list[Verdict]:
    return [Verdict(limit=limit, found=counts.get((limit.subject, limit.unit))) for limit in LIMITS]


async def prepare(dialect: str, place: str) -> None:
    """The table of the handlers, beside those that a place has."""
    if dialect == "postgres":
        connection = await asyncpg.connect(place)
        await connection.execute(TABLE[dialect])
        await connection.close()
    else:
        file = sqlite3.connect(place)
        file.execute(TABLE[dialect])
        file.commit()
        file.close()


async def count_postgres(place: str, port: int, counts: Counts, *, ways: Collection[str] = tuple(WAYS)) -> None:
    """Whole handlers, and each step of a work. `place` is prepared, and without TLS."""
    async with counting_proxy(HOST, port) as (wire, through):
        proxied = place.replace(f":{port}/", f":{through}/")
        for name in ways:
            way = WAYS[name](PostgresStore(proxied, 1))
            async with way.runs:
                app = Application(way.app)
                await app.post_all(WARM_UP, start=0)
                with _counted(wire, counts, name, COUNTED):
                    await app.post_all(COUNTED, start=WARM_UP)
        store = PostgresStore(proxied, 1)
        async with store.opened():
            once = AsyncOnefold(store.database)
            for number in range(WARM_UP):
                await _work_in_steps(once, str(number), wire, {})
            await _work_in_steps(once, "counted", wire, counts)
            await once.close()


async def _work_in_steps(once: AsyncOnefold, name: str, wire: Wire, counts: Counts) -> None:
    counted = partial(_counted, wire, counts)
    async with AsyncExitStack() as stack:
        with counted("claim"):
            work = await stack.enter_async_context(once.work(name))
        with counted("phase"):
            number = await work.phase("create", insert_in("postgres"), _PAYMENT)
        with counted("call"):
            charged = await work.call("charge", charge, 1250)
        with counted("finish"):
            await work.finish(update_in("postgres"), number, charged)
        with counted("end"):
            await stack.aclose()


@contextmanager
def _counted(wire: Wire, counts: Counts, subject: str, times: int = 1) -> Iterator[None]:
    before = (wire.cycles, wire.statements, wire.commits)
    yield
    after = (wire.cycles, wire.statements, wire.commits)
    units: tuple[Unit, ...] = ("round trips", "statements", "commits")
    for unit, earlier, later in zip(units, before, after, strict=True):
        counts[subject, unit] = (later - earlier) / times


async def count_wal(place: str, counts: Counts) -> None:
    """Bytes of WAL, and ids of transactions, which only those take that write."""
    watcher = await asyncpg.connect(place)
    for name in WAYS:
        way = WAYS[name](PostgresStore(place, 1))
        async with way.runs:
            app = Application(way.app)
            await watcher.execute("CHECKPOINT")
            await app.post_all(WARM_UP, start=1_000)
            before = await wal_position(watcher)
            await app.post_all(WAL_COUNTED, start=2_000)
            after = await wal_position(watcher)
        counts[name, "WAL bytes"] = (after[0] - before[0]) / WAL_COUNTED
        counts[name, "transaction ids"] = (after[1] - before[1]) / WAL_COUNTED
    await watcher.close()


async def count_sqlite(place: str, counts: Counts) -> None:
    for name in SQLITE_WAYS:
        with traced_sqlite() as statements, counted_hops() as hops:
            way = WAYS[name](SqliteStore(place, 1))
            async with way.runs:
                app = Application(way.app)
                await app.post_all(WARM_UP, start=0)
                statements.clear()
                hops.clear()
                await app.post_all(COUNTED, start=WARM_UP)
                counts[f"sqlite {name}", "statements"] = len(statements) / COUNTED
                counts[f"sqlite {name}", "commits"] = sum(map(commits, statements)) / COUNTED
                counts[f"sqlite {name}", "hops between threads"] = len(hops) / COUNTED
