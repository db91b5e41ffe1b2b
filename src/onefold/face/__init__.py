"""Onefold and AsyncOnefold: where the features meet. A line or two per method; the work is done below.

Both have the same methods with the same signatures; the async face awaits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, TypeVar, Unpack

from onefold._kernel.effects import Flow
from onefold._kernel.events import Reaped
from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.runners import run, run_async
from onefold._kernel.transaction import Transaction
from onefold.db.connect import async_database, sync_database
from onefold.db.migrate import migrate
from onefold.db.threads import ThreadedDatabase, off_loop_handle, plain_handle
from onefold.errors import ConfigurationError
from onefold.face.shared import Face
from onefold.face.tables import MIGRATIONS
from onefold.http import asgi, wsgi
from onefold.http.install import install_asgi, install_wsgi, leave_in
from onefold.http.policy import Policy
from onefold.http.templates import routes_of
from onefold.idempotency.retention import reap
from onefold.inbox.entry import Entry
from onefold.worker.blocks import async_block, block
from onefold.worker.running import as_task, on_a_thread
from onefold.worker.settings import RelaySettings
from onefold.worker.wakeup import Notifier

__all__ = ["MIGRATIONS", "AsyncOnefold", "Onefold"]

T = TypeVar("T")


class Onefold(Face[Database[Any]]):
    """onefold for threads, over a SQLite file, a psycopg pool or a SQLAlchemy engine.

    `principal` finds, in a request, the stable id of whoever asks (account, tenant, user; never a credential: tokens
    rotate between retries). An application with one principal only says so with `single_principal`.
    """

    def _open(self, database: object) -> Database[Any]:
        return sync_database(database)

    def install(self, app: Any) -> None:
        """Put the idempotency layer around a FastAPI, Starlette or Flask application."""
        if not install_wsgi(app, self._layer, self._database):
            install_asgi(app, self._layer, self._threaded())
        leave_in(app, self)

    def asgi(self, app: asgi.Application, routes: Mapping[str, Policy]) -> asgi.Application:
        """Wrap an ASGI application without a framework: `{"POST /payments": once.policy(required=True)}`."""
        return self._layer.around_asgi(app, routes_of(routes), self._threaded())

    def wsgi(self, app: wsgi.Application, routes: Mapping[str, Policy]) -> wsgi.Application:
        """Wrap a WSGI application without a framework: `{"POST /payments": once.policy(required=True)}`."""
        return self._layer.around_wsgi(app, routes_of(routes), self._database)

    @contextmanager
    def transaction(self) -> Iterator[Transaction[Any]]:
        """A transaction outside of a request: its rows and its events commit together when the block ends."""
        lane = ThreadLane(self._database)
        run(self._plain.begin(), lane)
        with block(self._new_transaction(lane), self._plain, lane) as tx:
            yield tx

    @contextmanager
    def handling(self, consumer: str, message_id: str, *, lease_s: float = 60.0) -> Iterator[Transaction[Any] | None]:
        """For messages received by other means: the transaction of this message, or None if this consumer has handled
        it already. Acknowledge the message after the block."""
        lane = ThreadLane(self._database)
        entry = Entry(self._database.dialect, consumer, message_id, lease_s=lease_s)
        if not run(entry.begin(), lane):
            yield None
            return
        with block(self._new_transaction(lane), entry, lane) as tx:
            yield tx

    def migrate(self) -> list[int]:
        """Create or upgrade onefold's tables; the versions applied now."""
        return run(migrate(self._database.dialect, MIGRATIONS[self._database.dialect]), ThreadLane(self._database))

    def reap(self, *, limit: int = 1000, batches_max: int = 1000) -> Reaped:
        """Forget what has expired, in batches."""
        flow = reap(self._layer.store, limit=limit, batches_max=batches_max, listener=self._layer.listener)
        return run(flow, ThreadLane(self._database))

    @contextmanager
    def reaping(self, *, every_s: float = 300.0) -> Iterator[None]:
        """Reap in the background for as long as the block lasts."""
        stop = threading.Event()

        def loop() -> None:
            while not stop.wait(every_s):
                self._layer.survive(self.reap)

        thread = threading.Thread(target=loop, name="onefold-reaper", daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def relaying(self, **settings: Unpack[RelaySettings]) -> AbstractContextManager[None]:
        """Publish what is in the outbox, on a thread, for as long as the block lasts."""
        return on_a_thread(lambda stop: self.relay(stop, **settings), "relay")

    def consuming(self, *, only: Collection[str] = ()) -> AbstractContextManager[None]:
        """Run the consumers, on a thread, for as long as the block lasts."""
        return on_a_thread(lambda stop: self.consume(stop, only=only), "consumers")

    def close(self) -> None:
        """Close the connections onefold opened itself."""
        self._database.close()

    async def ask(self, question: Callable[[str], Flow[T]]) -> T:
        return await asyncio.to_thread(run, question(self._database.dialect), ThreadLane(self._database))

    def _for_workers(self) -> AsyncDatabase[Any]:
        return self._threaded()

    def _threaded(self) -> ThreadedDatabase[Any, Any]:
        waits = getattr(self._database, "handle_waits", False)
        return ThreadedDatabase(self._database, off_loop_handle if waits else plain_handle)


class AsyncOnefold(Face[AsyncDatabase[Any]]):
    """onefold for asyncio, over a SQLite file, an asyncpg or psycopg pool or a SQLAlchemy async engine.

    `principal` finds, in a request, the stable id of whoever asks (account, tenant, user; never a credential: tokens
    rotate between retries). An application with one principal only says so with `single_principal`.
    """

    def _open(self, database: object) -> AsyncDatabase[Any]:
        opened = async_database(database)
        self._notifier = Notifier(opened)
        return opened

    def _wakes(self) -> tuple[Callable[[], None], ...]:
        return (self._notifier.notify,) if self._database.dialect == "postgres" else ()

    def install(self, app: Any) -> None:
        """Put the idempotency layer around a FastAPI or Starlette application."""
        install_asgi(app, self._layer, self._database)
        leave_in(app, self)

    def asgi(self, app: asgi.Application, routes: Mapping[str, Policy]) -> asgi.Application:
        """Wrap an ASGI application without a framework: `{"POST /payments": once.policy(required=True)}`."""
        return self._layer.around_asgi(app, routes_of(routes), self._database)

    def wsgi(self, app: wsgi.Application, routes: Mapping[str, Policy]) -> wsgi.Application:
        """Not for asyncio: a WSGI application runs on threads."""
        raise ConfigurationError("AsyncOnefold cannot serve WSGI, which runs on threads; use Onefold")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction[Any]]:
        """A transaction outside of a request: its rows and its events commit together when the block ends."""
        lane = TaskLane(self._database)
        await run_async(self._plain.begin(), lane)
        async with async_block(self._new_transaction(lane), self._plain, lane) as tx:
            yield tx

    @asynccontextmanager
    async def handling(
        self, consumer: str, message_id: str, *, lease_s: float = 60.0
    ) -> AsyncIterator[Transaction[Any] | None]:
        """For messages received by other means: the transaction of this message, or None if this consumer has handled
        it already. Acknowledge the message after the block."""
        lane = TaskLane(self._database)
        entry = Entry(self._database.dialect, consumer, message_id, lease_s=lease_s)
        if not await run_async(entry.begin(), lane):
            yield None
            return
        async with async_block(self._new_transaction(lane), entry, lane) as tx:
            yield tx

    async def migrate(self) -> list[int]:
        """Create or upgrade onefold's tables; the versions applied now."""
        flow = migrate(self._database.dialect, MIGRATIONS[self._database.dialect])
        return await run_async(flow, TaskLane(self._database))

    async def reap(self, *, limit: int = 1000, batches_max: int = 1000) -> Reaped:
        """Forget what has expired, in batches."""
        flow = reap(self._layer.store, limit=limit, batches_max=batches_max, listener=self._layer.listener)
        return await run_async(flow, TaskLane(self._database))

    @asynccontextmanager
    async def reaping(self, *, every_s: float = 300.0) -> AsyncIterator[None]:
        """Reap in the background for as long as the block lasts."""

        async def loop() -> None:
            while True:
                await asyncio.sleep(every_s)
                await self._layer.survive_async(self.reap)

        task = asyncio.create_task(loop())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def relaying(self, **settings: Unpack[RelaySettings]) -> AbstractAsyncContextManager[None]:
        """Publish what is in the outbox, as a task, for as long as the block lasts."""
        return as_task(lambda stop: self.relay(stop, **settings), "relay")

    def consuming(self, *, only: Collection[str] = ()) -> AbstractAsyncContextManager[None]:
        """Run the consumers, as tasks, for as long as the block lasts."""
        return as_task(lambda stop: self.consume(stop, only=only), "consumers")

    async def close(self) -> None:
        """Close the connections onefold opened itself."""
        await self._notifier.close()
        await self._database.close()

    async def ask(self, question: Callable[[str], Flow[T]]) -> T:
        return await run_async(question(self._database.dialect), TaskLane(self._database))

    def _for_workers(self) -> AsyncDatabase[Any]:
        return self._database
