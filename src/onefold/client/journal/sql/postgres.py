"""The journal on Postgres, in which the common statements are written.

A claim must be flushed whatever the server or the role has set, and is not weakened where they ask for more than that;
what becomes of a call need not be, and is spared the wait.
"""

from __future__ import annotations

from onefold._kernel.effects import Statement

_FLUSHED = Statement(
    "SELECT set_config('synchronous_commit', 'on', true) WHERE current_setting('synchronous_commit') = 'off'"
)

_UNFLUSHED = Statement("SELECT set_config('synchronous_commit', 'off', true)")


class Postgres:
    """What Postgres says differently."""

    now = "now()"
    lock_free = "FOR UPDATE SKIP LOCKED"
    durable: tuple[Statement, ...] = (_FLUSHED,)
    light: tuple[Statement, ...] = (_UNFLUSHED,)

    def text(self, sql: str) -> str:
        return sql

    def ago(self, ms: str) -> str:
        """A moment so many milliseconds ago."""
        return f"(clock_timestamp() - {ms} * interval '1 millisecond')"

    def age_ms(self, moment: str) -> str:
        """How many milliseconds since then."""
        return f"(extract(epoch FROM clock_timestamp() - {moment}) * 1000)::bigint"

    def epoch_ms(self, moment: str) -> str:
        """A moment in milliseconds since 1970."""
        return f"(extract(epoch FROM {moment}) * 1000)::bigint"
