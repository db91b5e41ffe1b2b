"""Detects live processes: each holds a lock under the name of its executor, for as long as it lives.

A process that dies loses its lock with its file descriptors or its session, however it dies; no clock is involved. A
peer that gets the lock may resume its sagas. A lock that is lost by mistake (a server that was restarted, a session
that was ended) is taken again; until then a peer may have resumed sagas that still run here. That is not wrong, only
wasted: DBOS lets the older execution write nothing more, and its steps have keys.
"""

from __future__ import annotations

import logging
import time
from hashlib import blake2b
from typing import Final, Never, Protocol

import sqlalchemy as sa

from onefold._engines.dbos.saga_database import SagaDatabase
from onefold.db.sqlite._locks import LockFile
from onefold.errors import ConfigurationError, StoreBusy, StoreUnavailable

_log = logging.getLogger("onefold.saga")

#: The name of the lock that processes take in turn while they open. No executor is called so: theirs have an id.
_OPENING: Final = "opening"
_OPENING_S_MAX: Final = 60.0
_OPENING_PAUSE_S: Final = 0.02


class ExecutorLocks(Protocol):
    """Called from threads, one at a time."""

    def hold(self) -> None:
        """Take the lock of this process, or take it again."""
        ...

    def take(self, executor: str) -> bool:
        """Whether the process of this executor is dead: its lock is free, and ours until `give_back`."""
        ...

    def give_back(self, executor: str) -> None: ...

    def enter_opening(self) -> None:
        """Wait until no other process makes DBOS's tables, and keep others waiting until `leave_opening`."""
        ...

    def leave_opening(self) -> None: ...

    def close(self) -> None: ...


def number_of(executor: str) -> int:
    """The number of a lock: 63 bits, which both databases take."""
    return int.from_bytes(blake2b(executor.encode(), digest_size=8, person=b"onefold executor").digest()) >> 1


class ExecutorLockFile(LockFile):
    """Report a file that cannot be locked: without locks, all other processes would seem dead."""

    def _report(self, reason: object) -> Never:
        raise ConfigurationError(
            f"{self._path} cannot be locked ({reason}), so live processes cannot be distinguished from dead ones: "
            "all of them need to read and write that file, on a file system with locks"
        )


class FileLocks:
    """For SQLite: bytes of a file beside the database, locked by the operating system."""

    def __init__(self, database: SagaDatabase, own: str) -> None:
        self._file = ExecutorLockFile(database.path, "-executors")
        self._own = own

    def hold(self) -> None:
        if not self._file.try_lock(number_of(self._own), self):
            raise _held_elsewhere(self._own)

    def take(self, executor: str) -> bool:
        return self._file.try_lock(number_of(executor), self)

    def give_back(self, executor: str) -> None:
        self._file.unlock(self, [number_of(executor)])

    def enter_opening(self) -> None:
        # DBOS looks for its tables and then makes them, without a lock on SQLite: the second process would fail.
        give_up_at = time.monotonic() + _OPENING_S_MAX
        while not self._file.try_lock(number_of(_OPENING), self):
            if time.monotonic() > give_up_at:
                raise StoreBusy(
                    f"another process has been opening the sagas beside {self._own} for {_OPENING_S_MAX:g} s: see what "
                    "it waits for, or end it"
                )
            time.sleep(_OPENING_PAUSE_S)

    def leave_opening(self) -> None:
        self._file.unlock(self, [number_of(_OPENING)])

    def close(self) -> None:
        self._file.unlock(self, [number_of(self._own)])
        self._file.rest()


class SessionLocks:
    """For PostgreSQL: advisory locks of one session."""

    def __init__(self, database: SagaDatabase, own: str) -> None:
        self._engine = database.connect()
        self._own = own
        self._connection: sa.Connection | None = None

    def hold(self) -> None:
        if self._connection is not None:
            try:
                self._connection.execute(sa.text("SELECT 1"))
            except sa.exc.DBAPIError as error:
                _log.warning(
                    "executor %s lost the session that holds its lock (%s); it takes the lock again",
                    self._own,
                    error.orig,
                )
                self._drop()
            else:
                return
        self._connection = self._engine.connect()
        if not self.take(self._own):
            self._drop()
            raise _held_elsewhere(self._own)

    def take(self, executor: str) -> bool:
        return bool(self._query("SELECT pg_try_advisory_lock(:number)", executor))

    def give_back(self, executor: str) -> None:
        self._query("SELECT pg_advisory_unlock(:number)", executor)

    def enter_opening(self) -> None:
        """DBOS itself keeps processes apart that migrate one PostgreSQL database."""

    def leave_opening(self) -> None:
        pass

    def close(self) -> None:
        self._drop()
        self._engine.dispose()

    def _query(self, statement: str, executor: str) -> object:
        if self._connection is None:
            raise StoreUnavailable(f"executor {self._own} has no session for its locks")
        return self._connection.execute(sa.text(statement), {"number": number_of(executor)}).scalar()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()
            self._connection.close()
            self._connection = None


def _held_elsewhere(executor: str) -> StoreBusy:
    # A peer is about to resume our sagas, or the server has not noticed yet that our old session is gone.
    return StoreBusy(
        f"the lock of executor {executor} is held by another process or session for now: it is tried again. Where that "
        "lasts, two processes have one executor id"
    )


def open_locks(database: SagaDatabase, own: str) -> ExecutorLocks:
    return FileLocks(database, own) if database.is_sqlite else SessionLocks(database, own)
