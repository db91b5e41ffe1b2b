"""Statement sets with a planted bug: what the campaigns have to find before their silence means anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from onefold._idempotency.model import Answer, Ask
from onefold._idempotency.sql import postgres, sqlite
from onefold._kernel.dialects import SQLITE_NOW_MS
from onefold._kernel.effects import Statement

_TRY_LOCK = "pg_catalog.pg_try_advisory_xact_lock"


def mutant(statements: Any, **planted: Any) -> Any:
    """The statement set of a module, with some of its statements replaced."""
    return SimpleNamespace(**{**vars(statements), **planted})


def _changed(statement: Statement, old: str, new: str) -> Statement:
    assert old in statement.sql, f"the statement has no {old!r} to be mutated any more"
    return Statement(statement.sql.replace(old, new), statement.values)


def _overwriting_settle(ask: Ask, answer: Answer) -> Statement:
    """The last writer wins, as in a cache: the record's primary key does not stand in the way."""
    settle = sqlite.settle(ask, answer)
    return _changed(settle, f"CASE WHEN expires_at_ms <= {SQLITE_NOW_MS} THEN excluded.status END", "excluded.status")


def _careless_settle(ask: Ask, answer: Answer) -> Statement:
    settle = postgres.settle(ask, answer)
    return Statement(f"{settle.sql} ON CONFLICT DO NOTHING", settle.values)


def _unlocked(ask: Ask) -> Statement:
    """Every request believes that it holds all locks."""
    lock = postgres.lock(ask)
    for number in range(2, len(lock.values) + 1):
        lock = _changed(lock, f"WHEN NOT {_TRY_LOCK}(${number}::bigint)", f"WHEN ${number}::bigint IS NULL")
    return lock


def _unlocked_sqlite(ask: Ask) -> Statement:
    return _changed(sqlite.lock(ask), "onefold_lock", "max")


def _shortened(answer: Answer) -> Answer:
    return answer._replace(body=answer.body and answer.body[:-1])


#: Whoever has lost its locks settles, whatever anybody else did.
OVERWRITING = mutant(sqlite, settle=_overwriting_settle)

#: What is stored is not what was answered.
SHORTENED_SQLITE = mutant(sqlite, settle=lambda ask, answer: sqlite.settle(ask, _shortened(answer)))
SHORTENED_POSTGRES = mutant(postgres, settle=lambda ask, answer: postgres.settle(ask, _shortened(answer)))

#: Nobody is refused a lock. What is left is the record's primary key.
UNLOCKED = {"postgres": mutant(postgres, lock=_unlocked), "sqlite": mutant(sqlite, lock=_unlocked_sqlite)}

#: Nobody is refused a lock, and nobody breaks on the record.
UNGUARDED = {
    "postgres": mutant(postgres, lock=_unlocked, settle=_careless_settle),
    "sqlite": mutant(sqlite, lock=_unlocked_sqlite, settle=_overwriting_settle),
}
