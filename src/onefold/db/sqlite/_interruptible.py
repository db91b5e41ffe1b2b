"""A job of an async handler on the thread of its SQLite connection, and how it is interrupted."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Generic, TypeVar

from onefold.db.sqlite._connection import SqliteConnection
from onefold.errors import TransactionMisused

T = TypeVar("T")


class Interruptible(Generic[T]):
    """One job. It and `abandon` are called on the thread, the rest on the loop."""

    __slots__ = ("_connection", "_dropped", "_executed", "_term", "_work", "part")

    def __init__(self, connection: SqliteConnection, term: int, work: Callable[[sqlite3.Connection], T]) -> None:
        self._connection = connection
        self._term = term
        self._work = work
        self._dropped = self._executed = False
        #: The savepoint that it is executed in; 0 outside of any.
        self.part = 0

    def __call__(self) -> T:
        connection = self._connection
        handle = connection.handle_in(self._term)
        self.part = connection.parts.innermost
        with connection.job_lock:
            if self._dropped:
                raise TransactionMisused("cancelled before its turn came; nothing was executed")
            self._executed = True
            connection.job = self
        try:
            return self._work(handle)
        finally:
            with connection.job_lock:
                connection.job = None

    def drop(self) -> bool:
        """The wait was cancelled: do not begin any more. Whether the job is executed now."""
        with self._connection.job_lock:
            self._dropped = True
            return self._connection.job is self

    def interrupt(self) -> bool:
        """Whether it is still executed."""
        return self._connection.interrupt_job(self)

    def abandon(self) -> None:
        """It is over, and its transaction must not be committed with it."""
        if self._executed:
            self._connection.parts.abandon(self.part)
