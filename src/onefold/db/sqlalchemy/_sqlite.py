"""What a batch means on a `sqlalchemy.Connection` over SQLite: how it differs from `verbs`."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from onefold._kernel.effects import BatchItem, Boundary, Nested
from onefold.db.sqlalchemy import _invalidation
from onefold.db.sqlalchemy._connection import SqlalchemyConnection
from onefold.db.sqlalchemy._errors import ENDED
from onefold.db.sqlite._errors import error_for
from onefold.db.sqlite._locks import DATABASE_FILE, KeyLocks
from onefold.errors import ConfigurationError, TransactionEnded

_LOCKS = "onefold_locks"


class OverSqlite(SqlalchemyConnection):
    """A connection over SQLite, where a transaction must take the write lock with its first statement.

    Left to themselves, sqlite3 and SQLAlchemy begin late or not at all. So SQLAlchemy's transaction always stands
    open while the connection is out, which costs nothing, and BEGIN IMMEDIATE is sent before the first statement that
    belongs in one: any statement of the handler, and ours between BEGIN and COMMIT. Our plain looks take no lock.
    """

    def __init__(self, connection: Connection) -> None:
        self._wanted = False
        self._writing = False
        super().__init__(connection)

    def _set_up(self) -> None:
        driver = self._driver
        if getattr(driver, "autocommit", -1) != -1:
            raise ConfigurationError(
                "the engine opens sqlite3 connections with autocommit=...; leave it out: onefold begins its own "
                "transactions (sqlite3's default, LEGACY_TRANSACTION_CONTROL)"
            )
        self._locks = self._key_locks(driver)
        self._isolation_level = driver.isolation_level
        driver.isolation_level = None  # sqlite3 shall not begin by itself
        self._end_turn(keep=False)

    def _key_locks(self, driver: Any) -> KeyLocks:
        """Made once for a connection of the pool's, which keeps what we note about it."""
        locks: KeyLocks | None = self._connection.info.get(_LOCKS)
        if locks is None:
            cursor = driver.cursor()
            cursor.execute(DATABASE_FILE)
            [file] = cursor.fetchone()
            cursor.close()
            locks = self._connection.info[_LOCKS] = KeyLocks(file)
            locks.offer(driver)
        return locks

    def throw_away(self) -> None:
        try:
            super().throw_away()
        finally:
            self._locks.release()

    def wake(self) -> None:
        _invalidation.interrupt(self._connection.connection.driver_connection)

    def _close(self) -> None:
        self._locks.release()  # before the pool gives the connection, and them, to another request
        super()._close()

    @property
    def _driver(self) -> Any:
        return self._connection.connection.dbapi_connection

    @property
    def _in_transaction(self) -> bool:
        driver: Any = self._connection.connection.driver_connection
        return bool(driver.in_transaction)

    def before_statement(self, cursor: Any) -> None:
        _invalidation.note(self._connection, cursor)
        if self._writing:
            if not self._in_transaction:
                raise TransactionEnded(ENDED)
        elif self._wanted or not self._our_turn:
            if self._in_transaction:
                cursor.execute("ROLLBACK")  # a plain BEGIN, from a listener of the application's
            try:
                cursor.execute("BEGIN IMMEDIATE")
            except sqlite3.Error as error:  # on its way through the handler: say that nothing was done
                raise error_for(error) from error
            self._writing = True

    @property
    def _is_ours_alone(self) -> bool:
        return False  # `before_statement` takes the lock, and notes each cursor

    def _as_ourselves(self, items: Sequence[BatchItem]) -> Sequence[BatchItem]:
        return items  # there are no roles

    def batch(self, items: Sequence[BatchItem]) -> int:
        if len(items) > 1 and items[0] is Boundary.ROLLBACK:
            self._end_handler(items)
            with self._turn():
                self._check_lost()  # an answer that is written after it would be stored for good
        return super().batch(items)

    def _check(self, *, undone: bool = False) -> None:
        super()._check(undone=undone)
        if not undone:
            self._check_lost()

    def _check_lost(self) -> None:
        if self._writing and not self._in_transaction:
            raise TransactionEnded(ENDED)

    def _begin(self, level: str | None) -> None:
        self._wanted = True  # at any level: SQLite has the strictest only

    def _commit(self) -> None:
        super()._commit()
        self._wanted = self._writing = False
        self._end_turn(keep=False)

    def _rollback(self) -> None:
        super()._rollback()
        self._wanted = self._writing = False
        self._end_turn(keep=False)

    def _savepoint(self, item: Boundary | Nested) -> None:
        if (item.boundary if isinstance(item, Nested) else item) is Boundary.SAVEPOINT:
            self._begin(None)  # the handler's first touch may be a savepoint
        super()._savepoint(item)

    def _end_turn(self, *, keep: bool) -> None:
        if not self._wanted and not self._writing and self._in_transaction:
            self._begun = None
            super()._end_turn(keep=keep)
        if self._begun is None:
            self._begun = self._connection.begin()

    def _restore(self) -> None:
        self._connection.rollback()
        self._driver.isolation_level = self._isolation_level
        _invalidation.forget(self._connection)
