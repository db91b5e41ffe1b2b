"""The rows of local effects, as flows within a transaction that the caller begins and ends.

Two at once: the second waits for the first one's COMMIT at the primary key, on both databases.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from onefold._kernel.dialects import SQLITE_NOW_MS, sqlite_values
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement
from onefold._kernel.per_dialect import PerDialect
from onefold._kernel.pg_catalog import qualified


class EffectState(Enum):
    """The state of a step's effect."""

    NEW = "new"
    APPLIED = "applied"
    UNDONE = "undone"


class EffectStatements(NamedTuple):
    """The statement set of one dialect. Each returns the key of the row that it changed."""

    apply: str
    entomb: str
    look: str
    keep: str
    undo: str
    reap: str


_INSERT: Final = """
    INSERT INTO onefold_effect (key, state) VALUES ($1::text, '{state}') ON CONFLICT (key) DO NOTHING RETURNING key
"""
_COMMON: Final = {
    "apply": _INSERT.format(state="applied"),
    "entomb": _INSERT.format(state="undone"),
    "look": "SELECT state, result FROM onefold_effect WHERE key = $1::text",
    "keep": "UPDATE onefold_effect SET result = $2::text WHERE key = $1::text RETURNING key",
    "undo": """
        UPDATE onefold_effect SET state = 'undone', result = NULL WHERE key = $1::text AND state = 'applied'
        RETURNING key
    """,
}


def _reap(is_old: str) -> str:
    old = f"SELECT key FROM onefold_effect WHERE {is_old} LIMIT $2::int"
    return f"DELETE FROM onefold_effect WHERE key IN ({old}) RETURNING key"


def _postgres() -> EffectStatements:
    reap = _reap("created_at < (now() - ($1::bigint * interval '1 second'))")
    return EffectStatements(**{name: qualified(sql) for name, sql in {**_COMMON, "reap": reap}.items()})


def _sqlite() -> EffectStatements:
    reap = _reap(f"created_at_ms < {SQLITE_NOW_MS} - $1::bigint * 1000")
    return EffectStatements(**{name: sqlite_values(sql) for name, sql in {**_COMMON, "reap": reap}.items()})


STATEMENTS: Final = PerDialect(postgres=_postgres, sqlite=_sqlite)


async def claim(dialect: str, key: str) -> tuple[EffectState, str | None]:
    """Mark a step as applied in this transaction, unless it has a row; returns its state before, and its result."""
    sql = STATEMENTS[dialect]
    await _begin(dialect)
    if await Fetch(Statement(sql.apply, (key,))):
        return EffectState.NEW, None
    [(state, result)] = await Fetch(Statement(sql.look, (key,)))
    return EffectState(state), result


async def keep(dialect: str, key: str, result: str) -> None:
    """Store the result of a step with its effect."""
    await Fetch(Statement(STATEMENTS[dialect].keep, (key, result)))


async def entomb(dialect: str, key: str) -> bool:
    """Mark a step as undone in this transaction; whether it had applied, so that there is an effect to undo."""
    sql = STATEMENTS[dialect]
    await _begin(dialect)
    if await Fetch(Statement(sql.entomb, (key,))):
        return False
    return bool(await Fetch(Statement(sql.undo, (key,))))


async def forget(dialect: str, older_s: int, limit: int) -> int:
    """Delete at most `limit` older rows; how many."""
    await _begin(dialect)
    return len(await Fetch(Statement(STATEMENTS[dialect].reap, (older_s, limit))))


async def _begin(dialect: str) -> None:
    """Begin on SQLite, where a transaction begins with its user's first statement, which ours are not: without this
    they would commit by themselves. A transaction that has begun stays as it is."""
    if dialect == "sqlite":
        await Batch((Boundary.BEGIN,))
