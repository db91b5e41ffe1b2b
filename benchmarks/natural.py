"""Natural writes beside the same statements by hand: `python -m benchmarks.natural`, and a part of `make bench`.

Both are made in a transaction of their own that `once.transaction()` begins and ends, with nothing else in it: what is
compared is the helper and what one would write in its place with `tx.connection`, and not onefold and the bare driver
(for that see `guards.py` and the tables). Each is made twice for a name: the second finds what the first has done.

What is counted is the same on every machine, and fails a build (`tests/benchmarks/test_natural_guards.py`): round trips
on asyncpg, and the function calls that a helper adds, on each driver. The times are for people: medians, taken in
turns, of the whole transaction and of the call alone; wall time, and CPU time of this process.
"""

from __future__ import annotations

import asyncio
import gc
import re
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple, TypeAlias
from urllib.parse import urlsplit

from psycopg.rows import dict_row

from benchmarks.guards import counted_calls
from benchmarks.load import HOST
from benchmarks.stores import postgres_place, private_postgres
from benchmarks.wire import counting_proxy
from onefold import AsyncOnefold, Onefold

#: How much more than by hand a helper may cost.
MOST_BY_HAND: Final = 1.05

_TABLES: Final = (
    """
    CREATE TABLE IF NOT EXISTS natural_order
        (id text PRIMARY KEY, total bigint, status text DEFAULT 'new', version bigint DEFAULT 0)
    """,
    "CREATE TABLE IF NOT EXISTS natural_entry (id text PRIMARY KEY, amount bigint)",
    "CREATE TABLE IF NOT EXISTS natural_account (id text PRIMARY KEY, balance bigint)",
    "INSERT INTO natural_account VALUES ('a', 0) ON CONFLICT DO NOTHING",
)

Way: TypeAlias = Callable[["Application", Any, str], Awaitable[object]]

_PLACE: Final = re.compile(r"\$\d")


class Application:
    """On one driver, for threads or for asyncio: a scenario is the same lines for both."""

    def __init__(self, driver: str, address: str) -> None:
        self.driver = driver
        self.once: Any = AsyncOnefold(address) if driver == "asyncpg" else Onefold(address)
        self._written: dict[str, str] = {}

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        if isinstance(self.once, AsyncOnefold):
            async with self.once.transaction() as tx:
                yield tx
        else:
            with self.once.transaction() as tx:
                yield tx

    async def fetch(self, tx: Any, sql: str, *values: Any) -> list[Any]:
        """By hand: rows by the names of their columns, as each driver gives them. The values stand in the statement in
        their order."""
        rows: list[Any]
        if self.driver == "asyncpg":
            rows = await tx.connection.fetch(sql, *values)
            return rows
        written, connection = self._written.get(sql) or self._write(sql), tx.connection
        if self.driver == "psycopg":
            rows = connection.cursor(row_factory=dict_row).execute(written, values).fetchall()
        else:
            connection.row_factory = sqlite3.Row
            rows = connection.execute(written, values).fetchall()
        return rows

    def _write(self, sql: str) -> str:
        place = "%s" if self.driver == "psycopg" else "?"
        written = _PLACE.sub(place, sql)
        self._written[sql] = written if self.driver == "psycopg" else written.replace("IS NOT DISTINCT FROM", "IS")
        return self._written[sql]

    async def close(self) -> None:
        closed = self.once.close()
        if isinstance(self.once, AsyncOnefold):
            await closed


_INSERT: Final = "INSERT INTO natural_order (id, total) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING *"
_FIND: Final = "SELECT * FROM natural_order WHERE id = $1"


async def _insert(app: Application, tx: Any, name: str) -> None:
    await tx.insert_once("natural_order", {"id": name, "total": 1}, on="id")


async def _insert_by_hand(app: Application, tx: Any, name: str) -> object:
    if rows := await app.fetch(tx, _INSERT, name, 1):
        return rows[0], True
    [row] = await app.fetch(tx, _FIND, name)
    return row, False


async def _compare(app: Application, tx: Any, name: str) -> None:
    await tx.insert_once("natural_order", {"id": name, "total": 1}, on="id", compare=True)


async def _compare_by_hand(app: Application, tx: Any, name: str) -> object:
    if rows := await app.fetch(tx, _INSERT, name, 1):
        return rows[0], True
    same = "SELECT total IS NOT DISTINCT FROM $1 AS same, natural_order.* FROM natural_order WHERE id = $2"
    [row] = await app.fetch(tx, same, 1, name)
    if not row["same"]:
        raise ValueError(f"{name} is there with another total")
    return row, False


async def _move(app: Application, tx: Any, name: str) -> None:
    where = {"id": name}
    await tx.transition("natural_order", where=where, state="status", come_from="new", to="paid", version="version")


async def _move_by_hand(app: Application, tx: Any, name: str) -> object:
    move = "UPDATE natural_order SET status = $1, version = version + 1 WHERE id = $2 AND status = $3 RETURNING *"
    if rows := await app.fetch(tx, move, "paid", name, "new"):
        return "moved", rows[0]
    if not (rows := await app.fetch(tx, _FIND, name)):
        return "missing", None
    return "already there" if rows[0]["status"] == "paid" else "not allowed", rows[0]


async def _enter(app: Application, tx: Any, name: str) -> None:
    entry, where = {"id": name, "amount": 1}, {"id": "a"}
    await tx.ledger_entry("natural_entry", entry, on="id", balance="natural_account", where=where, add={"balance": 1})


async def _enter_by_hand(app: Application, tx: Any, name: str) -> object:
    if app.driver != "sqlite":  # a server has aborted the transaction where it refuses the second statement
        return await _enter_both(app, tx, name)
    tx.connection.execute("SAVEPOINT entry")
    try:
        entered = await _enter_both(app, tx, name)
    except BaseException:
        tx.connection.execute("ROLLBACK TO entry")
        raise
    finally:
        tx.connection.execute("RELEASE entry")
    return entered


async def _enter_both(app: Application, tx: Any, name: str) -> object:
    insert = "INSERT INTO natural_entry (id, amount) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING *"
    if entry := await app.fetch(tx, insert, name, 1):
        add = "UPDATE natural_account SET balance = balance + $1 WHERE id = $2 RETURNING *"
        [balance] = await app.fetch(tx, add, 1, "a")
        return entry[0], True, balance
    same = "SELECT amount IS NOT DISTINCT FROM $1 AS same, natural_entry.* FROM natural_entry WHERE id = $2"
    [row] = await app.fetch(tx, same, 1, name)
    if not row["same"]:
        raise ValueError(f"{name} is there with another amount")
    return row, False, None


async def _lock(app: Application, tx: Any, name: str) -> None:
    if app.driver == "asyncpg":
        async with tx.exclusive("order", name):
            pass
    else:
        with tx.exclusive("order", name):
            pass


async def _lock_by_hand(app: Application, tx: Any, name: str) -> None:
    await app.fetch(tx, "SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)


async def _lock_row(app: Application, tx: Any, name: str) -> None:
    found = tx.lock_row("natural_order", where={"id": name})
    if app.driver == "asyncpg":
        await found


async def _lock_row_by_hand(app: Application, tx: Any, name: str) -> object:
    rows = await app.fetch(tx, f"{_FIND}{'' if app.driver == 'sqlite' else ' FOR UPDATE'}", name)
    return rows[0] if rows else None


#: These need a row that is there.
_ON_ROWS: Final = (_move, _move_by_hand, _lock_row, _lock_row_by_hand)

#: A helper, and the same by hand.
WAYS: Final[dict[str, tuple[Way, Way]]] = {
    "insert_once": (_insert, _insert_by_hand),
    "insert_once, compared": (_compare, _compare_by_hand),
    "transition": (_move, _move_by_hand),
    "ledger_entry": (_enter, _enter_by_hand),
    "exclusive": (_lock, _lock_by_hand),
    "lock_row": (_lock_row, _lock_row_by_hand),
}

#: SQLite has no lock on a key to be had by hand.
_NOT_BY_HAND: Final = ("sqlite", "exclusive")

#: Function calls of onefold and of C that it makes, which a helper adds to a transaction: a little above what Python
#: 3.11 needs. They are what is left of its price where the round trips are the same.
CALLS_MOST: Final[dict[str, dict[str, float]]] = {
    "asyncpg": {
        "insert_once": 37,
        "insert_once, compared": 41,
        "transition": 42,
        "ledger_entry": 72,
        "exclusive": 44,
        "lock_row": 35,
    },
    "psycopg": {
        "insert_once": 43,
        "insert_once, compared": 48,
        "transition": 49,
        "ledger_entry": 82,
        "exclusive": 16,
        "lock_row": 36,
    },
    # A ledger entry is a part there, with a savepoint around it, which has one by hand, too.
    "sqlite": {
        "insert_once": 12,
        "insert_once, compared": 13,
        "transition": 18,
        "ledger_entry": 30,
        "lock_row": 18,
    },
}

_WARM: Final = 10
_COUNTED: Final = 20
_TIMED: Final = 100


class Cost(NamedTuple):
    """Of a transaction: with a helper, and by hand."""

    ours: float
    by_hand: float

    @property
    def ratio(self) -> float:
        return self.ours / self.by_hand


class Times(NamedTuple):
    """Microseconds."""

    wall: Cost
    cpu: Cost
    call_wall: Cost
    call_cpu: Cost


async def prepare(app: Application) -> None:
    async with app.transaction() as tx:
        for table in _TABLES:
            done = tx.connection.execute(table)
            if app.driver == "asyncpg":
                await done


async def _make_rows(app: Application, name: str, ways: tuple[Way, Way], times: int) -> None:
    async with app.transaction() as tx:
        for kind, way in enumerate(ways):
            for number in range(-_WARM, times) if way in _ON_ROWS else ():
                made = f"{name} {kind} {number}"
                await app.fetch(tx, "INSERT INTO natural_order (id) VALUES ($1) RETURNING id", made)


async def _run(app: Application, way: Way, name: str) -> None:
    """Twice: the second finds what the first has done."""
    for _ in range(2):
        async with app.transaction() as tx:
            await way(app, tx, name)


def ways_on(driver: str) -> dict[str, tuple[Way, Way]]:
    return {name: ways for name, ways in WAYS.items() if (driver, name) != _NOT_BY_HAND}


async def count_trips(dsn: str) -> dict[str, Cost]:
    """Round trips of a transaction on asyncpg, by the names of WAYS."""
    found: dict[str, Cost] = {}
    port = urlsplit(dsn).port or 0
    async with counting_proxy(HOST, port) as (wire, through):
        app = Application("asyncpg", dsn.replace(f":{port}/", f":{through}/"))
        await prepare(app)
        for name, ways in WAYS.items():
            trips = [0, 0]
            await _make_rows(app, f"trips {name}", ways, _COUNTED)
            for number in range(-_WARM, _COUNTED):
                for kind, way in enumerate(ways):
                    before = wire.cycles
                    await _run(app, way, f"trips {name} {kind} {number}")
                    trips[kind] += wire.cycles - before if number >= 0 else 0
            found[name] = Cost(*(count / _COUNTED / 2 for count in trips))
        await app.close()
    return found


async def count_calls(driver: str, address: str) -> dict[str, Cost]:
    """Function calls of a transaction, by the names of WAYS."""
    found: dict[str, Cost] = {}
    app = Application(driver, address)
    await prepare(app)
    for name, ways in ways_on(driver).items():
        await _make_rows(app, f"{driver} calls {name}", ways, _COUNTED)
        made: list[float] = []
        for kind, way in enumerate(ways):
            for number in range(-_WARM, 0):
                await _run(app, way, f"{driver} calls {name} {kind} {number}")
            with counted_calls() as calls:
                for number in range(_COUNTED):
                    await _run(app, way, f"{driver} calls {name} {kind} {number}")
            made.append(calls.made / _COUNTED / 2)
        found[name] = Cost(*made)
    await app.close()
    return found


async def measure(driver: str, address: str, times: int = _TIMED) -> AsyncIterator[tuple[str, Times]]:
    """The medians, by the names of WAYS. Both are measured in turns: they have the same neighbours."""
    app = Application(driver, address)
    await prepare(app)
    for name, ways in ways_on(driver).items():
        await _make_rows(app, f"{driver} times {name}", ways, times)
        found: tuple[list[list[float]], ...] = ([], [])
        for number in range(-_WARM, times):
            for kind, way in list(enumerate(ways))[:: 1 if number % 2 else -1]:
                both = [await _time(app, way, f"{driver} times {name} {kind} {number}") for _ in range(2)]
                if number >= 0:
                    found[kind].append([sum(pair) / 2 * 1e6 for pair in zip(*both, strict=True)])
        ours, by_hand = ([median(column) for column in zip(*kind, strict=True)] for kind in found)
        yield name, Times(*(Cost(*pair) for pair in zip(ours, by_hand, strict=True)))
    await app.close()


async def _time(app: Application, way: Way, name: str) -> tuple[float, float, float, float]:
    gc.disable()  # a collection would fall to one of them
    wall, cpu = time.perf_counter, time.process_time
    began, began_cpu = wall(), cpu()
    async with app.transaction() as tx:
        called, called_cpu = wall(), cpu()
        await way(app, tx, name)
        answered, answered_cpu = wall(), cpu()
    ended, ended_cpu = wall(), cpu()
    gc.enable()
    return ended - began, ended_cpu - began_cpu, answered - called, answered_cpu - called_cpu


def too_dear(trips: Mapping[str, Cost], calls: Mapping[str, Mapping[str, Cost]]) -> list[str]:
    """The helpers that need more round trips, or add more function calls, than they may."""
    missed = [
        f"{name} needs more than {MOST_BY_HAND} times the round trips of the same by hand"
        for name, cost in trips.items()
        if cost.ratio > MOST_BY_HAND
    ]
    for driver, found in calls.items():
        for name, cost in found.items():
            added, most = cost.ours - cost.by_hand, CALLS_MOST[driver][name]
            if added > most:
                missed.append(f"{name} on {driver} adds {added:.1f} function calls, and may add {most:g}")
    return missed


def run() -> int:
    """Print a line for each. 1: one costs more than it may."""
    with private_postgres() as server, tempfile.TemporaryDirectory() as folder:
        place, file = postgres_place(server), str(Path(folder) / "natural.sqlite3")
        addresses = {"asyncpg": place, "psycopg": place, "sqlite": file}
        trips = asyncio.run(count_trips(place))
        calls = {driver: asyncio.run(count_calls(driver, address)) for driver, address in addresses.items()}
        print("Natural writes beside the same statements by hand, a transaction each")
        for name, cost in trips.items():
            print(f"{name:22} {cost.ours:5.2f} round trips, by hand {cost.by_hand:5.2f}")
        print("\nFunction calls that a helper adds; microseconds of a transaction, and of the call alone")
        for driver, address in addresses.items():
            asyncio.run(_print_times(driver, address, calls[driver]))
    for line in (missed := too_dear(trips, calls)):
        print(f"MISSED: {line}")
    return 1 if missed else 0


async def _print_times(driver: str, address: str, calls: Mapping[str, Cost]) -> None:
    async for name, times in measure(driver, address):
        told = "  ".join(
            f"{what} {cost.ours:5.0f} / {cost.by_hand:5.0f} = {cost.ratio:4.2f}"
            for what, cost in zip(("wall", "CPU", "call", "CPU of the call"), times, strict=True)
        )
        print(f"{driver:8} {name:22} {calls[name].ours - calls[name].by_hand:6.1f} calls  {told}", flush=True)


if __name__ == "__main__":
    sys.exit(run())
