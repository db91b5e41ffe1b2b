"""What a claim costs while published rows are kept in the table: pages touched, which does not depend on the machine.

The claim is the relay's own statement, explained as it runs, with a plan for its values and with the plan that a
prepared statement ends up with. LIMITS pins the pages: beside a million published rows they are those beside none.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any, Final

from benchmarks.guards import Limit, Verdict
from benchmarks.messages.brokers import NullBroker
from benchmarks.messages.comparison import Grounds, Outcome
from benchmarks.messages.places import ORDER_BYTES, SOURCE, TOPIC, Connection, Pool, fresh_pool, publish_all, uniform
from benchmarks.report import aligned, guards_of
from onefold import AsyncOnefold
from onefold._kernel.effects import Effect, Fetch, Statement
from onefold._kernel.lanes import BrokerLane
from onefold._kernel.runners import run_async
from onefold.db.connect import async_database
from onefold.outbox.relay import Carrier, Settings
from onefold.outbox.sql import STATEMENTS
from onefold.outbox.waiting import Limits

WAITING: Final = 1_000
RELAY: Final = "bench"
BUFFERS_MAX: Final = 2_800
REPEATS: Final = 5

#: Relayed and deleted, but an old snapshot still sees them, so that nothing may be cleaned up. Not pinned: it grows.
DEAD: Final = 10_000

_HEAD: Final = ("beside", "plan", "claimed", "buffers", "ms")

_FILL: Final = f"""
INSERT INTO onefold_outbox (bucket, stream, id, source, topic, key, epoch, version, time, content_type, headers, data,
                            published_at)
SELECT n % 64, decode(md5(n::text), 'hex'), gen_random_uuid()::text, '{SOURCE}', '{TOPIC}', 'kept-' || n, 1, 1,
       '2026-11-15T12:00:00Z', 'application/json', '{{}}', $2::bytea, now()
FROM generate_series(1, $1::integer) AS n
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Claims:
    """What some claims, all alike, returned and touched; at the least and at the most."""

    plan: str
    rows: int
    buffers: int
    ms: float

    def row(self, beside: str) -> tuple[str, ...]:
        return (beside, self.plan, f"{self.rows:,}", f"{self.buffers:,}", f"{self.ms:.2f}")


async def measure(grounds: Grounds) -> Outcome:
    rows: list[tuple[str, ...]] = []
    verdicts: list[Verdict] = []
    data: list[dict[str, object]] = []
    for kept in grounds.effort.kept:
        grounds.say(f"claims beside {kept:,} published rows")
        async with fresh_pool(grounds) as pool:
            await _fill(pool, kept)
            for claims in await _both_plans(pool):
                rows.append(claims.row(f"{kept:,} published"))
                data.append({"beside": kept, **asdict(claims)})
                limit = Limit(subject=f"claim beside {kept:,}, {claims.plan} plan", unit="buffers", most=BUFFERS_MAX)
                verdicts.append(Verdict(limit=limit, found=claims.buffers if claims.rows == WAITING else None))
    grounds.say("claims beside rows that an old snapshot keeps")
    async with fresh_pool(grounds) as pool, _old_snapshot(pool):
        for claims in await _both_plans(pool):
            rows.append(claims.row(f"{DEAD:,} deleted, old snapshot"))
            data.append({"beside": "dead", **asdict(claims)})
    table = f"Claims of {WAITING:,} waiting rows\n{aligned((_HEAD, *rows))}"
    return Outcome(
        text=f"{table}\n\n{guards_of(verdicts, title='Counted per claim')}", verdicts=tuple(verdicts), data=data
    )


async def _fill(pool: Pool, kept: int) -> None:
    await pool.execute(_FILL, kept, ORDER_BYTES, timeout=600)
    await publish_all(AsyncOnefold(pool, source=SOURCE), WAITING, uniform)
    await pool.execute("VACUUM (ANALYZE) onefold_outbox", timeout=600)
    carrier = Carrier(RELAY, "postgres", Settings(lease_s=3600), lambda: 0.5)
    await run_async(carrier.enter(), BrokerLane(async_database(pool), NullBroker()))


@asynccontextmanager
async def _old_snapshot(pool: Pool) -> AsyncIterator[None]:
    """Somebody has a transaction open since before the rows were relayed."""
    once = AsyncOnefold(pool, source=SOURCE)
    await publish_all(once, DEAD, uniform)
    async with pool.acquire() as connection, connection.transaction(isolation="repeatable_read"):
        await connection.fetchval("SELECT count(*) FROM orders")
        await pool.execute("DELETE FROM onefold_outbox")
        await _fill(pool, 0)
        yield


async def _both_plans(pool: Pool) -> list[_Claims]:
    async with pool.acquire() as connection:
        return [await _explained(connection, plan) for plan in ("custom", "generic")]


async def _explained(connection: Connection, plan: str) -> _Claims:
    """Claim a few times; none of it stays."""
    claim = await _claim()
    await connection.execute(f"SET plan_cache_mode = force_{plan}_plan")
    await connection.execute(f"PREPARE bench_claim AS {claim.sql}")
    values = ", ".join(f"'{value}'" if isinstance(value, str) else str(value) for value in claim.values)
    found = []
    for _ in range(REPEATS):
        transaction = connection.transaction()
        await transaction.start()
        explained = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) EXECUTE bench_claim ({values})")
        await transaction.rollback()
        told = json.loads(explained)[0]
        top = told["Plan"]
        pages = top["Shared Hit Blocks"] + top["Shared Read Blocks"]
        found.append((int(top["Actual Rows"]), int(pages), float(told["Execution Time"])))
    await connection.execute("DEALLOCATE bench_claim")
    return _Claims(
        plan=plan,
        rows=min(rows for rows, *_ in found),
        buffers=max(pages for _, pages, _ in found),
        ms=median(took for *_, took in found),
    )


async def _claim() -> Statement:
    """The statement a relay claims with."""
    limits = Limits(per_bucket=-(-WAITING // 8), rows=WAITING, data_bytes=16 * 1024 * 1024)
    flow = STATEMENTS["postgres"].claim(RELAY, 3600.0, limits)
    effect: Effect[Any] = flow.send(None)
    flow.close()
    assert isinstance(effect, Fetch)
    return effect.statement
