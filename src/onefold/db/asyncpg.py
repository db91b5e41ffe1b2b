"""asyncpg: each batch is one simple query, so claim and settle cost one round trip each.

asyncpg cannot pipeline, and a multi-statement simple query answers with the last command's tag only; that tag
carries a row count, which is what a batch promises. Statements are prepared with SQL PREPARE once per
connection, because parsing them again each time costs more than running them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import asyncpg
from asyncpg.transaction import TransactionState

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold.db.postgres import BOUNDARIES, error_for, inlined, literal
from onefold.errors import OnefoldError, StoreUnavailable

Handle: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

_VENDOR_ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, OSError, TimeoutError)


class AsyncpgDatabase:
    """A pool of asyncpg connections: the application's own, or one opened from a DSN on first use."""

    dialect = "postgres"

    def __init__(self, pool: Pool | str, *, acquire_timeout_s: float = 10.0) -> None:
        self._dsn = pool if isinstance(pool, str) else None
        self._pool = None if isinstance(pool, str) else pool
        self._acquire_timeout_s = acquire_timeout_s
        self._prepared: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()

    async def acquire(self) -> AsyncpgConnection:
        try:
            if self._pool is None:
                self._pool = asyncpg.create_pool(self._dsn, min_size=0)
            # Awaiting a pool that is already initialised returns it at once.
            pool = await self._pool
            assert pool is not None
            proxy: Any = await pool.acquire(timeout=self._acquire_timeout_s)
        except _VENDOR_ERRORS as error:
            raise _store_error(error) from error
        connection = proxy._con  # the pooled connection itself: the proxy is new each time
        return AsyncpgConnection(pool, proxy, self._prepared.setdefault(connection, set()))

    async def close(self) -> None:
        if self._dsn is not None and self._pool is not None:
            await self._pool.close()
            self._pool = None


class AsyncpgConnection:
    """One connection of the pool."""

    __slots__ = ("_broken", "_pool", "_prepared", "_proxy")

    def __init__(self, pool: Pool, proxy: Any, prepared: set[str]) -> None:
        self._pool = pool
        self._proxy = proxy
        self._prepared = prepared
        self._broken = False

    @property
    def handle(self) -> Handle:
        connection = self._proxy._con
        if connection._top_xact is None and connection.is_in_transaction():
            # Tell asyncpg about the transaction that our batch began, so that the handler's own
            # `connection.transaction()` becomes a savepoint instead of an InterfaceError.
            transaction = connection.transaction()
            transaction._state = TransactionState.STARTED
            connection._top_xact = transaction
        handle: Handle = self._proxy
        return handle

    async def batch(self, steps: Sequence[Step]) -> int:
        new: list[str] = []
        script = ";".join(self._rendered(steps, new))
        try:
            status = await self._proxy.execute(script)
        except _VENDOR_ERRORS as error:
            # Which of the new statements exist by now is unknown: this connection is not reused.
            self._broken = self._broken or bool(new)
            raise _mapped(error) from error
        self._prepared.update(new)
        if steps[-1] in (Boundary.COMMIT, Boundary.ROLLBACK):
            self._proxy._con._top_xact = None
        return _row_count(status)

    async def fetch(self, statement: Statement) -> list[Row]:
        try:
            return [tuple(record) for record in await self._proxy.fetch(statement.sql, *statement.values)]
        except _VENDOR_ERRORS as error:
            raise _mapped(error) from error

    async def release(self) -> None:
        if self._broken:
            return await self.discard()
        try:
            await self._pool.release(self._proxy)
        except _VENDOR_ERRORS as error:
            raise _mapped(error) from error

    async def discard(self) -> None:
        self._proxy.terminate()
        try:
            await self._pool.release(self._proxy)
        except _VENDOR_ERRORS:
            pass  # terminated: there is nothing to give back

    def _rendered(self, steps: Sequence[Step], new: list[str]) -> Iterable[str]:
        # A pool set up for PgBouncer has no statement cache, and SQL PREPARE would not survive there either.
        preparing = self._proxy._con._stmt_cache.get_max_size() > 0
        for step in steps:
            if isinstance(step, Boundary):
                yield BOUNDARIES[step]
            elif not preparing:
                yield inlined(step)
            else:
                name = _name(step.sql)
                if name not in self._prepared and name not in new:
                    new.append(name)
                    yield f"PREPARE {name} AS {step.sql}"
                yield f"EXECUTE {name}({','.join(map(literal, step.values))})" if step.values else f"EXECUTE {name}"


_names: dict[str, str] = {}


def _name(sql: str) -> str:
    """A name that changes with the text: two releases of onefold may share a server-side session."""
    name = _names.get(sql)
    if name is None:
        name = _names[sql] = "onefold_" + blake2b(sql.encode(), digest_size=8).hexdigest()
    return name


def _row_count(status: str) -> int:
    last = status.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0


def _mapped(error: BaseException) -> OnefoldError:
    return error_for(getattr(error, "sqlstate", None), error)


def _store_error(error: BaseException) -> OnefoldError:
    if isinstance(error, TimeoutError):
        return StoreUnavailable("no Postgres connection became free in time; is the pool large enough?")
    return _mapped(error)
