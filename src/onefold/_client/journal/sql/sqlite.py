"""The journal on SQLite, where the driver's two kinds of transaction decide what is flushed. Times are in milliseconds
since 1970."""

from __future__ import annotations

from onefold._kernel.dialects import SQLITE_NOW_MS as _NOW
from onefold._kernel.dialects import sqlite_text
from onefold._kernel.effects import Statement


class Sqlite:
    """The statements that differ on SQLite."""

    now = _NOW
    lock_free = ""
    durable: tuple[Statement, ...] = ()
    light: tuple[Statement, ...] = ()
    waits_in_statements = False

    def limit_lock_waits(self, seconds: float) -> tuple[Statement, ...]:
        return ()  # the connection itself waits a moment, and the flow looks at the clock in between

    def text(self, sql: str) -> str:
        return sqlite_text(sql)

    def ago(self, ms: str) -> str:
        return f"({_NOW} - {ms})"

    def age_ms(self, moment: str) -> str:
        return f"({_NOW} - {moment})"

    def epoch_ms(self, moment: str) -> str:
        return moment
