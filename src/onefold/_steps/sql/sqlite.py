"""Recorded steps on SQLite, where BEGIN takes the one write lock: what is looked at stays so until COMMIT. Times are in
milliseconds since 1970."""

from __future__ import annotations

from onefold._kernel.dialects import SQLITE_NOW_MS as _NOW
from onefold._kernel.dialects import sqlite_text
from onefold._kernel.effects import BatchItem, Statement


class Sqlite:
    """The dialect of SQLite."""

    now = _NOW
    lock = ""
    lock_free = ""
    light: tuple[Statement, ...] = ()
    #: The connection itself lets no other code end the transaction, and knows if SQLite did.
    proof: tuple[BatchItem, ...] = (Statement("SELECT 1"),)

    def opening(self, lease_s: float) -> tuple[Statement, ...]:
        return ()

    def wait_for_key(self, lock: int) -> tuple[Statement, ...]:
        """A claim that writes waits for the write lock, one that reads sees the record or the work."""
        return ()

    def text(self, sql: str) -> str:
        return sqlite_text(sql)

    def in_ms(self, ms: str) -> str:
        return f"({_NOW} + {ms})"

    def ms_until(self, moment: str) -> str:
        return f"({moment} - {_NOW})"
