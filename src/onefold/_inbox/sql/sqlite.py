"""The inbox on SQLite, where BEGIN takes the one write lock: what is looked at stays so until COMMIT, and the driver
itself refuses a handler's COMMIT. Times are in milliseconds since 1970."""

from __future__ import annotations

from onefold._kernel.audit import NOTE
from onefold._kernel.dialects import SQLITE_NOW_MS as _NOW
from onefold._kernel.dialects import sqlite_text
from onefold._kernel.effects import Statement


class Sqlite:
    """The statements that differ on SQLite."""

    now = _NOW
    lock = ""
    lock_free = ""
    proof = Statement("SELECT 1")
    ended = Statement("SELECT 1 WHERE 0")
    audit = NOTE["sqlite"]
    notify_consumers: tuple[Statement, ...] = ()

    def opening(self, lease_ms: int) -> tuple[Statement, ...]:
        return ()

    def opening_where(self, place: int) -> str:
        return "WHERE"

    def opening_values(self, lease_ms: int) -> tuple[str, ...]:
        return ()

    def text(self, sql: str) -> str:
        return sqlite_text(sql)

    def in_ms(self, ms: str) -> str:
        return f"({_NOW} + {ms})"

    def until(self, moment: str) -> str:
        return f"({moment} - {_NOW})"

    def epoch_ms(self, moment: str) -> str:
        return moment

    def moment(self, ms: str) -> str:
        return ms

    def exact(self, moment: str) -> str:
        return moment

    def at(self, exact: str) -> str:
        return exact

    def items(self, array: str) -> str:
        return f"(SELECT value AS item FROM json_each({array})) AS each"

    def identities(self, array: str) -> str:
        return _members(array, "name", "apart", "source")

    def held(self, array: str) -> str:
        return _members(array, "name", "started", "failed")

    def refuse(self, text: str) -> str:
        return "NULL"

    def contains(self, text: str, part: str) -> str:
        return f"instr({text}, {part}) > 0"


def _members(array: str, *names: str) -> str:
    members = ", ".join(f"json_extract(value, '$.{name}') AS {name}" for name in names)
    return f"(SELECT {members} FROM json_each({array})) AS each"
