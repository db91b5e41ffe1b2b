"""Onefold and AsyncOnefold: where the features meet. A line or two per method; the work is done below.

Both have the same methods with the same signatures; the async face awaits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar, Unpack

from onefold._kernel.events import Listener, Reaped
from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.runners import run, run_async
from onefold.db.connect import async_database, dialect_of, sync_database
from onefold.db.migrate import migrate
from onefold.db.threads import ThreadedDatabase, off_loop_handle, plain_handle
from onefold.errors import ConfigurationError
from onefold.http import asgi, wsgi
from onefold.http.install import Layer, install_asgi, install_wsgi
from onefold.http.policy import Policy, Principal, Settings
from onefold.http.templates import routes_of
from onefold.idempotency.retention import reap
from onefold.idempotency.schema import MIGRATIONS
from onefold.idempotency.sealing import Sealer

F = TypeVar("F", bound=Callable[..., Any])
D = TypeVar("D", Database[Any], AsyncDatabase[Any])


def _migrate_embedded(database: object) -> None:
    """A SQLite file given by its path is ours to prepare. Servers are migrated on purpose: `onefold migrate`."""
    if isinstance(database, str | Path) and dialect_of(database) == "sqlite":
        own = sync_database(database)
        try:
            run(migrate(own.dialect, MIGRATIONS[own.dialect]), ThreadLane(own))
        finally:
            own.close()


class _Face(Generic[D]):
    """What both faces share: they are made alike, and their routes are declared alike."""

    def _open(self, database: object) -> D:
        raise NotImplementedError

    def __init__(
        self,
        database: object,
        *,
        principal: Principal | None = None,
        defaults: Settings | None = None,
        sealer: Sealer | None = None,
        listener: Listener | None = None,
        pages: str | None = "/onefold",
        development: bool = False,
    ) -> None:
        _migrate_embedded(database)
        self._database: D = self._open(database)
        self._layer = Layer(
            dialect=self._database.dialect,
            principal=principal,
            defaults=defaults,
            sealer=sealer,
            listener=listener,
            pages=pages,
            development=development,
        )

    def idempotent(self, **settings: Unpack[Settings]) -> Callable[[F], F]:
        """Mark a handler: its requests happen once. Goes below the framework's own route decorator."""
        return self._layer.marker(settings)

    def policy(self, **settings: Unpack[Settings]) -> Policy:
        """The policy the same settings give, for routes that are written down instead of decorated."""
        return self._layer.policy(settings)


class Onefold(_Face[Database[Any]]):
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

    def asgi(self, app: asgi.Application, routes: Mapping[str, Policy]) -> asgi.Application:
        """Wrap an ASGI application without a framework: `{"POST /payments": once.policy(required=True)}`."""
        return self._layer.around_asgi(app, routes_of(routes), self._threaded())

    def wsgi(self, app: wsgi.Application, routes: Mapping[str, Policy]) -> wsgi.Application:
        """Wrap a WSGI application without a framework: `{"POST /payments": once.policy(required=True)}`."""
        return self._layer.around_wsgi(app, routes_of(routes), self._database)

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

    def close(self) -> None:
        """Close the connections onefold opened itself."""
        self._database.close()

    def _threaded(self) -> ThreadedDatabase[Any, Any]:
        waits = getattr(self._database, "handle_waits", False)
        return ThreadedDatabase(self._database, off_loop_handle if waits else plain_handle)


class AsyncOnefold(_Face[AsyncDatabase[Any]]):
    """onefold for asyncio, over a SQLite file, an asyncpg or psycopg pool or a SQLAlchemy async engine.

    `principal` finds, in a request, the stable id of whoever asks (account, tenant, user; never a credential: tokens
    rotate between retries). An application with one principal only says so with `single_principal`.
    """

    def _open(self, database: object) -> AsyncDatabase[Any]:
        return async_database(database)

    def install(self, app: Any) -> None:
        """Put the idempotency layer around a FastAPI or Starlette application."""
        install_asgi(app, self._layer, self._database)

    def asgi(self, app: asgi.Application, routes: Mapping[str, Policy]) -> asgi.Application:
        """Wrap an ASGI application without a framework: `{"POST /payments": once.policy(required=True)}`."""
        return self._layer.around_asgi(app, routes_of(routes), self._database)

    def wsgi(self, app: wsgi.Application, routes: Mapping[str, Policy]) -> wsgi.Application:
        """Not for asyncio: a WSGI application runs on threads."""
        raise ConfigurationError("AsyncOnefold cannot serve WSGI, which runs on threads; use Onefold")

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

    async def close(self) -> None:
        """Close the connections onefold opened itself."""
        await self._database.close()
