"""Natural writes beside the same statements by hand: `python -m benchmarks.natural`, and a part of `make bench`.

What is counted is the same on every machine, and fails a build (`tests/benchmarks/test_natural_guards.py`): round trips
of a transaction, on asyncpg. The times are for people: medians, taken in turns.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from statistics import median
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from benchmarks.load import HOST
from benchmarks.stores import postgres_place, private_postgres
from benchmarks.wire import counting_proxy
from onefold import AsyncOnefold

#: How much more than by hand a helper may cost.
MOST_BY_HAND: Final = 1.05

_TABLES: Final = """
CREATE TABLE IF NOT EXISTS natural_order
    (id text PRIMARY KEY, total bigint, status text DEFAULT 'new', version bigint DEFAULT 0);
CREATE TABLE IF NOT EXISTS natural_entry (id text PRIMARY KEY, amount bigint);
CREATE TABLE IF NOT EXISTS natural_account (id text PRIMARY KEY, balance bigint);
INSERT INTO natural_account VALUES ('a', 0) ON CONFLICT DO NOTHING
"""

_INSERT: Final = "INSERT INTO natural_order (id, total) VALUES ($1, $2) ON CONFLICT (id) DO NOTHING RETURNING *"
_MOVE: Final = (
    "UPDATE natural_order SET status = 'paid', version = version + 1 WHERE id = $1 AND status = 'new' RETURNING *"
)

Way = Callable[[Any, str], Awaitable[object]]


async def _insert(tx: Any, name: str) -> None:
    await tx.insert_once("natural_order", {"id": name, "total": 1}, on="id")


async def _insert_by_hand(tx: Any, name: str) -> None:
    if not await tx.connection.fetch(_INSERT, name, 1):
        await tx.connection.fetch("SELECT * FROM natural_order WHERE id = $1", name)


async def _compare(tx: Any, name: str) -> None:
    await tx.insert_once("natural_order", {"id": name, "total": 1}, on="id", compare=True)


async def _compare_by_hand(tx: Any, name: str) -> None:
    if not await tx.connection.fetch(_INSERT, name, 1):
        await tx.connection.fetch("SELECT total IS NOT DISTINCT FROM $2, * FROM natural_order WHERE id = $1", name, 1)


async def _move(tx: Any, name: str) -> None:
    where = {"id": name}
    await tx.transition("natural_order", where=where, state="status", come_from="new", to="paid", version="version")


async def _move_by_hand(tx: Any, name: str) -> None:
    if not await tx.connection.fetch(_MOVE, name):
        await tx.connection.fetch("SELECT * FROM natural_order WHERE id = $1", name)


async def _enter(tx: Any, name: str) -> None:
    entry, where = {"id": name, "amount": 1}, {"id": "a"}
    await tx.ledger_entry("natural_entry", entry, on="id", balance="natural_account", where=where, add={"balance": 1})


async def _enter_by_hand(tx: Any, name: str) -> None:
    insert = "INSERT INTO natural_entry VALUES ($1, 1) ON CONFLICT (id) DO NOTHING RETURNING *"
    if await tx.connection.fetch(insert, name):
        await tx.connection.fetch("UPDATE natural_account SET balance = balance + 1 WHERE id = 'a' RETURNING *")
    else:
        await tx.connection.fetch("SELECT * FROM natural_entry WHERE id = $1", name)


async def _lock(tx: Any, name: str) -> None:
    async with tx.exclusive("order", name):
        pass


async def _lock_by_hand(tx: Any, name: str) -> None:
    await tx.connection.fetch("SELECT pg_advisory_xact_lock(hashtextextended($1, 0))", name)


async def _lock_row(tx: Any, name: str) -> None:
    await tx.lock_row("natural_order", where={"id": name})


async def _lock_row_by_hand(tx: Any, name: str) -> None:
    await tx.connection.fetch("SELECT * FROM natural_order WHERE id = $1 FOR UPDATE", name)


#: These need a row that is there.
_ON_ROWS: Final = (_move, _move_by_hand, _lock_row, _lock_row_by_hand)

#: A helper, and the same by hand. Each is called twice for a name: the second finds what the first has done.
WAYS: Final[dict[str, tuple[Way, Way]]] = {
    "insert_once": (_insert, _insert_by_hand),
    "insert_once, compared": (_compare, _compare_by_hand),
    "transition": (_move, _move_by_hand),
    "ledger_entry": (_enter, _enter_by_hand),
    "exclusive": (_lock, _lock_by_hand),
    "lock_row": (_lock_row, _lock_row_by_hand),
}


_WARM: Final = 5
_MEASURED: Final = 20


class Cost(NamedTuple):
    """Round trips of a transaction and its microseconds, ours and by hand."""

    trips: float
    trips_by_hand: float
    us: float
    us_by_hand: float


async def count(dsn: str) -> dict[str, Cost]:
    """What each costs, by the names of WAYS."""
    found: dict[str, Cost] = {}
    port = urlsplit(dsn).port or 0
    async with counting_proxy(HOST, port) as (wire, through):
        once = AsyncOnefold(dsn.replace(f":{port}/", f":{through}/"))
        async with once.transaction() as tx:
            await tx.connection.execute(_TABLES)
        for name, ways in WAYS.items():
            trips: list[int] = [0, 0]
            times: tuple[list[float], list[float]] = ([], [])
            for number in range(-_WARM, _MEASURED):
                for kind, way in enumerate(ways):  # in turns: both have the same neighbours
                    before, began = wire.cycles, time.perf_counter()
                    await _run(once, way, f"{name} {kind} {number}")
                    if number >= 0:
                        trips[kind] += wire.cycles - before
                        times[kind].append(time.perf_counter() - began)
            made = [count / _MEASURED / 2 for count in trips]
            found[name] = Cost(*made, *(median(each) / 2 * 1e6 for each in times))
        await once.close()
    return found


async def _run(once: AsyncOnefold, way: Way, name: str) -> None:
    """Twice: the second finds what the first has done."""
    for _ in range(2):
        async with once.transaction() as tx:
            await tx.connection.execute(
                "INSERT INTO natural_order (id) VALUES ($1) ON CONFLICT DO NOTHING", f"{name} there"
            )
            await way(tx, name + " there" * (way in _ON_ROWS))


def too_dear(found: Mapping[str, Cost]) -> list[str]:
    """The helpers that need more round trips than they may."""
    return [name for name, cost in found.items() if cost.trips > cost.trips_by_hand * MOST_BY_HAND]


def run() -> int:
    """Print a line for each. 1: one costs more than it may."""
    with private_postgres() as server:
        found = asyncio.run(count(postgres_place(server)))
    print("Natural writes beside the same statements by hand, a transaction each")
    for name, cost in found.items():
        print(
            f"{name:24} {cost.trips:5.2f} round trips, by hand {cost.trips_by_hand:5.2f}; {cost.us:6.0f} us, "
            f"by hand {cost.us_by_hand:6.0f}"
        )
    for name in (missed := too_dear(found)):
        print(f"MISSED: {name} needs more than {MOST_BY_HAND} times the round trips of the same by hand")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(run())
