"""The journal on Postgres, in which the common statements are written.

A claim must be flushed whatever the server or the role has set, and is not weakened where they set more than that;
what becomes of a call need not be, and is spared the wait.
"""

from __future__ import annotations

from math import ceil

from onefold._kernel.effects import Statement
from onefold._kernel.pg_catalog import qualified

_FLUSHED = Statement(
    qualified("SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'")
)

_UNFLUSHED = Statement(qualified("SELECT set_config('synchronous_commit', 'off', true)"))


#: Waits for locks end then, unless the role has a shorter limit of its own. Not a limit for whole statements: that
#: would end a COMMIT's wait for its standbys too, and what should be flushed there would not be.
_LOCK_TIMEOUT = qualified(
    "SELECT set_config('lock_timeout', $1::text, true) "
    "WHERE current_setting('lock_timeout') = '0' OR current_setting('lock_timeout')::interval > $1::text::interval"
)


class Postgres:
    """The statements that differ on Postgres."""

    now = "now()"
    lock_free = "FOR UPDATE SKIP LOCKED"
    durable: tuple[Statement, ...] = (_FLUSHED,)
    light: tuple[Statement, ...] = (_UNFLUSHED,)
    waits_in_statements = True

    def limit_lock_waits(self, seconds: float) -> tuple[Statement, ...]:
        """What follows BEGIN, so that no statement waits longer for a lock. 0 would be for ever."""
        return (Statement(_LOCK_TIMEOUT, (f"{max(1, ceil(seconds * 1000))}ms",)),)

    def text(self, sql: str) -> str:
        return qualified(sql)

    def ago(self, ms: str) -> str:
        """A moment so many milliseconds ago."""
        return f"(clock_timestamp() - ({ms} * interval '1 millisecond'))"

    def age_ms(self, moment: str) -> str:
        """How many milliseconds since then."""
        return f"(extract(epoch FROM clock_timestamp() - {moment}) * 1000)::bigint"

    def epoch_ms(self, moment: str) -> str:
        """A moment in milliseconds since 1970."""
        return f"(extract(epoch FROM {moment}) * 1000)::bigint"
