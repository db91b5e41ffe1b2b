"""What statement sets share: statements are written in the words of Postgres, and those of SQLite follow from them."""

from __future__ import annotations

import re
from typing import Final

#: SQLite's own clock, in milliseconds since 1970.
SQLITE_NOW_MS: Final = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"

_VALUE: Final = re.compile(r"\$(\d+)::\w+")


def sqlite_values(sql: str) -> str:
    """Values as SQLite writes them: ?1 for $1::text."""
    return _VALUE.sub(r"?\1", sql)
