"""The statements of the journal, written once in the SQL of Postgres; a dialect overrides those that differ."""

from __future__ import annotations

from typing import Protocol

from onefold._kernel.effects import Statement


class Dialect(Protocol):
    """See `postgres.py` for what each is."""

    @property
    def now(self) -> str: ...
    @property
    def lock_free(self) -> str: ...
    @property
    def durable(self) -> tuple[Statement, ...]: ...
    @property
    def light(self) -> tuple[Statement, ...]: ...
    @property
    def waits_in_statements(self) -> bool: ...

    def limit_lock_waits(self, seconds: float) -> tuple[Statement, ...]: ...
    def text(self, sql: str) -> str: ...
    def ago(self, ms: str) -> str: ...
    def age_ms(self, moment: str) -> str: ...
    def epoch_ms(self, moment: str) -> str: ...


_THIS = "intent = $1::text"
_UNRESOLVED = "resolved_at IS NULL"


class Statements:
    """The statement set of one dialect."""

    def __init__(self, d: Dialect) -> None:
        #: What follows BEGIN, so that COMMIT is flushed; and BEGIN_LIGHT, so that it need not be.
        self.durable = d.durable
        self.light = d.light
        #: Whether a statement may wait for a lock for as long as it likes; `limit_lock_waits` then says how long.
        self.waits_in_statements = d.waits_in_statements
        self.limit_lock_waits = d.limit_lock_waits
        self._build_claims(d)
        self._build_ends(d)
        self._build_queries(d)

    def _build_claims(self, d: Dialect) -> None:
        old = f"{_THIS} AND resolved_at < {d.ago('$2::bigint')}"
        self._forget_old = d.text(f"DELETE FROM onefold_intent WHERE {old}")
        self._insert = d.text(
            "INSERT INTO onefold_intent (intent, key, fingerprint, target) "
            "VALUES ($1::text, $2::text, $3::bytea, $4::text) ON CONFLICT (intent) DO NOTHING"
        )
        self._look = d.text(
            f"SELECT key, fingerprint, target, {d.age_ms('created_at')}, status FROM onefold_intent WHERE {_THIS}"
        )
        self._bind = d.text(f"UPDATE onefold_intent SET fingerprint = $2::bytea, target = $3::text WHERE {_THIS}")
        self._count_try = d.text(f"UPDATE onefold_intent SET tries = tries + 1, tried_at = {d.now} WHERE {_THIS}")

    def _build_ends(self, d: Dialect) -> None:
        # The first answer is the one that counts: a replay of it makes the key no younger.
        self._resolve = d.text(
            f"UPDATE onefold_intent SET status = $2::integer, resolved_at = {d.now}, reason = NULL "
            f"WHERE {_THIS} AND {_UNRESOLVED}"
        )
        self._leave = d.text(f"UPDATE onefold_intent SET reason = $2::text WHERE {_THIS} AND {_UNRESOLVED}")
        self._sweep = d.text(
            "DELETE FROM onefold_intent WHERE position IN ("
            f"SELECT position FROM onefold_intent WHERE resolved_at < {d.ago('$1::bigint')} "
            f"ORDER BY resolved_at LIMIT $2::bigint {d.lock_free})"
        )
        self._forget = d.text(f"DELETE FROM onefold_intent WHERE {_THIS}")

    def _build_queries(self, d: Dialect) -> None:
        columns = (
            "position, intent, key, target, tries, reason, status, "
            f"{d.age_ms('created_at')}, {d.epoch_ms('created_at')}, {d.epoch_ms('resolved_at')}"
        )
        self._one = d.text(f"SELECT {columns} FROM onefold_intent WHERE {_THIS}")
        page = "position > $1::bigint ORDER BY position LIMIT $2::bigint"
        self._list_page = {
            unresolved_only: d.text(
                f"SELECT {columns} FROM onefold_intent WHERE {f'{_UNRESOLVED} AND' if unresolved_only else ''} {page}"
            )
            for unresolved_only in (False, True)
        }
        counted = "SELECT count(*) FROM (SELECT 1 FROM onefold_intent WHERE resolved_at IS {} LIMIT $1::bigint) AS seen"
        self._counts = d.text(
            f"SELECT ({counted.format('NULL')}), ({counted.format('NOT NULL')}), "
            f"(SELECT {d.age_ms('created_at')} FROM onefold_intent WHERE {_UNRESOLVED} ORDER BY position LIMIT 1)"
        )

    def forget_old(self, intent: str, retention_ms: int) -> Statement:
        """Free the name, if its call was answered longer ago than the server remembers it."""
        return Statement(self._forget_old, (intent, retention_ms))

    def insert(self, intent: str, key: str, fingerprint: bytes, target: str) -> Statement:
        """One row is written where the intent is new, none where it is known."""
        return Statement(self._insert, (intent, key, fingerprint, target))

    def look(self, intent: str) -> Statement:
        return Statement(self._look, (intent,))

    def bind(self, intent: str, fingerprint: bytes, target: str) -> Statement:
        """What the intent names, where it was claimed ahead of its call."""
        return Statement(self._bind, (intent, fingerprint, target))

    def count_try(self, intent: str) -> Statement:
        return Statement(self._count_try, (intent,))

    def resolve(self, intent: str, status: int) -> Statement:
        return Statement(self._resolve, (intent, status))

    def leave(self, intent: str, reason: str) -> Statement:
        return Statement(self._leave, (intent, reason))

    def sweep(self, retention_ms: int, limit: int) -> Statement:
        """Delete rows that were resolved longer ago than that; unresolved ones are not for this."""
        return Statement(self._sweep, (retention_ms, limit))

    def forget(self, intent: str) -> Statement:
        return Statement(self._forget, (intent,))

    def one(self, intent: str) -> Statement:
        return Statement(self._one, (intent,))

    def list_page(self, limit: int, after: int | None, *, unresolved_only: bool) -> Statement:
        return Statement(self._list_page[unresolved_only], (after or 0, limit))

    def counts(self, counted_max: int) -> Statement:
        """How many are unresolved and resolved, counted so far; and the age of the oldest unresolved."""
        return Statement(self._counts, (counted_max,))
