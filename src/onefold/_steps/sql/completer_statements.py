"""What the completer asks of a database: which work has been left for long, and what became of it."""

from __future__ import annotations

from typing import Final

from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Statement
from onefold._kernel.per_dialect import PerDialect
from onefold._steps.sql.statements import Dialect

_THIS: Final = "digest = $1::bytea"


class CompleterStatements:
    """The statements of one dialect."""

    def __init__(self, d: Dialect) -> None:
        # Selected, so that it is computed once and an index can be asked for what is due.
        now, since = f"(SELECT {d.now})", f"(SELECT {d.in_ms('$1::bigint')})"
        # Of one work at most: one statement, one row.
        self._pick = d.text(f"""
            UPDATE onefold_work SET due_at = {d.in_ms("$2::bigint")}
            WHERE digest = (
                SELECT digest FROM onefold_work
                WHERE kind = 'request' AND due_at <= {now} AND lease_ends_at <= {since}
                  AND parked IS NULL AND finished_at IS NULL AND request IS NOT NULL
                ORDER BY due_at LIMIT 1 {d.lock_free})
            RETURNING digest, operation, attempts, request
        """)
        self._find = d.text(
            f"SELECT attempts, parked, lease_ends_at > {d.now} FROM onefold_work WHERE {_THIS} {d.lock_free}"
        )
        self._is_there = d.text(f"SELECT 1 FROM onefold_work WHERE {_THIS}")
        self._postpone = d.text(
            f"UPDATE onefold_work SET attempts = $2::int, due_at = {d.in_ms('$3::bigint')} WHERE {_THIS}"
        )
        self._park = d.text(f"UPDATE onefold_work SET attempts = $2::int, parked = $3::text WHERE {_THIS}")

    def pick(self, abandoned_after_s: float, hold_s: float) -> Statement:
        """The next work whose lease ended so long ago; other completers leave it alone for `hold_s`."""
        return Statement(self._pick, (-round(abandoned_after_s * 1000), milliseconds(hold_s)))

    def find(self, digest: bytes) -> Statement:
        """Locks its attempts, why it is parked and whether its lease runs; no row where it is locked, or gone."""
        return Statement(self._find, (digest,))

    def is_there(self, digest: bytes) -> Statement:
        return Statement(self._is_there, (digest,))

    def postpone(self, digest: bytes, attempts: int, wait_s: float) -> Statement:
        return Statement(self._postpone, (digest, attempts, milliseconds(wait_s)))

    def park(self, digest: bytes, attempts: int, reason: str) -> Statement:
        return Statement(self._park, (digest, attempts, reason))


def _postgres() -> CompleterStatements:
    from onefold._steps.sql.postgres import Postgres

    return CompleterStatements(Postgres())


def _sqlite() -> CompleterStatements:
    from onefold._steps.sql.sqlite import Sqlite

    return CompleterStatements(Sqlite())


STATEMENTS: Final = PerDialect(postgres=_postgres, sqlite=_sqlite)
