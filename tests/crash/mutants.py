"""Statement sets with a planted bug: what the campaigns have to find before their silence means anything."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from onefold._kernel.dialects import SQLITE_NOW_MS
from onefold._kernel.effects import Statement
from onefold.idempotency.model import Answer, Ask
from onefold.idempotency.sql import postgres, sqlite


def mutant(statements: Any, **planted: Any) -> Any:
    """The statement set of a module, with some of its statements replaced."""
    return SimpleNamespace(**{**vars(statements), **planted})


def _changed(statement: Statement, old: str, new: str) -> Statement:
    assert old in statement.sql, f"the statement has no {old!r} to be mutated any more"
    return Statement(statement.sql.replace(old, new), statement.values)


def _unfenced_settle(ask: Ask, fence: int, answer: Answer) -> Statement:
    return _changed(sqlite.settle(ask, fence, answer), "AND fence = ?2", "AND ?2 IS NOT NULL")


def _overwriting_settle(ask: Ask, fence: int, answer: Answer) -> Statement:
    """The last writer wins, as in a cache: neither the claim nor the record's primary key stands in the way."""
    settle = sqlite.settle(ask, fence, answer)
    settle = _changed(settle, f"CASE WHEN expires_at_ms <= {SQLITE_NOW_MS} THEN excluded.status END", "excluded.status")
    return _changed(settle, "(SELECT digest FROM onefold_claim WHERE digest = ?1 AND fence = ?2)", "?1")


def _careless_settle(ask: Ask, answer: Answer) -> Statement:
    settle = postgres.settle(ask, answer)
    return Statement(f"{settle.sql} ON CONFLICT DO NOTHING", settle.values)


def _unlocked(ask: Ask) -> Statement:
    """Every request believes that it holds both locks."""
    lock = _changed(postgres.lock(ask), "WHEN NOT pg_try_advisory_xact_lock($2::bigint)", "WHEN $2::bigint IS NULL")
    return _changed(lock, "WHEN NOT pg_try_advisory_xact_lock($3::bigint)", "WHEN $3::bigint IS NULL")


def _shortened(answer: Answer) -> Answer:
    return answer._replace(body=answer.body and answer.body[:-1])


#: A late holder settles by the claim of the one who took over. The record's primary key still prevents the worst.
UNFENCED = mutant(sqlite, settle=_unfenced_settle)

#: A late holder settles, whatever anybody else did.
OVERWRITING = mutant(sqlite, settle=_overwriting_settle)

#: What is stored is not what was answered.
SHORTENED_SQLITE = mutant(sqlite, settle=lambda ask, fence, answer: sqlite.settle(ask, fence, _shortened(answer)))
SHORTENED_POSTGRES = mutant(postgres, settle=lambda ask, answer: postgres.settle(ask, _shortened(answer)))

#: Nobody is refused a lock. What is left is the record's primary key.
UNLOCKED = mutant(postgres, lock=_unlocked)

#: Nobody is refused a lock, and nobody breaks on the record.
UNGUARDED = mutant(postgres, lock=_unlocked, settle=_careless_settle)
