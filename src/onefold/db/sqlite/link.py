"""An open SQLite file, as it goes from request to request."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress


class Link:
    """An open file and what outlives a request: whose turn it is, and the second connection for leases."""

    __slots__ = ("_light", "_open_light", "connection", "ours", "trespass")

    def __init__(self, connection: sqlite3.Connection, open_light: Callable[[], sqlite3.Connection]) -> None:
        self.connection = connection
        self._open_light = open_light
        self._light: sqlite3.Connection | None = None
        self.ours = False
        self.trespass: str | None = None
        connection.set_authorizer(self._authorize)

    @property
    def light(self) -> sqlite3.Connection:
        """Nothing but our own short transactions happens here."""
        if self._light is None:
            self._light = self._open_light()
        return self._light

    def __enter__(self) -> sqlite3.Connection:
        """Our turn: as long as it lasts, transactions may begin and end."""
        self.ours = True
        return self.connection

    def __exit__(self, *_: object) -> None:
        self.ours = False

    @property
    def in_transaction(self) -> bool:
        try:
            return self.connection.in_transaction
        except sqlite3.ProgrammingError:
            return False  # closed

    def rollback(self) -> None:
        self.connection.rollback()
        if self._light is not None:
            self._light.rollback()

    def close(self) -> None:
        # A cursor that someone still holds keeps a closed connection half alive, and its lock: so first roll back.
        with self:
            with suppress(sqlite3.Error):
                self.rollback()
            if self._light is not None:
                self._light.close()
            self.connection.close()

    def _authorize(self, action: int, operation: str | None, *_: object) -> int:
        """Keep COMMIT, ROLLBACK and BEGIN for ourselves, however the handler spells them.

        SQLite asks when it compiles a statement. Ours must not be found in sqlite3's cache of compiled ones, so we
        end transactions with `commit()` and `rollback()`, which do not use it.
        """
        if action == sqlite3.SQLITE_TRANSACTION and not self.ours:
            self.trespass = operation
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK
