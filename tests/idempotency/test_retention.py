"""The reaper: forgets what has expired and nothing else, in bounded batches, and counts what it forgot."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

import psycopg
import pytest

from onefold import AsyncOnefold, Onefold, single_principal
from onefold.telemetry import Event, Reaped
from tests.support.patience import PATIENCE_S

DAY_MS = 24 * 3600 * 1000


def _fill_sqlite(path: Path, *, expired: int, live: int) -> None:
    now_ms = time.time_ns() // 1_000_000
    with sqlite3.connect(path) as database:
        for number in range(expired + live):
            expires_at_ms = now_ms + (-DAY_MS if number < expired else DAY_MS)
            database.execute(
                "INSERT INTO onefold_record VALUES (?, x'', 'POST /', 1, 200, x'', x'', ?)",
                (number.to_bytes(16, "big"), expires_at_ms),
            )
    database.close()


def test_on_sqlite_what_has_expired_goes_and_the_rest_stays(tmp_path: Path) -> None:
    told: list[Event] = []
    path = tmp_path / "app.db"
    once = Onefold(path, principal=single_principal, listener=told.append)
    _fill_sqlite(path, expired=25, live=3)
    assert once.reap(limit=10) == Reaped(records=25)
    assert told == [Reaped(records=25)]
    assert once.reap(limit=10) == Reaped(records=0)
    database = sqlite3.connect(path)
    assert database.execute("SELECT count(*) FROM onefold_record").fetchone() == (3,)
    database.close()
    once.close()


def test_on_postgres_what_has_expired_goes_and_the_rest_stays(postgres_dsn: str) -> None:
    once = Onefold(postgres_dsn, principal=single_principal)
    once.migrate()
    with psycopg.connect(postgres_dsn) as connection:
        connection.execute(
            """
            INSERT INTO onefold_record
            SELECT decode(lpad(to_hex(n), 32, '0'), 'hex'), '', 'POST /', 1, 200, '', '',
                   now() + CASE WHEN n < 25 THEN -interval '1 day' ELSE interval '1 day' END
            FROM generate_series(0, 27) AS n
            """
        )
    assert once.reap(limit=10) == Reaped(records=25)
    with psycopg.connect(postgres_dsn) as connection:
        assert connection.execute("SELECT count(*) FROM onefold_record").fetchone() == (3,)
    once.close()


def test_one_call_does_no_more_than_it_was_allowed_to(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    once = Onefold(path, principal=single_principal)
    _fill_sqlite(path, expired=25, live=0)
    assert once.reap(limit=10, batches_max=2) == Reaped(records=20)
    once.close()


@pytest.mark.parametrize("colour", ["threads", "asyncio"])
async def test_the_background_reaper_reaps_while_its_block_lasts(tmp_path: Path, colour: str) -> None:
    path = tmp_path / "app.db"
    seen = asyncio.Event()
    loop = asyncio.get_running_loop()

    def listener(event: Event) -> None:
        if event == Reaped(records=1):
            loop.call_soon_threadsafe(seen.set)

    if colour == "threads":
        once = Onefold(path, principal=single_principal, listener=listener)
        _fill_sqlite(path, expired=1, live=1)
        with once.reaping(every_s=0.01):
            await asyncio.wait_for(seen.wait(), PATIENCE_S)
        once.close()
    else:
        aonce = AsyncOnefold(path, principal=single_principal, listener=listener)
        _fill_sqlite(path, expired=1, live=1)
        async with aonce.reaping(every_s=0.01):
            await asyncio.wait_for(seen.wait(), PATIENCE_S)
        await aonce.close()


def test_a_reaper_whose_store_fails_goes_on_trying(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "app.db"
    once = Onefold(path, principal=single_principal)
    database = sqlite3.connect(path)
    database.execute("ALTER TABLE onefold_record RENAME TO elsewhere")
    reaped = []
    with once.reaping(every_s=0.01):
        give_up_at = time.monotonic() + PATIENCE_S
        while not caplog.records and time.monotonic() < give_up_at:
            time.sleep(0.01)
        database.execute("ALTER TABLE elsewhere RENAME TO onefold_record")
        reaped.append(once.reap())
    assert "expired records could not be deleted" in caplog.text
    assert reaped == [Reaped(records=0)]
    database.close()
    once.close()
