"""What a claim reads, in pages: it depends on what it returns, not on how a backlog is spread or what stands behind a
stopped event. On Postgres, with fresh, stale and no statistics, and with both kinds of plans. The benchmark of claims
has the same with a million rows."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any, Final

import asyncpg
import pytest

from onefold._kernel.effects import Statement
from onefold._outbox.claimed_rows import START, Limits
from onefold._outbox.sql.postgres_claims import PLAN_BY_INDEX, scan, tour
from onefold.db.asyncpg import AsyncpgDatabase
from tests.outbox.relaying import Stage

ROWS: Final = 20_000

#: Far below what reading the backlog takes: its rows have 400 pages, and a walk reads a page or two for each row.
PAGES_MAX: Final = 4_000

FILL: Final = """
INSERT INTO onefold_outbox (bucket, stream, id, source, topic, key, time, content_type, headers, data, due_at, error)
SELECT {bucket}, {stream}, gen_random_uuid()::text, 's', 't', 'k', '', '', '{{}}', 'x', {due}, {error}
FROM generate_series(1, {rows}) AS n
"""

HOT: Final = "decode(md5('hot'), 'hex')"
EACH: Final = "decode(md5(n::text), 'hex')"


@pytest.fixture
async def connection(postgres_dsn: str) -> AsyncIterator[Any]:
    stage = Stage(AsyncpgDatabase(postgres_dsn))
    await stage.migrate()
    session = await stage.entered(lease_s=3600)
    await stage.execute(f"UPDATE onefold_bucket SET relay = 'r' WHERE relay = '{session.relay}'")
    await stage.execute("UPDATE onefold_relay SET relay = 'r'")
    await stage.database.close()
    connection: Any = await asyncpg.connect(postgres_dsn)
    await connection.execute("ALTER TABLE onefold_outbox SET (autovacuum_enabled = false)")
    yield connection
    await connection.close()


async def fill(connection: Any, rows: int, stream: str, *, bucket: str = "7", stopped: bool = False) -> None:
    due, error = ("'infinity'", "'no'") if stopped else ("NULL", "NULL")
    await connection.execute(FILL.format(bucket=bucket, stream=stream, due=due, error=error, rows=rows), timeout=120)


def limits(**changes: int) -> Limits:
    given = {"per_bucket": 1000, "rows": 1000, "data_bytes": 1 << 24, "per_stream": 16, "steps": 1000}
    return Limits(**{**given, **changes})


async def explained(connection: Any, claim: Statement) -> tuple[int, int]:
    """Rows and pages, at the most, of the claim under every kind of plan; nothing of it stays."""
    found = []
    if claim.sql == read_tour().sql:
        await connection.execute(PLAN_BY_INDEX.sql.replace("true)", "false)"))
    values = ", ".join(rendered(value) for value in claim.values)
    await connection.execute(f"PREPARE claim AS {claim.sql}")
    for mode in ("force_custom_plan", "force_generic_plan"):
        await connection.execute(f"SET plan_cache_mode = {mode}")
        transaction = connection.transaction()
        await transaction.start()
        told = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE claim ({values})")
        await transaction.rollback()
        top = json.loads(told)[0]["Plan"]
        found.append((int(top["Actual Rows"]), int(top["Shared Hit Blocks"] + top["Shared Read Blocks"])))
    await connection.execute("DEALLOCATE claim")
    await connection.execute("RESET ALL")
    assert len({rows for rows, _ in found}) == 1, found
    return max(found)


def rendered(value: object) -> str:
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


def read_scan(**changes: int) -> Statement:
    return scan("r", 1000, limits(**changes), [])


def read_tour(*paused: str) -> Statement:
    return tour("r", 1000, limits(), paused, START)


@pytest.mark.parametrize("analyzed", ["never", "before", "after"])
@pytest.mark.parametrize("claim", ["scan", "tour"])
async def test_a_backlog_in_one_bucket_costs_what_is_claimed_of_it(connection: Any, analyzed: str, claim: str) -> None:
    if analyzed == "before":
        await fill(connection, 100, EACH, bucket="n % 64")
        await connection.execute("ANALYZE onefold_outbox")
    await fill(connection, ROWS, EACH)
    if analyzed == "after":
        await connection.execute("VACUUM ANALYZE onefold_outbox")
    rows, pages = await explained(connection, read_scan() if claim == "scan" else read_tour())
    assert rows >= 1000
    assert pages < (PAGES_MAX if claim == "scan" else 4 * PAGES_MAX), pages  # a step is a descent of the index


async def test_kept_rows_do_not_mislead(connection: Any) -> None:
    """Statistics in which next to nothing waits."""
    await fill(connection, ROWS, EACH, bucket="n % 64")
    await connection.execute("UPDATE onefold_outbox SET published_at = now()")
    await connection.execute("VACUUM ANALYZE onefold_outbox")
    await fill(connection, ROWS, EACH)
    rows, pages = await explained(connection, read_scan())
    assert (rows, pages < PAGES_MAX) == (1000, True), pages


async def test_a_hot_key_leaves_room_for_all_others(connection: Any) -> None:
    await fill(connection, ROWS, HOT)
    await fill(connection, 100, EACH)
    await connection.execute("VACUUM ANALYZE onefold_outbox")
    rows, pages = await explained(connection, read_tour())
    assert rows == 100 + 16
    assert pages < PAGES_MAX, pages


async def test_what_stands_behind_a_stopped_event_costs_nothing(connection: Any) -> None:
    await fill(connection, 1, HOT, stopped=True)
    await fill(connection, ROWS, HOT)
    await connection.execute("VACUUM ANALYZE onefold_outbox")
    rows, pages = await explained(connection, read_tour())
    assert (rows, pages < 100) == (0, True), pages
    rows, pages = await explained(connection, read_scan(per_bucket=16))
    assert (rows, pages < 400) == (16, True), pages  # that they may not go
    await fill(connection, 50, EACH)
    rows, pages = await explained(connection, read_tour())
    assert (rows, pages < 1000) == (50, True), pages


async def test_what_waits_for_a_paused_destination_costs_nothing(connection: Any) -> None:
    await fill(connection, ROWS, "NULL")
    await fill(connection, ROWS, EACH)
    await connection.execute("UPDATE onefold_outbox SET topic = 'full'")
    await fill(connection, 50, "NULL")
    await connection.execute("VACUUM ANALYZE onefold_outbox")
    rows, pages = await explained(connection, read_tour("full"))
    assert (rows, pages < 1000) == (50, True), pages


async def test_control_a_planner_that_may_sort_reads_the_backlog_for_every_stream(connection: Any) -> None:
    await fill(connection, ROWS // 4, HOT)
    await fill(connection, 100, EACH)
    await connection.execute("VACUUM ANALYZE onefold_outbox")
    planned = read_tour()
    unplanned = Statement(planned.sql + " ", planned.values)  # not the text that the settings go with
    _, pages = await explained(connection, unplanned)
    assert pages > 2 * PAGES_MAX, pages
