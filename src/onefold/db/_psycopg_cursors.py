"""psycopg: cursors for our own statements, which read and write values as psycopg does by default.

An application may have registered loaders and dumpers of its own: for a connection, in its pool's `configure`, or for
all of psycopg (`psycopg.adapters`). What they make of a bool, an int or bytes is not what our flows can read.
"""

from __future__ import annotations

from typing import Any, Final

import psycopg
from psycopg.adapt import AdaptersMap
from psycopg.postgres import register_default_adapters, types
from psycopg.rows import tuple_row

from onefold._kernel.effects import Row

_DEFAULTS: Final = AdaptersMap(types=types)
register_default_adapters(_DEFAULTS)


class OwnCursor(psycopg.RawCursor[Row]):
    """For threads."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)
        self._adapters = AdaptersMap(_DEFAULTS)


class AsyncOwnCursor(psycopg.AsyncRawCursor[Row]):
    """For asyncio."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        super().__init__(connection, row_factory=tuple_row)
        self._adapters = AdaptersMap(_DEFAULTS)
