"""Attacks on clocks: jumps of an hour, there and back, on the hosts of application, relay and consumer, and in the
database. Nothing is lost, nothing happens twice, the order of a key stays.

A jump of the database's clock is played by moving every moment that is stored: to compare a later time with what is
stored is to compare the same time with what was stored earlier.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from onefold import AsyncOnefold, Message, Transaction
from onefold._app.base_app import run_flow
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement
from tests.worker.consuming import until

HOUR_MS = 3_600_000
KEYS, VERSIONS = 4, 12


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(request.getfixturevalue("postgres_dsn") if request.param == "postgres" else sqlite_path)


@pytest.fixture
def erratic_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time that a host is asked for the time of day, it is an hour early or an hour late."""
    jumps: Iterator[int] = itertools.cycle((3600, -3600, 0))
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + next(jumps) * 10**9)


class Shop:
    """Publishes under keys, and handles what comes of it in the order of the key. Every seventh fails at first."""

    def __init__(self, address: str, *, failing: bool) -> None:
        self.once = AsyncOnefold(address, source="shop", broker="local?lease_s=1")
        self.handled: list[tuple[str | None, int | None]] = []
        failed: set[str] = set()

        @self.once.consumer(
            "billing", topic="order.placed", order="strict", baseline_wait_s=0.1, retry_base_s=0.05, retry_cap_s=0.1
        )
        async def handle(message: Message, tx: Transaction[Any]) -> None:
            if failing and (message.version or 0) % 7 == 0 and message.id not in failed:
                failed.add(message.id)
                raise RuntimeError("once more")
            self.handled.append((message.key, message.version))

    async def place(self, version: int) -> None:
        async with self.once.transaction() as tx:
            for key in range(KEYS):
                await tx.publish("order.placed", version, key=f"k{key}")

    def all_handled(self) -> bool:
        return len(self.handled) >= KEYS * VERSIONS

    def check(self) -> None:
        for key in range(KEYS):
            versions = [version for name, version in self.handled if name == f"k{key}"]
            assert versions == list(range(1, VERSIONS + 1)), f"k{key}: {versions}"


async def test_the_clocks_of_all_hosts_may_jump(address: str, erratic_hosts: None) -> None:
    shop = Shop(address, failing=True)
    await shop.once.migrate()
    async with shop.once.consuming(), shop.once.relaying(lease_s=1.0):
        for version in range(1, VERSIONS + 1):
            await shop.place(version)
        await until(shop.all_handled)
    shop.check()
    await shop.once.close()


async def test_the_clock_of_the_database_may_jump_ahead_and_back(address: str) -> None:
    """Ahead: leases are over while they are held. Back: what waits for a time waits longer, what runs goes on."""
    shop = Shop(address, failing=False)
    await shop.once.migrate()
    jumps = itertools.cycle((HOUR_MS, -HOUR_MS, -HOUR_MS, HOUR_MS))
    async with shop.once.consuming(), shop.once.relaying(lease_s=1.0):
        for version in range(1, VERSIONS + 1):
            await shop.place(version)
            await jump(shop.once, next(jumps))
        # Twelve jumps are three rounds: the clock is right again.
        await until(shop.all_handled)
    shop.check()
    await shop.once.close()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_what_runs_goes_on_after_one_jump_of_the_database(address: str, jump_ms: int) -> None:
    """One jump and no way back: live processes are not held up by it."""
    shop = Shop(address, failing=False)
    await shop.once.migrate()
    async with shop.once.consuming(), shop.once.relaying(lease_s=1.0):
        await shop.place(1)
        await until(lambda: len(shop.handled) == KEYS)
        await jump(shop.once, jump_ms)
        for version in range(2, VERSIONS + 1):
            await shop.place(version)
        await until(shop.all_handled)
    shop.check()
    await shop.once.close()


@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS])
async def test_a_restart_after_a_jump_of_the_database_takes_over(address: str, jump_ms: int) -> None:
    """What the processes before had leased when they were cut off is not held up by a clock that went back."""
    shop = Shop(address, failing=False)
    await shop.once.migrate()
    await shop.place(1)
    async with shop.once.consuming(), shop.once.relaying(lease_s=1.0):
        await until(lambda: len(shop.handled) == KEYS)
    for version in range(2, VERSIONS + 1):
        await shop.place(version)
    await jump(shop.once, jump_ms)
    async with shop.once.consuming(), shop.once.relaying(lease_s=1.0):
        await until(shop.all_handled)
    shop.check()
    await shop.once.close()


async def jump(once: AsyncOnefold, ms: int) -> None:
    """The database's clock goes ahead by so many milliseconds, or back."""
    await run_flow(once, lambda dialect: _shift_postgres(ms) if dialect == "postgres" else _shift_sqlite(ms))


async def _shift_postgres(ms: int) -> None:
    from onefold._kernel.checkout import with_connection

    async def work() -> None:
        columns = await Fetch(
            Statement(
                "SELECT table_name, column_name FROM information_schema.columns WHERE table_name LIKE 'onefold\\_%' "
                "AND data_type = 'timestamp with time zone' ORDER BY 1, 2"
            )
        )
        assert len(columns) > 10
        for table, column in columns:
            moved = f"UPDATE {table} SET {column} = {column} - interval '{ms} milliseconds' WHERE {column} IS NOT NULL"
            await Batch((Boundary.BEGIN, Statement(moved), Boundary.COMMIT))

    await with_connection(work)


async def _shift_sqlite(ms: int) -> None:
    from onefold._kernel.checkout import with_connection

    async def work() -> None:
        columns = await Fetch(
            Statement(
                "SELECT m.name, c.name FROM sqlite_master AS m, pragma_table_info(m.name) AS c "
                "WHERE m.type = 'table' AND c.name LIKE '%\\_ms' ESCAPE '\\' AND m.name LIKE 'onefold%'"
            )
        )
        assert len(columns) > 10
        for table, column in columns:
            if column != "started_ms":
                moved = f"UPDATE {table} SET {column} = {column} - {ms} WHERE {column} IS NOT NULL"
                await Batch((Boundary.BEGIN, Statement(moved), Boundary.COMMIT))

    await with_connection(work)


def test_the_control_a_jump_moves_what_is_stored(postgres_dsn: str) -> None:
    async def work() -> None:
        shop = Shop(postgres_dsn, failing=False)
        await shop.once.migrate()
        await shop.place(1)
        await jump(shop.once, HOUR_MS)
        await shop.once.close()

    asyncio.run(work())
    with psycopg.connect(postgres_dsn) as connection:
        [(age_s,)] = connection.execute("SELECT extract(epoch FROM now() - min(written_at)) FROM onefold_outbox")
    assert 3590 < age_s < 3700
