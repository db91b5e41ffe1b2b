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
from typing import Final

from benchmarks.guards import Limit, Verdict
from benchmarks.messages.brokers import NullBroker
from benchmarks.messages.comparison import Grounds, Outcome
from benchmarks.messages.places import ORDER_BYTES, SOURCE, TOPIC, Connection, Pool, fresh_pool, publish_all, uniform
from benchmarks.report import aligned, guards_of
from onefold import AsyncOnefold
from onefold._kernel.effects import Statement
from onefold._kernel.executors import BrokerExecutor
from onefold._kernel.runners import run_async
from onefold._outbox.claimed_rows import START, Limits
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession
from onefold._outbox.sql.postgres_claims import PLAN_BY_INDEX, scan, tour
from onefold.db._drivers import async_database

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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Crowd:
    """A backlog of which little may go, and what a claim brings of it."""

    name: str
    tours: bool
    rows: int
    buffers_max: int
    streams: tuple[tuple[str, int | None, bool], ...]
    """The stream of each row, how many (None: as many as there are to be), and whether they are stopped."""

    def fill(self, count: int) -> list[tuple[str, int, bool]]:
        return [(stream, how_many or count, stopped) for stream, how_many, stopped in self.streams]

    def claim(self) -> Statement:
        limits = Limits(per_bucket=WAITING, rows=WAITING, data_bytes=16 * 1024 * 1024, per_stream=16, steps=WAITING)
        return tour(RELAY, 3_600_000, limits, (), START) if self.tours else scan(RELAY, 3_600_000, limits, ())


_HOT: Final = "decode(md5('hot'), 'hex')"
_OTHERS: Final = "decode(md5(n::text), 'hex')"

CROWDS: Final = (
    _Crowd(name="{:,} in one bucket", tours=False, rows=WAITING, buffers_max=4_500, streams=((_OTHERS, None, False),)),
    _Crowd(
        name="{:,} of one key before 100 others",
        tours=True,
        rows=116,
        buffers_max=1_500,
        streams=((_HOT, None, False), (_OTHERS, 100, False)),
    ),
    _Crowd(
        name="{:,} behind a stopped event",
        tours=True,
        rows=0,
        buffers_max=50,
        streams=((_HOT, 1, True), (_HOT, None, False)),
    ),
)


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
    await _measure_crowds(grounds, rows, verdicts, data)
    table = f"Claims of {WAITING:,} waiting rows\n{aligned((_HEAD, *rows))}"
    return Outcome(
        text=f"{table}\n\n{guards_of(verdicts, title='Counted per claim')}", verdicts=tuple(verdicts), data=data
    )


async def _measure_crowds(
    grounds: Grounds, rows: list[tuple[str, ...]], verdicts: list[Verdict], data: list[dict[str, object]]
) -> None:
    """A backlog in one bucket, a hot key and a stopped one: after ANALYZE, which sees little else."""
    count = grounds.effort.kept[-1]
    for crowd in CROWDS:
        grounds.say(f"claims, {crowd.name.format(count)}")
        async with fresh_pool(grounds) as pool:
            await _enter(pool)
            for stream, how_many, stopped in crowd.fill(count):
                await pool.execute(_crowd(stream, stopped=stopped), how_many, ORDER_BYTES, timeout=600)
            await pool.execute("VACUUM (ANALYZE) onefold_outbox", timeout=600)
            async with pool.acquire() as connection:
                for plan in ("custom", "generic"):
                    claims = await explained(
                        connection, plan, crowd.claim(), first=PLAN_BY_INDEX if crowd.tours else None
                    )
                    rows.append(claims.row(crowd.name.format(count)))
                    data.append({"beside": crowd.name.format(count), **asdict(claims)})
                    limit = Limit(
                        subject=f"{crowd.name.format(count)}, {plan} plan", unit="buffers", most=crowd.buffers_max
                    )
                    found = claims.buffers if claims.rows == crowd.rows else None
                    verdicts.append(Verdict(limit=limit, found=found))


def _crowd(stream: str, *, stopped: bool) -> str:
    into, _, values = _FILL.partition("SELECT n % 64, decode(md5(n::text), 'hex')")
    due = "'infinity'" if stopped else "NULL"
    return (
        into.replace("published_at)", "due_at)")
        + f"SELECT 7, {stream}"
        + values.replace("now()", f"{due}::timestamptz")
    )


async def _fill(pool: Pool, kept: int) -> None:
    await pool.execute(_FILL, kept, ORDER_BYTES, timeout=600)
    await publish_all(AsyncOnefold(pool, source=SOURCE), WAITING, uniform)
    await pool.execute("VACUUM (ANALYZE) onefold_outbox", timeout=600)
    await _enter(pool)


async def _enter(pool: Pool) -> None:
    session = RelaySession(RELAY, "postgres", RelayConfig(lease_s=3600), lambda: 0.5)
    await run_async(session.enter(), BrokerExecutor(async_database(pool), NullBroker()))


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
    return await explained(connection, plan, await _claim())


async def explained(connection: Connection, plan: str, claim: Statement, *, first: Statement | None = None) -> _Claims:
    """Claim a few times, after what goes first in its transaction; none of it stays."""
    await connection.execute(f"SET plan_cache_mode = force_{plan}_plan")
    await connection.execute(f"PREPARE bench_claim AS {claim.sql}")
    values = ", ".join(map(_said, claim.values))
    found = []
    for _ in range(REPEATS):
        transaction = connection.transaction()
        await transaction.start()
        if first is not None:
            await connection.execute(first.sql)
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


def _said(value: object) -> str:
    if isinstance(value, bytes):
        return f"'\\x{value.hex()}'"
    return f"'{value}'" if isinstance(value, str) else str(value)


async def _claim() -> Statement:
    """The statement a relay claims with."""
    limits = Limits(
        per_bucket=-(-WAITING // 8), rows=WAITING, data_bytes=16 * 1024 * 1024, per_stream=16, steps=WAITING
    )
    return scan(RELAY, 3_600_000, limits, ())
