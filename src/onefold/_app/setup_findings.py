"""Findings about the set-up of a database, as far as onefold depends on it: each with what to change and why. Findings
about what happens in it are in `health_findings`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Final

from onefold._app.health_findings import HealthFinding
from onefold._app.migrations import MIGRATIONS
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Fetch, Row, Statement

#: Reaping runs every few minutes; a record that expired so long ago is one that is never reaped.
UNREAPED_S: Final = 3600
CLOCK_SKEW_S_MAX: Final = 2.0
CONNECTIONS_SHARE_MAX: Final = 0.8
#: One that serves and one that takes its place.
PROCESSES_MIN: Final = 2
#: Fewer dead rows than this are no matter, whatever their share.
DEAD_ROWS_MIN: Final = 50_000
#: Clients of onefold retry for half a minute by themselves; journals, queues and people retry for hours.
RETENTION_S_MIN: Final = 3600.0
_POOLER_LOOKS: Final = 5

_INDEX: Final = re.compile(r"(CREATE|DROP) (?:UNIQUE )?INDEX (?:IF (?:NOT )?EXISTS )?(onefold_\w+)")

#: Every function and operator is named with its schema, as `pg_catalog.qualified` has it for those that it knows: an
#: administrator runs this, whose search path may lead into schemas where others create.
_OURS: Final = "pg_catalog.starts_with(relname::pg_catalog.text, 'onefold_')"
_INDEXES: Final = {
    "postgres": (
        "SELECT relname::pg_catalog.text, indisvalid FROM pg_catalog.pg_class JOIN pg_catalog.pg_index"
        " ON indexrelid OPERATOR(pg_catalog.=) pg_class.oid"
        f" WHERE {_OURS} AND pg_catalog.pg_table_is_visible(pg_class.oid)"
    ),
    "sqlite": "SELECT name, 1 FROM sqlite_master WHERE type = 'index' AND name LIKE 'onefold%'",
}
_UNREAPED: Final = {
    "postgres": (
        "SELECT 1 FROM onefold_record WHERE expires_at OPERATOR(pg_catalog.<)"
        f" (pg_catalog.now() OPERATOR(pg_catalog.-) '{UNREAPED_S} seconds'::pg_catalog.interval) LIMIT 1"
    ),
    "sqlite": (
        "SELECT 1 FROM onefold_record"
        f" WHERE expires_at_ms < (julianday('now') - 2440587.5) * 86400000 - {UNREAPED_S * 1000} LIMIT 1"
    ),
}
_SETTINGS: Final = (
    "SELECT pg_catalog.current_setting('autovacuum'), pg_catalog.current_setting('fsync'),"
    " pg_catalog.current_setting('synchronous_commit')"
)
_TABLES_WITHOUT_VACUUM: Final = (
    f"SELECT relname::pg_catalog.text FROM pg_catalog.pg_class WHERE {_OURS} AND pg_catalog.pg_table_is_visible(oid)"
    " AND pg_catalog.array_position(reloptions, 'autovacuum_enabled=false'::pg_catalog.text) IS NOT NULL ORDER BY 1"
)
_DEAD_ROWS: Final = (
    f"SELECT relname::pg_catalog.text, n_dead_tup FROM pg_catalog.pg_stat_user_tables WHERE {_OURS}"
    f" AND n_dead_tup OPERATOR(pg_catalog.>) {DEAD_ROWS_MIN} AND n_dead_tup OPERATOR(pg_catalog.>) n_live_tup"
    " ORDER BY n_dead_tup DESC LIMIT 5"
)
_CLOCK: Final = "SELECT pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())"
_CONNECTIONS: Final = (
    "SELECT pg_catalog.count(1)::pg_catalog.int4, pg_catalog.current_setting('max_connections')::pg_catalog.int4"
    " FROM pg_catalog.pg_stat_activity WHERE backend_type OPERATOR(pg_catalog.=) 'client backend'"
)
_BACKEND: Final = "SELECT pg_catalog.pg_backend_pid()"


async def check_setup(dialect: str, *, now_s: float) -> list[HealthFinding]:
    """All findings. `now_s` is the wall clock of the machine that runs the check."""
    findings = [await check_indexes(dialect), await check_reaping(dialect)]
    if dialect == "postgres":
        findings += [
            await check_durability(),
            await check_autovacuum(),
            await check_clock(now_s),
            await check_connections(),
            await check_pooler(),
        ]
    return findings


def expected_indexes(dialect: str) -> set[str]:
    """The indexes that the migrations create, in their order, and do not drop again."""
    indexes: set[str] = set()
    for version in sorted(MIGRATIONS[dialect]):
        for text in MIGRATIONS[dialect][version]:
            for verb, name in _INDEX.findall(text):
                indexes = indexes | {name} if verb == "CREATE" else indexes - {name}
    return indexes


async def check_indexes(dialect: str) -> HealthFinding:
    indexes = {name: bool(valid) for name, valid in await _fetch(_INDEXES[dialect])}
    lacking = sorted(expected_indexes(dialect) - indexes.keys())
    if lacking:
        return HealthFinding(
            "Indexes",
            "bad",
            f"Missing: {', '.join(lacking)}. Claims and deletions read whole tables.",
            "Make them again: onefold migrate --print has their statements.",
        )
    if broken := sorted(name for name, valid in indexes.items() if not valid):
        return HealthFinding(
            "Indexes",
            "bad",
            f"Invalid, and used by no query: {', '.join(broken)}.",
            f"REINDEX INDEX CONCURRENTLY {broken[0]};",
        )
    return HealthFinding("Indexes", "good", "All are there.")


async def check_reaping(dialect: str) -> HealthFinding:
    if await _fetch(_UNREAPED[dialect]):
        return HealthFinding(
            "Reaping",
            "warn",
            "Records that expired more than an hour ago are still there: no process deletes them, and the table grows.",
            "Run onefold reap from cron, once.reaping() in the application, or onefold reap --print-cron.",
        )
    return HealthFinding("Reaping", "good", "Nothing expired is left over.")


async def check_durability() -> HealthFinding:
    [(_, fsync, commit)] = await _fetch(_SETTINGS)
    if fsync != "on":
        return HealthFinding(
            "Durability",
            "bad",
            "fsync is off: a power cut loses commits that were answered.",
            "Set fsync = on.",
        )
    if commit == "off":
        text = "synchronous_commit is off: a crash loses the last commits, although they were answered."
        return HealthFinding("Durability", "bad", text, "Set synchronous_commit = on for the application's role.")
    return HealthFinding("Durability", "good", f"fsync is on, synchronous_commit is {commit}.")


async def check_autovacuum() -> HealthFinding:
    [(autovacuum, _, _)] = await _fetch(_SETTINGS)
    if autovacuum != "on":
        text = "It is off: deleted records and published events stay on disk, and every claim reads past them."
        return HealthFinding("Autovacuum", "bad", text, "Set autovacuum = on.")
    if tables := [name for (name,) in await _fetch(_TABLES_WITHOUT_VACUUM)]:
        text = f"It is off for {', '.join(tables)}, whose deleted rows stay on disk."
        return HealthFinding("Autovacuum", "bad", text, f"ALTER TABLE {tables[0]} RESET (autovacuum_enabled);")
    if dead := await _fetch(_DEAD_ROWS):
        text = "; ".join(f"{name} has {count} dead rows, more than live ones" for name, count in dead)
        return HealthFinding(
            "Autovacuum",
            "warn",
            f"It does not keep up: {text}.",
            "End transactions that stay open (pg_stat_activity.xact_start), then lower "
            f"autovacuum_vacuum_scale_factor for {dead[0][0]}.",
        )
    return HealthFinding("Autovacuum", "good", "It is on, and keeps up.")


async def check_clock(now_s: float) -> HealthFinding:
    [(database_s,)] = await _fetch(_CLOCK)
    skew_s = now_s - float(database_s)
    if abs(skew_s) > CLOCK_SKEW_S_MAX:
        return HealthFinding(
            "Clock",
            "warn",
            f"This machine is {abs(skew_s):.1f} s {'ahead of' if skew_s > 0 else 'behind'} the database: the times of "
            'events, delays and keys with expiry="refuse" are off by that.',
            "Have both keep time by NTP.",
        )
    return HealthFinding("Clock", "good", f"It differs from the database's by less than {CLOCK_SKEW_S_MAX:g} s.")


async def check_connections() -> HealthFinding:
    [(used, connections_max)] = await _fetch(_CONNECTIONS)
    if used > connections_max * CONNECTIONS_SHARE_MAX:
        return HealthFinding(
            "Connections",
            "warn",
            f"{used} of {connections_max} are taken: the next process gets none, and its requests 503.",
            "Lower the sizes of the pools (processes x pool size < max_connections), or put PgBouncer between.",
        )
    return HealthFinding("Connections", "good", f"{used} of {connections_max} are taken.")


async def check_pool(size: int) -> HealthFinding:
    """Of the application's own process, which opens at most so many."""
    [(_, connections_max)] = await _fetch(_CONNECTIONS)
    fit = int(connections_max * CONNECTIONS_SHARE_MAX) // size
    fitting = "1 such process fits" if fit == 1 else f"{fit} such processes fit"
    text = f"A process opens up to {size} connections; the server takes {connections_max}"
    if fit < PROCESSES_MIN:
        return HealthFinding(
            "Pool",
            "warn",
            f"{text}: {fitting}, and a rolling deploy has twice as many.",
            "Lower the size of the pool, raise max_connections, or put PgBouncer between.",
        )
    return HealthFinding("Pool", "good", f"{text}: {fitting}.")


async def check_pooler() -> HealthFinding:
    async def read_backends() -> set[Any]:
        return {(await Fetch(Statement(_BACKEND)))[0][0] for _ in range(_POOLER_LOOKS)}

    if len(await with_connection(read_backends)) > 1:
        return HealthFinding(
            "Pooler",
            "warn",
            "One connection reaches several sessions of the server (PgBouncer with pool_mode = transaction): NOTIFY is "
            "not received through it, so that relays and consumers poll ten times a second.",
            "Give relays and consumers the server's own address. Pools of the application: statement_cache_size=0 "
            "(asyncpg), prepare_threshold=None (psycopg).",
        )
    text = "None is seen: one connection reached one session. A PgBouncer without other clients looks the same."
    return HealthFinding("Pooler", "good", text)


def check_retention(retentions: Iterable[tuple[str, float]]) -> HealthFinding:
    """Of each operation, how long its answers are kept."""
    short = [f"{operation} ({seconds:g} s)" for operation, seconds in sorted(retentions) if seconds < RETENTION_S_MIN]
    if short:
        return HealthFinding(
            "Retention",
            "warn",
            f"Answers are kept for less than an hour: {', '.join(short)}. A client that retries later (from a "
            "journal, a queue, by hand) runs them again.",
            'Raise retention_s above the longest retry, or refuse late ones: expiry="refuse".',
        )
    return HealthFinding("Retention", "good", "Answers are kept for an hour or longer.")


async def _fetch(sql: str) -> list[Row]:
    async def work() -> list[Row]:
        return await Fetch(Statement(sql))

    return await with_connection(work)
