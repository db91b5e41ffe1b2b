"""The statements of recorded steps, written once in Postgres' SQL; a dialect states its differences.

Every write for a work is fenced. Where the fence is another's, `record` and `guard` insert NULL into a column that
refuses it: the batch ends before COMMIT, in the round trip that would have written.
"""

from __future__ import annotations

from typing import Protocol

from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import BatchItem, Statement
from onefold._steps.model import Held, RecordedStep, WorkAsk
from onefold._steps.sql.renewals import Renewals


class Dialect(Protocol):
    """See `postgres.py` for what each is."""

    @property
    def now(self) -> str: ...
    @property
    def lock(self) -> str: ...
    @property
    def lock_free(self) -> str: ...
    @property
    def light(self) -> tuple[Statement, ...]: ...
    @property
    def proof(self) -> tuple[BatchItem, ...]: ...

    def opening(self, lease_s: float) -> tuple[Statement, ...]: ...
    def wait_for_key(self, lock: int) -> tuple[Statement, ...]: ...
    def text(self, sql: str) -> str: ...
    def in_ms(self, ms: str) -> str: ...
    def ms_until(self, moment: str) -> str: ...


_OURS = "digest = $1::bytea AND fence = $2::bigint"


class Statements:
    """The statement set of one dialect."""

    def __init__(self, d: Dialect) -> None:
        self._d = d
        self._cache: dict[tuple[str, int], str] = {}
        self.light = d.light
        self.proof = d.proof
        self.opening = d.opening
        self.wait_for_key = d.wait_for_key
        self.renewals = Renewals(d)
        self._prepare_claims(d)
        self._prepare_ends(d)

    # --- claims ------------------------------------------------------------------------------------------

    def _prepare_claims(self, d: Dialect) -> None:
        columns = "digest, kind, operation, fingerprint, fence, attempts, request, lease_ends_at, expires_at"
        self._insert = f"""
            INSERT INTO onefold_work ({columns}, created_at, due_at)
            VALUES ({{digest}}, $2::text, $3::text, $4::bytea, $5::bigint, 1, $6::bytea,
                    {d.in_ms("$7::bigint")}, {d.in_ms("$8::bigint")}, {d.now}, {d.now})
        """
        self._find = f"""
            SELECT digest, fingerprint, fence, attempts, parked, {d.ms_until("lease_ends_at")},
                   finished_at IS NOT NULL, result
            FROM onefold_work WHERE digest IN ({{names}}) {d.lock_free}
        """
        self._seen = "SELECT 1 FROM onefold_work WHERE digest IN ({names}) LIMIT 1"
        self._take = d.text(f"""
            UPDATE onefold_work
            SET fence = fence + 1, attempts = attempts + 1, lease_ends_at = {d.in_ms("$3::bigint")},
                due_at = {d.now}
            WHERE {_OURS}
        """)
        self._steps = d.text(
            "SELECT position, name, kind, state, result FROM onefold_step WHERE digest = $1::bytea ORDER BY position"
        )

    def insert(self, ask: WorkAsk, fence: int) -> Statement:
        """Claim a work that is new. Refused (UniqueViolated, RequiredValueMissing) where one of its names is there."""
        values = (
            ask.digest, ask.kind, ask.operation, ask.fingerprint, fence, ask.request,
            milliseconds(ask.lease_s), milliseconds(ask.retention_s),
        )  # fmt: skip
        return Statement(self._inserting(len(ask.earlier)), (*values, *ask.earlier))

    def find(self, ask: WorkAsk) -> Statement:
        """Locks and reads the work under any of its names, but for one that is locked already."""
        return Statement(self._for_names(self._find, len(ask.names)), ask.names)

    def seen(self, ask: WorkAsk) -> Statement:
        """One row if the work is there, locked or not."""
        return Statement(self._for_names(self._seen, len(ask.names)), ask.names)

    def take(self, digest: bytes, fence: int, lease_s: float) -> Statement:
        """Take over a work that was found with this fence, and is locked: the fence is one higher then."""
        return Statement(self._take, (digest, fence, milliseconds(lease_s)))

    def steps(self, digest: bytes) -> Statement:
        return Statement(self._steps, (digest,))

    def _inserting(self, earlier: int) -> str:
        digest = "$1::bytea"
        if earlier:
            taken = "EXISTS (SELECT 1 FROM onefold_work WHERE digest IN ({names}))"
            digest = f"CASE WHEN NOT {taken} THEN {digest} END"
        return self._for_names(self._insert.replace("{digest}", digest), earlier, first=9)

    def _for_names(self, sql: str, names: int, *, first: int = 1) -> str:
        """The statement for so many names. There are few kinds, and each is made once."""
        if (sql, names) not in self._cache:
            values = ", ".join(f"${number}::bytea" for number in range(first, first + names))
            self._cache[sql, names] = self._d.text(sql.replace("{names}", values))
        return self._cache[sql, names]

    # --- writes under the fence --------------------------------------------------------------------------

    def _prepare_ends(self, d: Dialect) -> None:
        self._lock = d.text(f"SELECT 1 FROM onefold_work WHERE {_OURS} {d.lock}")
        self._lock_free = d.text(
            f"SELECT fence, finished_at IS NOT NULL FROM onefold_work WHERE digest = $1::bytea {d.lock_free}"
        )
        self._guard = d.text(f"""
            INSERT INTO onefold_step (digest, position, name, kind, state, recorded_at)
            SELECT NULL, 0, '', '', '', {d.now} WHERE NOT EXISTS (SELECT 1 FROM onefold_work WHERE {_OURS})
        """)
        self._renew = d.text(f"UPDATE onefold_work SET lease_ends_at = {d.in_ms('$3::bigint')} WHERE {_OURS}")
        record = f"""
            INSERT INTO onefold_step (digest, position, name, kind, state, result, recorded_at)
            VALUES ((SELECT digest FROM onefold_work WHERE {_OURS}),
                    $3::int, $4::text, $5::text, $6::text, $7::bytea, {d.now})
        """
        self._record = {
            "phase": d.text(record),
            # The mark that it was started may be there, or the very same record, whose COMMIT was not answered.
            "call": d.text(f"""
                {record}
                ON CONFLICT (digest, position) DO UPDATE
                SET state = excluded.state, result = excluded.result, recorded_at = excluded.recorded_at
            """),
        }
        self._forget_steps = d.text("DELETE FROM onefold_step WHERE digest = $1::bytea")
        self._forget = d.text(f"DELETE FROM onefold_work WHERE {_OURS}")
        self._finish = d.text(f"""
            UPDATE onefold_work SET finished_at = {d.now}, result = $3::bytea, expires_at = {d.in_ms("$4::bigint")},
                   lease_ends_at = {d.now}
            WHERE {_OURS}
        """)
        nothing_recorded = "NOT EXISTS (SELECT 1 FROM onefold_step WHERE digest = $1::bytea)"
        self._forget_unbegun = d.text(
            f"DELETE FROM onefold_work WHERE {_OURS} AND finished_at IS NULL AND {nothing_recorded}"
        )
        self._give_back = d.text(
            f"UPDATE onefold_work SET lease_ends_at = {d.now}, attempts = attempts - $3::int WHERE {_OURS}"
        )
        self._park = d.text(f"UPDATE onefold_work SET parked = $3::text, lease_ends_at = {d.now} WHERE {_OURS}")
        self._status = d.text(f"""
            SELECT parked IS NOT NULL, lease_ends_at > {d.now} FROM onefold_work
            WHERE digest = $1::bytea AND finished_at IS NULL
        """)
        recorded = "EXISTS (SELECT 1 FROM onefold_step WHERE onefold_step.digest = onefold_work.digest)"
        self._expired = d.text(f"""
            SELECT digest, fence FROM onefold_work
            WHERE expires_at <= {d.now} AND lease_ends_at <= {d.now} AND parked IS NULL
              AND (finished_at IS NOT NULL OR NOT {recorded})
            ORDER BY expires_at LIMIT $1::int {d.lock_free}
        """)

    def lock(self, held: Held) -> Statement:
        """One row: the work is ours, and stays so until the transaction ends."""
        return Statement(self._lock, (held.digest, held.fence))

    def look(self, held: Held) -> Statement:
        """Fence, and whether the work is finished, if the row is not locked by another transaction (one of ours that
        was lost, perhaps)."""
        return Statement(self._lock_free, (held.digest,))

    def guard(self, held: Held) -> Statement:
        """Refused (RequiredValueMissing) where the work is not ours."""
        return Statement(self._guard, (held.digest, held.fence))

    def renew(self, held: Held) -> Statement:
        return Statement(self._renew, (held.digest, held.fence, milliseconds(held.lease_s)))

    def record(self, held: Held, step: RecordedStep) -> Statement:
        """Refused (RequiredValueMissing) where the work is not ours."""
        return Statement(self._record[step.kind], (held.digest, held.fence, *step))

    def forget(self, held: Held) -> tuple[Statement, ...]:
        """The work is done, and something else remembers that. Refused where it is not ours."""
        return (self.guard(held), *self.delete(held.digest, held.fence))

    def delete(self, digest: bytes, fence: int) -> tuple[Statement, ...]:
        """Delete a work that is locked."""
        return (Statement(self._forget_steps, (digest,)), Statement(self._forget, (digest, fence)))

    def finish(self, held: Held, result: bytes | None, retention_s: float) -> tuple[Statement, ...]:
        """The work is done, and its steps are remembered. Refused where it is not ours."""
        values = (held.digest, held.fence, result, milliseconds(retention_s))
        return (self.guard(held), Statement(self._finish, values))

    def give_back(self, held: Held, *, tried: bool = True) -> tuple[Statement, ...]:
        """End the lease; a work of which nothing can have happened is forgotten. Where it is not ours, nothing is
        changed. An attempt that was turned away before it began (`tried` false) does not count."""
        # Locked first: a phase may be in its COMMIT, whose connection was given up. A statement that has waited for it
        # sees what it saw before, and would not find its step.
        ours = (held.digest, held.fence)
        give_back = Statement(self._give_back, (*ours, 0 if tried else 1))
        forget = () if held.may_have_called else (Statement(self._forget_unbegun, ours),)
        return (self.lock(held), *forget, give_back)

    def park(self, held: Held, reason: str) -> Statement:
        return Statement(self._park, (held.digest, held.fence, reason))

    def status(self, digest: bytes) -> Statement:
        """Whether it is parked, whether its lease runs; no row: there is no such work, or it is finished."""
        return Statement(self._status, (digest,))

    def expired(self, limit: int) -> Statement:
        """Locks digest and fence of what is finished and past its retention, and of what was begun and left without a
        step: a call of it that raised may have happened, and its key is as old as one that is forgotten. A work with
        steps that is not finished is never forgotten by itself: something of it has happened."""
        return Statement(self._expired, (limit,))
