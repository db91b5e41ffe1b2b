"""One payment in two commits with a call between them, written four times: bare, as a request in recorded steps, as
`once.work`, and as a workflow of DBOS. All are the same route of Starlette, so that what differs is how they remember.

The call is a coroutine that answers at once: what a real one takes is the same for all.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol, cast

import asyncpg
from dbos import DBOS, DBOSConfig, SetWorkflowID
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from benchmarks.applications import Endpoint, account_of, application, asyncpg_pool, created
from onefold import AsyncOnefold, Transaction
from onefold._engines.dbos.saga_database import SagaDatabase
from onefold.starlette import Steps

TABLE: Final = {
    "postgres": "CREATE TABLE charged (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text NOT NULL, "
    "amount bigint NOT NULL, charge text)",
    "sqlite": "CREATE TABLE charged (id INTEGER PRIMARY KEY, account TEXT NOT NULL, amount INTEGER NOT NULL, "
    "charge TEXT)",
}
_INSERT: Final = {
    "postgres": "INSERT INTO charged (account, amount) VALUES ($1, $2) RETURNING id",
    "sqlite": "INSERT INTO charged (account, amount) VALUES (?, ?) RETURNING id",
}
_UPDATE: Final = {
    "postgres": "UPDATE charged SET charge = $2 WHERE id = $1",
    "sqlite": "UPDATE charged SET charge = ?2 WHERE id = ?1",
}


async def charge(amount: int) -> str:
    """The service that is called."""
    await asyncio.sleep(0)
    return f"ch_{amount}"


class Store(Protocol):
    """A database of the handlers: how one commits by itself, and what onefold is given."""

    dialect: str
    #: Where DBOS keeps its journal.
    journal: str

    @property
    def database(self) -> Any: ...

    async def commit(self, sql: str, values: tuple[Any, ...]) -> Any: ...

    def opened(self) -> AbstractAsyncContextManager[None]: ...


class PostgresStore:
    """A pool of asyncpg."""

    dialect = "postgres"

    def __init__(self, dsn: str, size: int) -> None:
        self.journal = dsn
        self.database: asyncpg.Pool[asyncpg.Record] = asyncpg_pool(dsn, size)

    async def commit(self, sql: str, values: tuple[Any, ...]) -> Any:
        async with self.database.acquire() as connection, connection.transaction():
            return await connection.fetchval(sql, *values)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        async with self.database:
            yield


class SqliteStore:
    """One connection on one thread: SQLite has one writer, so more threads would only queue."""

    dialect = "sqlite"

    def __init__(self, path: str, size: int) -> None:
        self.journal = f"sqlite:///{path}.journal"  # a file of its own: DBOS does not wait for other writers then
        self.database = path
        self._executor = ThreadPoolExecutor(max_workers=1)
        self._connection: sqlite3.Connection | None = None

    async def commit(self, sql: str, values: tuple[Any, ...]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._commit, sql, values)

    def _commit(self, sql: str, values: tuple[Any, ...]) -> Any:
        connection = self._connection
        assert connection is not None
        connection.execute("BEGIN IMMEDIATE")
        rows = connection.execute(sql, values).fetchall()
        connection.execute("COMMIT")
        return rows[0][0] if rows else None

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        self._connection = sqlite3.connect(self.database, isolation_level=None, check_same_thread=False)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=FULL")
        try:
            yield
        finally:
            self._executor.shutdown()
            self._connection.close()


@dataclass(frozen=True, slots=True)
class Way:
    """One way to write it. Its application is served while `runs` is entered."""

    app: Starlette
    runs: AbstractAsyncContextManager[None]


def bare(store: Store) -> Way:
    """INSERT, COMMIT; the call; UPDATE, COMMIT. A crash in between loses what was called."""

    async def pay(request: Request) -> Response:
        payment = await request.json()
        number = await store.commit(_INSERT[store.dialect], (payment["account"], payment["amount"]))
        await store.commit(_UPDATE[store.dialect], (number, await charge(payment["amount"])))
        return created(payment)

    return Way(application(pay), store.opened())


def request_in_steps(store: Store) -> Way:
    """The three of them as phase, call and finish of a request."""
    once = AsyncOnefold(store.database, principal=account_of)

    @once.idempotent(required=True)
    async def pay(request: Request, work: Steps) -> Response:
        payment = await request.json()
        await make_steps(work, store.dialect, payment)
        return created(payment)

    app = application(cast("Endpoint", pay))  # onefold gives the second parameter
    once.install(app)
    return Way(app, _closing(store, once))


def named_work(store: Store) -> Way:
    """The same without a request: a block of `once.work`, named by the key."""
    once = AsyncOnefold(store.database, principal=account_of)

    async def pay(request: Request) -> Response:
        payment = await request.json()
        async with once.work(request.headers["idempotency-key"]) as work:
            await make_steps(work, store.dialect, payment)
        return created(payment)

    return Way(application(pay), _closing(store, once))


def dbos_workflow(store: Store) -> Way:
    """The same three as steps of a workflow, named by the key: what DBOS records commits beside the rows, not with
    them."""
    workflows: list[Callable[[dict[str, Any]], Awaitable[None]]] = []

    async def pay(request: Request) -> Response:
        payment = await request.json()
        with SetWorkflowID(request.headers["idempotency-key"]):
            await workflows[0](payment)
        return created(payment)

    @asynccontextmanager
    async def runs() -> AsyncIterator[None]:
        journal = SagaDatabase(store.journal)  # on SQLite with a write-ahead log: faster than what DBOS opens
        config: DBOSConfig = {
            "name": "bench",
            "system_database_url": store.journal,
            "system_database_engine": journal.engine,
            "application_version": "bench",
            "log_level": "ERROR",
        }
        loop = asyncio.get_running_loop()
        DBOS(config=config)
        workflows.append(_define_workflow(store))
        await asyncio.to_thread(DBOS.launch)
        try:
            async with store.opened():
                yield
        finally:
            await asyncio.to_thread(DBOS.destroy, destroy_registry=True)
            loop.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))  # DBOS has put its own
            journal.close()

    return Way(application(pay), runs())


def _define_workflow(store: Store) -> Callable[[dict[str, Any]], Awaitable[None]]:
    """To be called when there is a DBOS."""

    @DBOS.step()
    async def insert(payment: dict[str, Any]) -> int:
        return int(await store.commit(_INSERT[store.dialect], (payment["account"], payment["amount"])))

    @DBOS.step()
    async def update(number: int, charged: str) -> None:
        await store.commit(_UPDATE[store.dialect], (number, charged))

    call = DBOS.step()(charge)

    @DBOS.workflow()
    async def pay(payment: dict[str, Any]) -> None:
        number = await insert(payment)
        await update(number, await call(payment["amount"]))

    return pay


async def make_steps(work: Steps, dialect: str, payment: dict[str, Any]) -> None:
    """What a handler in recorded steps does."""
    number = await work.phase("create", insert_in(dialect), payment)
    charged = await work.call("charge", charge, payment["amount"])
    await work.finish(update_in(dialect), number, charged)


def insert_in(dialect: str) -> Callable[..., Awaitable[int]]:
    async def insert(tx: Transaction[Any], payment: dict[str, Any]) -> int:
        values = (payment["account"], payment["amount"])
        return int((await _rows(tx, dialect, _INSERT[dialect], values))[0][0])

    return insert


def update_in(dialect: str) -> Callable[..., Awaitable[None]]:
    async def update(tx: Transaction[Any], number: int, charged: str) -> None:
        await _rows(tx, dialect, _UPDATE[dialect], (number, charged))

    return update


async def _rows(tx: Transaction[Any], dialect: str, sql: str, values: tuple[Any, ...]) -> Any:
    connection = tx.connection
    return await (connection.fetch(sql, values) if dialect == "sqlite" else connection.fetch(sql, *values))


@asynccontextmanager
async def _closing(store: Store, once: AsyncOnefold) -> AsyncIterator[None]:
    async with store.opened():
        try:
            yield
        finally:
            await once.close()


#: By the name they are reported with; the first is what the others are divided by.
WAYS: Final[dict[str, Callable[[Store], Way]]] = {
    "bare": bare,
    "onefold request": request_in_steps,
    "onefold once.work": named_work,
    "DBOS workflow": dbos_workflow,
}
STORES: Final[dict[str, Callable[[str, int], Store]]] = {"postgres": PostgresStore, "sqlite": SqliteStore}
