"""Recorded steps on Postgres, in which the common statements are written.

`now` is the clock, not the beginning of the transaction: a lease that a long phase renews counts from the phase's end.
"""

from __future__ import annotations

from onefold._kernel.dialects import POSTGRES_PROOF, postgres_lease
from onefold._kernel.effects import BatchItem, Statement
from onefold._kernel.pg_catalog import qualified

#: A power cut may lose little: the claim of a work without records, or the end of a lease. A later commit that waits
#: for the disk flushes earlier ones, too. Where the first step is a call that was made in that very moment, only the
#: client's retry goes on with it, under the same key; the completer does not know of it.
_UNFLUSHED = Statement(qualified("SELECT set_config('synchronous_commit', 'off', true)"))

_KEY_LOCK = qualified("SELECT pg_advisory_xact_lock($1::bigint)")


class Postgres:
    """The dialect of Postgres."""

    now = "clock_timestamp()"
    lock = "FOR UPDATE"
    lock_free = "FOR UPDATE SKIP LOCKED"
    light: tuple[Statement, ...] = (_UNFLUSHED,)
    #: In front of what ends a phase: refused where its function has ended the transaction by itself, or has swallowed
    #: an error that aborted it.
    proof: tuple[BatchItem, ...] = (POSTGRES_PROOF,)

    def opening(self, lease_s: float) -> tuple[Statement, ...]:
        """Bounds a phase."""
        return (postgres_lease(lease_s),)

    def wait_for_key(self, lock: int) -> tuple[Statement, ...]:
        """Keeps claims of a key away until COMMIT: they see its record, or that it is in flight."""
        return (Statement(_KEY_LOCK, (lock,)),)

    def text(self, sql: str) -> str:
        return qualified(sql)

    def in_ms(self, ms: str) -> str:
        """A moment so many milliseconds from now."""
        return f"({self.now} + ({ms} * interval '1 millisecond'))"

    def ms_until(self, moment: str) -> str:
        """So many milliseconds are left until then; 0 or less: it has come."""
        return f"ceil(extract(epoch FROM {moment} - {self.now}) * 1000)::bigint"
