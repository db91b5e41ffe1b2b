"""Locks on numbers, for all processes that share a SQLite file: what advisory locks are on Postgres.

Theory of operation. A lock is one byte of a small file beside the database, locked by the operating system at an
offset made from the number, and an entry in a set of this process, because record locks belong to a process and do not
keep its own threads apart. The kernel frees them when a process ends, however it ends. They are courtesy: they
distinguish requests under way from new ones; one execution per key is guaranteed by the record's primary key.

POSIX record locks, and not those of an open file description (F_OFD_SETLK): a child does not inherit them, so they end
with the process that took them, whatever children it leaves behind, and every Unix has them. Their weakness is that
closing *any* descriptor of the file drops all locks of the process. Hence one descriptor per process and file, which is
closed only while nothing is locked. If other code of the application opens and closes the file (a backup does),
duplicates run and are rolled back instead of being refused, and nothing worse.

Offsets have 63 bits and numbers 64. Two keys in flight meet with a chance of one in 2^63: one of them is answered as in
flight, or as a mismatch, until the other is done.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Final, Protocol

if sys.platform != "win32":
    import fcntl

    _EXCLUSIVE: Final = fcntl.LOCK_EX | fcntl.LOCK_NB

_log = logging.getLogger("onefold.database")

SUFFIX: Final = "-onefold-lock"

#: Asks a connection which file it has open.
DATABASE_FILE: Final = "SELECT file FROM pragma_database_list WHERE name = 'main'"

_OFFSETS: Final = 2**63 - 1

#: struct flock of the C library: Linux begins with the type, BSD and macOS end with it.
_FLOCK: Final = "hhqqi" if sys.platform == "linux" else "qqihh"


class LockFile:
    """The file beside one database, for one process."""

    def __init__(self, database: str, suffix: str = SUFFIX) -> None:
        self._database = database
        self._path = database + suffix
        self.process = os.getpid()
        #: Held while a byte is locked or unlocked: never across anything that waits.
        self._mutex = threading.Lock()
        self._holders: dict[int, object] = {}
        self._descriptor: int | None = None
        self._reported = False

    def try_lock(self, number: int, holder: object) -> bool:
        """Whether the holder has the lock now, or had it before."""
        return self.try_locks((number,), holder) == 1

    def try_locks(self, numbers: Sequence[int], holder: object) -> int:
        """How many of them, in this order, the holder has now, or had before: up to the first that is refused."""
        offsets = [*map(_OFFSETS.__and__, numbers)]
        holders = self._holders
        with self._mutex:
            wanted, count = offsets, len(offsets)
            if not holders.keys().isdisjoint(offsets):  # seldom: a duplicate, or the holder locks again
                others = [place for place, offset in enumerate(offsets) if holders.get(offset, holder) is not holder]
                count = others[0] if others else count
                wanted = [offset for offset in offsets[:count] if offset not in holders]
            locked = self._lock_bytes(wanted)
            holders.update(dict.fromkeys(wanted[:locked], holder))
            return count if locked == len(wanted) else offsets.index(wanted[locked])

    def unlock(self, holder: object, numbers: list[int]) -> None:
        holders = self._holders
        with self._mutex:
            for offset in map(_OFFSETS.__and__, numbers):
                if holders.get(offset) is holder:
                    del holders[offset]
                    self._unlock_byte(offset)

    def is_locked(self, number: int) -> bool:
        """Whether anyone has the lock. Looks, and takes nothing: an honest request is not disturbed."""
        offset = number & _OFFSETS
        with self._mutex:
            return offset in self._holders or self._is_byte_locked(offset)

    def rest(self) -> None:
        """A database that used it was closed: close the file, unless something is locked. It is opened again when it is
        needed."""
        with self._mutex:
            if self._descriptor is not None and not self._holders:
                os.close(self._descriptor)
                self._descriptor = None

    if sys.platform == "win32":

        def _lock_bytes(self, offsets: list[int]) -> int:
            self._report("this system has no record locks")
            return len(offsets)

        def _unlock_byte(self, offset: int) -> None:
            pass

        def _is_byte_locked(self, offset: int) -> bool:
            return False

    else:

        def _lock_bytes(self, offsets: list[int]) -> int:
            """How many of them, in this order, are locked now: up to the first that another process has."""
            lock = fcntl.lockf
            for place, offset in enumerate(offsets):
                try:
                    lock(self._descriptor or self._open(), _EXCLUSIVE, 1, offset)
                except (BlockingIOError, PermissionError) as error:
                    if error.filename is None:  # the lock's refusal, not the file's
                        return place
                    self._report(error)
                except OSError as error:  # ENOLCK: a file system without locks; or no more descriptors
                    self._report(error)
            return len(offsets)

        def _unlock_byte(self, offset: int) -> None:
            try:
                fcntl.lockf(self._descriptor or self._open(), fcntl.LOCK_UN, 1, offset)
            except OSError:  # it was not locked: see above
                return

        def _is_byte_locked(self, offset: int) -> bool:
            query = {"kind": fcntl.F_WRLCK, "whence": os.SEEK_SET, "start": offset, "length": 1, "pid": 0}
            try:
                lock = fcntl.fcntl(self._open(), fcntl.F_GETLK, _pack(**query))
            except OSError as error:
                self._report(error)
                return False
            return _type_in(lock) != fcntl.F_UNLCK

    def _open(self) -> int:
        if self._descriptor is None:
            try:
                self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
                # A mount without Unix permissions refuses; processes of other users then do without the locks.
                with contextlib.suppress(OSError):
                    _share_as(self._database, self._descriptor)
            except FileExistsError:
                self._descriptor = os.open(self._path, os.O_RDWR)
        return self._descriptor

    def _report(self, reason: object) -> None:
        if not self._reported:
            self._reported = True
            _log.warning(
                "requests that other processes are working on are not seen, because %s cannot be locked (%s): their "
                "duplicates run and are rolled back instead of being answered 409. Each key still takes effect once",
                self._path,
                reason,
            )


def _pack(*, kind: int, whence: int, start: int, length: int, pid: int) -> bytes:
    if sys.platform == "linux":
        return struct.pack(_FLOCK, kind, whence, start, length, pid)
    return struct.pack(_FLOCK, start, length, pid, kind, whence)


def _type_in(flock: bytes) -> int:
    fields = struct.unpack_from(_FLOCK, flock)
    return int(fields[0] if sys.platform == "linux" else fields[3])


def _share_as(database: str, descriptor: int) -> None:
    """A user who may write the database may lock beside it, as with SQLite's own files."""
    if sys.platform != "win32":
        found = os.stat(database)
        os.fchmod(descriptor, found.st_mode & 0o666)
        if os.geteuid() == 0:  # a command of the administrator's must not lock the application out
            os.fchown(descriptor, found.st_uid, found.st_gid)


#: One for each file and process, so that nothing of a parent's is used in its child. Never emptied: see `rest`.
_files: dict[tuple[int, str], LockFile] = {}


def lock_file(database: str) -> LockFile:
    """The file beside a database, by the database's real path."""
    key = os.getpid(), database
    return _files.get(key) or _files.setdefault(key, LockFile(database))


class HasFunctions(Protocol):
    """A connection to SQLite on which functions can be made, sqlite3's or a wrapper's."""

    def create_function(self, name: str, narg: int, func: Callable[..., str | int | None], /) -> object: ...


class KeyLocks:
    """What one connection has locked, for as long as it is out: SQL functions, and their end.

    `onefold_lock(requests, number, ...)` tries locks in this order, the first of which are a request's and the others a
    key's, and remembers where it was refused one; `onefold_refused()` returns that: "same" or "other";
    `onefold_locked(key)` looks.
    """

    __slots__ = ("_database", "_file", "_held", "_refusal")

    def __init__(self, database: str | os.PathLike[str]) -> None:
        self._database = os.path.realpath(database)
        self._file = lock_file(self._database)
        self._held: list[int] = []
        self._refusal: str | None = None

    def offer(self, connection: HasFunctions) -> None:
        """Make the functions known to a connection."""
        connection.create_function("onefold_lock", -1, self.lock)
        connection.create_function("onefold_refused", 0, self.refusal)
        connection.create_function("onefold_locked", 1, self.is_locked)

    def lock(self, requests: int, *numbers: int) -> None:
        count = self._current().try_locks(numbers, self)
        self._held += numbers[:count]
        self._refusal = None if count == len(numbers) else "same" if count < requests else "other"

    def refusal(self) -> str | None:
        return self._refusal

    def is_locked(self, key: int) -> bool:
        return self._current().is_locked(key)

    def release(self) -> None:
        """The connection goes: whatever was locked through it is free."""
        if self._held:
            held, self._held = self._held, []
            self._file.unlock(self, held)

    def _current(self) -> LockFile:
        if self._file.process != os.getpid():  # forked: what the parent has locked is the parent's
            self._file, self._held = lock_file(self._database), []
        return self._file
