"""What people ask of works, as statements: which are unfinished, what is recorded of one, and letting go of it."""

from __future__ import annotations

from typing import Final

from onefold._kernel.audit import AUDIT
from onefold._kernel.effects import Statement, Value
from onefold._kernel.per_dialect import PerDialect
from onefold._steps.sql.statements import Dialect

_THIS: Final = "digest = $1::bytea"


class UnfinishedStatements:
    """The statements behind `onefold keys`, of one dialect."""

    def __init__(self, d: Dialect, *, epoch_ms: str, exact: str, at: str) -> None:
        """`epoch_ms`: a moment {} in milliseconds since 1970. `exact`: as a number that loses nothing of it, the place
        of a row in the list; `at`: and back."""
        created, due, ends = (epoch_ms.format(f"{name}_at") for name in ("created", "due", "lease_ends"))
        steps = "SELECT count(*) FROM onefold_step WHERE onefold_step.digest = onefold_work.digest"
        columns = f"""
            digest, kind, operation, attempts, parked, lease_ends_at > {d.now}, {ends}, {created}, {due},
            {epoch_ms.format(d.now)}, ({steps}), ({steps} AND state = 'started'), substr(request, 1, 1),
            {exact.format("created_at")}
        """
        # Each has an index of its own, for which the plain conditions stand here: see `schema.py`.
        unfinished = f"finished_at IS NULL AND (created_at, digest) > ({at.format('$1::bigint')}, $2::bytea)"
        self._page, self._parked_page = (
            d.text(f"SELECT {columns} FROM onefold_work WHERE {which} ORDER BY created_at, digest LIMIT $3::int")
            for which in (unfinished, f"{unfinished} AND parked IS NOT NULL")
        )
        self._look = d.text(f"SELECT {columns} FROM onefold_work WHERE {_THIS} AND finished_at IS NULL")
        self._one = d.text(f"SELECT {columns} FROM onefold_work WHERE {_THIS} AND finished_at IS NULL {d.lock}")
        self._steps = d.text(f"""
            SELECT position, name, kind, state, result, {epoch_ms.format("recorded_at")} FROM onefold_step
            WHERE {_THIS} ORDER BY position
        """)
        self._forget = (
            d.text(f"DELETE FROM onefold_step WHERE {_THIS}"),
            d.text(f"DELETE FROM onefold_work WHERE {_THIS}"),
        )
        gone = f"NOT EXISTS (SELECT 1 FROM onefold_work WHERE {_THIS})"
        self._forget_idle = (
            d.text(f"DELETE FROM onefold_work WHERE {_THIS} AND lease_ends_at <= {d.now}"),
            d.text(f"DELETE FROM onefold_step WHERE {_THIS} AND {gone}"),
        )
        self._resume = d.text(
            f"UPDATE onefold_work SET parked = NULL, attempts = 0, due_at = {d.now}, lease_ends_at = {d.now} "
            f"WHERE {_THIS}"
        )
        this_step = f"{_THIS} AND position = $2::int AND state IN ('started', 'told')"
        self._outcome = d.text(
            f"UPDATE onefold_step SET state = 'told', result = $3::bytea, recorded_at = {d.now} WHERE {this_step}"
        )
        self._settle_told = d.text(f"UPDATE onefold_step SET state = 'done' WHERE {_THIS} AND state = 'told'")
        self._unmark = d.text(f"DELETE FROM onefold_step WHERE {this_step}")
        self._audit = d.text(AUDIT)

    def page(self, *, parked_only: bool, after: tuple[int, bytes], limit: int) -> Statement:
        return Statement(self._parked_page if parked_only else self._page, (*after, limit))

    def look(self, digest: bytes) -> Statement:
        return Statement(self._look, (digest,))

    def one(self, digest: bytes) -> Statement:
        """Locks it."""
        return Statement(self._one, (digest,))

    def steps(self, digest: bytes) -> Statement:
        return Statement(self._steps, (digest,))

    def forget(self, digest: bytes) -> tuple[Statement, ...]:
        return tuple(Statement(sql, (digest,)) for sql in self._forget)

    def forget_idle(self, digest: bytes) -> tuple[Statement, ...]:
        """`forget`, unless its lease runs."""
        return tuple(Statement(sql, (digest,)) for sql in self._forget_idle)

    def resume(self, digest: bytes) -> Statement:
        """Its attempts are counted anew."""
        return Statement(self._resume, (digest,))

    def outcome(self, digest: bytes, position: int, result: bytes) -> Statement:
        """What became of a call that was started, as a person tells it."""
        return Statement(self._outcome, (digest, position, result))

    def settle_told(self, digest: bytes) -> Statement:
        """What was told of calls stays as it is, whatever is told later."""
        return Statement(self._settle_told, (digest,))

    def unmark(self, digest: bytes, position: int) -> Statement:
        """A call that was started was not made."""
        return Statement(self._unmark, (digest, position))

    def audit(self, values: tuple[Value, ...]) -> Statement:
        return Statement(self._audit, values)


def _postgres() -> UnfinishedStatements:
    from onefold._steps.sql.postgres import Postgres

    return UnfinishedStatements(
        Postgres(),
        epoch_ms="(extract(epoch FROM {}) * 1000)::bigint",
        exact="(extract(epoch FROM {}) * 1000000)::bigint",
        at="('epoch'::timestamptz + ({} * interval '1 microsecond'))",
    )


def _sqlite() -> UnfinishedStatements:
    from onefold._steps.sql.sqlite import Sqlite

    return UnfinishedStatements(Sqlite(), epoch_ms="{}", exact="{}", at="{}")


STATEMENTS: Final = PerDialect(postgres=_postgres, sqlite=_sqlite)
