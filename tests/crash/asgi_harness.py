"""The shop as an ASGI application, on SQLite and on Postgres."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import asyncpg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from onefold._http.asgi import TRANSACTION, Application, IdempotencyMiddleware, Receive, Send
from onefold._http.request_guard import RequestGuard
from onefold._kernel import executors
from onefold._kernel.ports import AsyncDatabase
from onefold.db._threaded import ThreadedDatabase
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase
from onefold.db.sqlite import AsyncSqlite, SqliteDatabase
from tests.crash.harness import LEASES_S, guard_for
from tests.crash.shop import AsyncInsert, Books, Shop, insert_asyncpg, insert_psycopg, insert_sqlite, open_books, routes
from tests.crash.wsgi_harness import WsgiHarness, WsgiPsycopg, WsgiSqlite
from tests.support.crash import Act, Boundaries, Edge, Suspensions
from tests.support.invariants import Attempt, Reply
from tests.support.patience import PATIENCE_S

Message = MutableMapping[str, Any]


@dataclass(slots=True)
class AsgiHold:
    """A request in its handler, on the loop of its harness."""

    runner: asyncio.Runner
    entered: asyncio.Event = field(default_factory=asyncio.Event)
    may_end: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[Attempt] | None = None

    def let_go(self) -> None:
        self.may_end.set()

    def ended(self) -> Attempt:
        self.let_go()
        return self.runner.run(self._ended())

    async def _ended(self) -> Attempt:
        assert self.task is not None
        return await self.task


class AsgiShop:
    """The application alone: its handler, and the layer around it."""

    def __init__(
        self,
        database: AsyncDatabase[Any],
        insert: AsyncInsert,
        shop: Shop,
        *,
        guard: RequestGuard | None = None,
        **settings: Any,
    ) -> None:
        self._insert = insert
        self._shop = shop
        self.holds: dict[str, AsgiHold] = {}
        guard = guard or guard_for(database.dialect)
        resolve = routes(**settings).resolve
        bounded = shop.boundaries.around_async(database)
        self.app = IdempotencyMiddleware(self._handler, guard=guard, database=bounded, resolve=resolve)
        self.uncounted = IdempotencyMiddleware(self._handler, guard=guard, database=database, resolve=resolve)

    async def _handler(self, scope: Message, receive: Receive, send: Send) -> None:
        key = dict(scope["headers"]).get(b"idempotency-key", b"none").decode()
        payload = (await receive())["body"].decode()
        with self._shop.boundaries.around_step("insert"):
            if self._shop.splits is not None:
                self._shop.splits.insert(key, payload)
            else:
                await self._insert(scope[TRANSACTION].connection, key, payload)
        if (hold := self.holds.pop(key, None)) is not None:
            hold.entered.set()
            await hold.may_end.wait()
        status, headers, body = self._shop.decide(key, payload)
        encoded = [(name.encode(), value.encode()) for name, value in headers]
        await send({"type": "http.response.start", "status": status, "headers": encoded})
        await send({"type": "http.response.body", "body": body})


class AsgiHarness:
    """The shop on a loop of its own, which runs while it is asked."""

    def __init__(
        self,
        runner: asyncio.Runner,
        database: AsyncDatabase[Any],
        insert: AsyncInsert,
        books: Books,
        rival: WsgiHarness,
        *,
        guard: RequestGuard | None = None,
        splits: bool = False,
        edges: tuple[Edge, ...] = ("before", "after"),
        **settings: Any,
    ) -> None:
        self.runner = runner
        self.database = database
        self.dialect = database.dialect
        self.books = books
        self.rival = rival
        self.lease_s: float = settings.setdefault("lease_s", LEASES_S[database.dialect])
        self.boundaries = Boundaries(edges=edges)
        self.shop = Shop(self.boundaries, splits=books if splits else None)
        self._asgi = AsgiShop(database, insert, self.shop, guard=guard, **settings)

    def ask(self, route: str, key: str | None, payload: str, *, act: Act | None = None) -> Attempt:
        self.boundaries.crossings.clear()
        self.boundaries.act = act
        try:
            return self.runner.run(_asked(self._asgi.app, route, key, payload, self.boundaries))
        finally:
            self.boundaries.act = None

    def ask_elsewhere(self, route: str, key: str, payload: str) -> Attempt:
        return self.rival.ask_on_a_thread(route, key, payload)

    def hold(self, route: str, key: str, payload: str) -> AsgiHold:
        hold = self._asgi.holds[key] = AsgiHold(self.runner)

        async def begin() -> asyncio.Task[Attempt]:
            task = asyncio.create_task(_asked(self._asgi.uncounted, route, key, payload))
            await asyncio.wait_for(hold.entered.wait(), PATIENCE_S)
            return task

        hold.task = self.runner.run(begin())
        return hold

    def leaks(self) -> list[str]:
        return self.runner.run(self._leaks())

    def close(self) -> None:
        self.runner.run(self.database.close())
        self.runner.close()
        self.books.close()
        self.rival.close()

    async def _leaks(self) -> list[str]:
        # What cancelled requests left to be done; not what another loop took with it.
        leaving = {task for task in executors._leaving if task.get_loop() is asyncio.get_running_loop()}
        if leaving:
            await asyncio.wait(leaving, timeout=PATIENCE_S)
        return [f"{self.boundaries.out} connections are out"] if self.boundaries.out else []


class AsgiSqlite(AsgiHarness):
    """On a SQLite file. A second count, below the threads, sees what really reaches the file."""

    def __init__(self, path: Path, **options: Any) -> None:
        self.below = Boundaries()
        below = self.below.around(SqliteDatabase(path, busy_timeout_s=0.5))
        database = ThreadedDatabase(below, AsyncSqlite)
        rival = WsgiSqlite(path, alone=True)
        super().__init__(asyncio.Runner(), database, insert_sqlite, open_books(path), rival, **options)

    async def _leaks(self) -> list[str]:
        found = await super()._leaks()
        deadline = time.monotonic() + PATIENCE_S
        while self.below.out and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # a connection whose taking was cancelled is closed on its thread
        if self.below.out:
            found.append(f"{self.below.out} SQLite connections are neither idle nor closed")
        return found


class AsgiPostgres(AsgiHarness):
    """On Postgres, with a pool so small that one lost connection is missed."""

    POOL = 3

    async def take(self) -> Any:
        raise NotImplementedError

    async def give_back(self, connection: Any) -> None:
        raise NotImplementedError

    async def _leaks(self) -> list[str]:
        found = await super()._leaks()
        taken: list[Any] = []
        try:
            while len(taken) < self.POOL:
                taken.append(await self.take())
        except (TimeoutError, PoolTimeout):
            found.append(f"only {len(taken)} of the pool's {self.POOL} connections came back")
        for connection in taken:
            await self.give_back(connection)
        return found


class AsgiAsyncpg(AsgiPostgres):
    """By asyncpg."""

    def __init__(
        self, dsn: str, *, through: str | None = None, insert: AsyncInsert = insert_asyncpg, **options: Any
    ) -> None:
        runner = asyncio.Runner()
        self.pool = runner.run(self._open(through or dsn))
        database = AsyncpgDatabase(self.pool)
        rival = WsgiPsycopg(dsn, alone=True)
        super().__init__(runner, database, insert, open_books(dsn), rival, **options)

    async def _open(self, dsn: str) -> Any:
        return await asyncpg.create_pool(dsn, min_size=0, max_size=self.POOL, timeout=PATIENCE_S)

    async def take(self) -> Any:
        return await self.pool.acquire(timeout=PATIENCE_S)

    async def give_back(self, connection: Any) -> None:
        await self.pool.release(connection)

    def close(self) -> None:
        self.runner.run(self.pool.close())
        super().close()


class AsgiPsycopg(AsgiPostgres):
    """By psycopg."""

    def __init__(
        self, dsn: str, *, through: str | None = None, insert: AsyncInsert = insert_psycopg, **options: Any
    ) -> None:
        runner = asyncio.Runner()
        self.pool = runner.run(self._open(through or dsn))
        database = AsyncPsycopgDatabase(self.pool)
        rival = WsgiPsycopg(dsn, alone=True)
        super().__init__(runner, database, insert, open_books(dsn), rival, **options)

    async def _open(self, dsn: str) -> AsyncConnectionPool[Any]:
        pool: AsyncConnectionPool[Any] = AsyncConnectionPool(dsn, min_size=0, max_size=self.POOL, open=False)
        await pool.open()
        return pool

    async def take(self) -> Any:
        return await self.pool.getconn(timeout=PATIENCE_S)

    async def give_back(self, connection: Any) -> None:
        await self.pool.putconn(connection)

    def close(self) -> None:
        self.runner.run(self.pool.close())
        super().close()


async def _asked(
    app: Application, route: str, key: str | None, payload: str, boundaries: Boundaries | None = None
) -> Attempt:
    begun_s = time.monotonic()
    work = call(app, route, key, payload)
    task = asyncio.create_task(work if boundaries is None else _noticed(work, boundaries))
    if boundaries is not None:
        boundaries.counts = lambda: asyncio.current_task() is task
    await asyncio.wait({task})
    reply = None if task.cancelled() else task.result()
    return Attempt(key=str(key), payload=payload, reply=reply, begun_s=begun_s, ended_s=time.monotonic())


async def _noticed(work: Coroutine[Any, Any, Reply | None], boundaries: Boundaries) -> Reply | None:
    return await Suspensions(work, boundaries)


async def call(app: Application, route: str, key: str | None, payload: str) -> Reply | None:
    """One request, as a server makes it; None if the application never finished its answer."""
    headers = [(b"content-type", b"text/plain")]
    if key is not None:
        headers.append((b"idempotency-key", key.encode()))
    scope = {"type": "http", "method": "POST", "path": route, "query_string": b"", "headers": headers}
    messages: list[Message] = [{"type": "http.request", "body": payload.encode()}]
    sent: list[Message] = []

    async def receive() -> Message:
        return messages.pop() if messages else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    try:
        await app(scope, receive, send)
    except Exception:
        if not sent:
            return Reply(500)  # what every server makes of it
    if len(sent) < 2 or sent[-1].get("more_body"):
        return None
    body = b"".join(message["body"] for message in sent[1:])
    return Reply(sent[0]["status"], tuple(sent[0]["headers"]), body)
