"""Where a client's journal is kept: opened when the first intent is served, and not before.

A client that serves no intents never touches a disk, and does not import what serves them. What was given may serve
threads, asyncio or (an address) both.
"""

from __future__ import annotations

import asyncio
from math import inf
from pathlib import Path
from threading import RLock
from typing import TYPE_CHECKING, Any

from onefold._client.journal_connector import JournalConnector, acquire_async
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.ports import AsyncConnection, AsyncDatabase, Connection, Database
from onefold._kernel.runners import run
from onefold.errors import StoreBusy

if TYPE_CHECKING:
    from onefold._client.journal.flow import Journal

#: How long one try waits for the write lock of a file. A claim tries again until its deadline, which it can only look
#: at in between.
BUSY_S = 0.25


class JournalStore:
    """The database of a journal, by the address or the pool that was given; by default a file of the user's own."""

    def __init__(self, given: object | None, *, retention_s: float) -> None:
        if given is not None:
            from onefold.db._drivers import check_usable

            check_usable(given, "journal")
        self._given = given
        self._retention_s = retention_s
        self._lock = RLock()
        self.ready = False
        self._journal: Journal | None = None
        self._sync: Database[Any] | None = None
        self._async: AsyncDatabase[Any] | None = None
        self.threads = JournalDatabase(self)
        self.tasks = AsyncJournalDatabase(self)

    @property
    def journal(self) -> Journal:
        """The journal's flows, in the dialect of its database."""
        if self._journal is None:
            from onefold._client.journal.flow import Journal
            from onefold.db._drivers import dialect_of

            self._journal = Journal(dialect_of(self._location()), retention_s=self._retention_s)
        return self._journal

    def sync_database(self) -> Database[Any]:
        if self._sync is None:
            self.make_ready()
        with self._lock:
            if self._sync is None:
                self._sync = self._open_sync(self._file())
            return self._sync

    def async_database(self) -> AsyncDatabase[Any]:
        if self._async is None:
            self.make_ready()
        with self._lock:
            if self._async is None:
                self._async = self._open_async(self._file())
            return self._async

    def make_ready(self) -> None:
        """Make the file and its table, where it is one. This waits for the disk: on asyncio, ask a thread to do it.
        Raises StoreBusy where others have the file, or are about to do the same: a claim asks again."""
        if not self._lock.acquire(timeout=BUSY_S):
            raise StoreBusy("another thread waits for the file of the key journal")
        try:
            if not self.ready and (file := self._file()) is not None:
                _make_table(file)
            self.ready = True
        finally:
            self._lock.release()

    def close(self) -> None:
        """Close what was opened here for threads. A pool that was given is its owner's to close."""
        database, self._sync = self._sync, None
        if database is not None and self._is_ours():
            database.close()

    async def aclose(self) -> None:
        """Close what was opened here."""
        self.close()
        database, self._async = self._async, None
        if database is not None and self._is_ours():
            await database.close()

    def _location(self) -> object:
        if self._given is None:
            from onefold._client.journal.location import default_journal

            self._given = default_journal()
        return self._given

    def _file(self) -> Path | None:
        """The journal's file, where it is one that was named."""
        from onefold.db._drivers import file_of

        location = self._location()
        return file_of(location) if isinstance(location, str | Path) else None

    def _open_sync(self, file: Path | None) -> Database[Any]:
        if file is None:
            from onefold.db._drivers import sync_database

            return sync_database(self._location())
        from onefold.db.sqlite import SqliteDatabase

        return SqliteDatabase(file, busy_timeout_s=BUSY_S)

    def _open_async(self, file: Path | None) -> AsyncDatabase[Any]:
        if file is None:
            from onefold.db._drivers import async_database

            return async_database(self._location())
        from onefold.db.sqlite import async_sqlite

        return async_sqlite(file, busy_timeout_s=BUSY_S)

    def _is_ours(self) -> bool:
        return self._given is None or isinstance(self._given, str | Path)


def _make_table(file: Path) -> None:
    from onefold._client.journal.location import make_private
    from onefold._client.journal.schema import prepare
    from onefold.db.sqlite import SqliteDatabase

    database = SqliteDatabase(make_private(file), busy_timeout_s=BUSY_S)
    try:
        run(prepare(database.dialect), ThreadExecutor(database))
    finally:
        database.close()


class JournalDatabase:
    """The database, opened when a connection is needed first. `until` is the deadline of its call."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store
        self._connector = JournalConnector()

    @property
    def dialect(self) -> str:
        return self._store.sync_database().dialect

    def acquire(self, until: float = inf) -> Connection[Any]:
        return self._connector.acquire(self._store.sync_database(), until)

    def close(self) -> None:
        self._store.close()


class AsyncJournalDatabase:
    """`JournalDatabase` for asyncio."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store

    @property
    def dialect(self) -> str:
        return self._store.async_database().dialect

    async def acquire(self, until: float = inf) -> AsyncConnection[Any]:
        if not self._store.ready:
            await asyncio.to_thread(self._store.make_ready)
        return await acquire_async(self._store.async_database(), until)

    async def close(self) -> None:
        await self._store.aclose()
