"""asyncpg: each batch is one simple query, so claim and settle cost one round trip each.

asyncpg cannot pipeline, and a multi-statement simple query answers with the last command's tag only; that tag
carries a row count, which is what a batch promises. Statements are prepared with SQL PREPARE once per
connection, because parsing them again each time costs more than running them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from hashlib import blake2b
from secrets import token_hex
from typing import Any, TypeAlias
from weakref import ref

import asyncpg
from asyncpg.transaction import TransactionState

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold.db.postgres import (
    BOUNDARIES,
    checked_dsn,
    error_for,
    literal,
    none_free,
    not_connected,
    refused,
    rendered,
    script,
)
from onefold.errors import ConfigurationError, OnefoldError

Handle: TypeAlias = "asyncpg.Connection[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

_VENDOR_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

#: SQL PREPARE takes these and refuses the rest (DDL, SET ...).
_PREPARABLE = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|VALUES|WITH)\b", re.IGNORECASE)

_ENDS = (Boundary.COMMIT, Boundary.ROLLBACK)

#: A prepared statement is missing, or there already: not the session it was, or a pooler between us and it.
_NOT_AS_PREPARED = ("26000", "42P05")


class AsyncpgDatabase:
    """A pool of asyncpg connections: the application's own, or one opened from a DSN on first use."""

    dialect = "postgres"

    def __init__(self, pool: Pool | str, *, acquire_timeout_s: float = 10.0, close_timeout_s: float = 10.0) -> None:
        self._dsn = checked_dsn(pool) if isinstance(pool, str) else None
        self._pool = None if isinstance(pool, str) else pool
        self._ready: Pool | None = None
        self._opening = asyncio.Lock()
        self._acquire_timeout_s = acquire_timeout_s
        self._close_timeout_s = close_timeout_s
        #: What each of the pool's connections has prepared. By id, beside the connection itself to tell a reused id.
        self._prepared: dict[int, tuple[ref[Any], set[str]]] = {}
        self.prepares = True
        #: Two of us may share a pool, and so a session: what each prepares there carries a mark of its own.
        self.mark = token_hex(4)

    async def acquire(self) -> AsyncpgConnection:
        try:
            pool = self._ready or await self._opened()
            # A time limit costs a timer: none for a connection that is there.
            proxy: Any = await pool.acquire(timeout=None if _has_one_ready(pool) else self._acquire_timeout_s)
        except asyncpg.exceptions.ClientConfigurationError:
            # Not chained: asyncpg quotes what it could not read, which may be a password.
            raise ConfigurationError("asyncpg cannot read the Postgres DSN") from None
        except TimeoutError as error:
            raise none_free(self._acquire_timeout_s) from error
        except _VENDOR_ERRORS as error:
            raise not_connected(error) from error
        connection = proxy._con  # the pooled connection itself: the proxy is new each time
        known = self._prepared.get(id(connection))
        if known is None or known[0]() is not connection:
            known = self._prepared[id(connection)] = ref(connection, partial(self._forget, id(connection))), set()
        return AsyncpgConnection(self, pool, proxy, known[1])

    def _forget(self, number: int, gone: ref[Any]) -> None:
        known = self._prepared.get(number)
        if known is not None and known[0] is gone:
            del self._prepared[number]

    async def close(self) -> None:
        if self._dsn is not None and self._ready is not None:
            pool, self._ready = self._ready, None
            with suppress(TimeoutError):  # whoever is still at work then is cut off
                await asyncio.wait_for(pool.close(), self._close_timeout_s)

    async def _opened(self) -> Pool:
        async with self._opening:  # a pool refuses to be opened by two tasks at once
            if self._ready is None:
                pool = asyncpg.create_pool(self._dsn, min_size=0) if self._pool is None else self._pool
                _ = await pool  # before asyncpg 0.30, None if it was open already
                self._ready = pool
            return self._ready


class AsyncpgConnection:
    """One connection of the pool."""

    __slots__ = ("_broken", "_connection", "_database", "_pool", "_prepared", "_proxy", "_pure")

    def __init__(self, database: AsyncpgDatabase, pool: Pool, proxy: Any, prepared: set[str]) -> None:
        self._database = database
        self._pool = pool
        self._proxy = proxy
        # The proxy forgets its connection as soon as that is lost.
        self._connection = proxy._con
        self._prepared = prepared
        self._broken = False
        #: Whether the session is as the pool expects it back. Our own statements leave nothing behind.
        self._pure = True

    @property
    def handle(self) -> Handle:
        self._pure = False
        connection = self._connection
        if connection._top_xact is None and self._in_transaction():
            # Tell asyncpg about the transaction that our batch began, so that the handler's own
            # `connection.transaction()` becomes a savepoint instead of an InterfaceError.
            transaction = connection.transaction()
            transaction._state = TransactionState.STARTED
            connection._top_xact = transaction
        handle: Handle = self._proxy
        return handle

    async def batch(self, steps: Sequence[Step]) -> int:
        query, new = self._query(steps)
        purifies = steps[-1] in _ENDS and not self._pure and self._has_the_usual_reset()
        if purifies:
            # The pool would reset the session in a round trip of its own.
            query = f"{query};{self._connection.get_reset_query()}"
        try:
            status = await self._proxy.execute(query)
        except _VENDOR_ERRORS as error:
            if getattr(error, "sqlstate", None) in _NOT_AS_PREPARED:
                self._database.prepares = False
            # Which of the new statements exist by now is unknown: prepare no more here, and do not reuse it.
            self._broken = self._broken or bool(new) or not self._database.prepares
            raise self._mapped(error) from error
        finally:
            connection = self._connection
            if connection._top_xact is not None and (steps[-1] in _ENDS or not self._in_transaction()):
                connection._top_xact = None  # what we told asyncpg is over
        if new:
            self._prepared.update(new)
        self._pure = self._pure or purifies
        return 0 if purifies else _row_count(status)

    async def fetch(self, statement: Statement) -> list[Row]:
        try:
            return [tuple(record) for record in await self._proxy.fetch(statement.sql, *statement.values)]
        except _VENDOR_ERRORS as error:
            raise self._mapped(error) from error

    async def release(self) -> None:
        if self._broken or self._in_transaction():
            return await self.discard()
        connection = self._connection
        spared = self._pure and self._has_the_usual_reset()
        if spared:
            connection._reset_query = ""
        try:
            await self._pool.release(self._proxy)
        except _VENDOR_ERRORS as error:
            raise self._mapped(error) from error
        finally:
            if spared:
                connection._reset_query = None  # found anew when it is next asked for

    def _has_the_usual_reset(self) -> bool:
        """A pool or a connection class with a reset of its own keeps it."""
        usual = type(self._connection).get_reset_query is asyncpg.Connection.get_reset_query
        return usual and getattr(self._pool, "_reset", None) is None

    async def discard(self) -> None:
        self._connection.terminate()
        with suppress(*_VENDOR_ERRORS):  # terminated: there may be nothing to give back
            await self._pool.release(self._proxy)

    def _in_transaction(self) -> bool:
        return not self._connection.is_closed() and bool(self._connection.is_in_transaction())

    def _query(self, steps: Sequence[Step]) -> tuple[str, list[str]]:
        """The batch as one simple query, and the names of the statements it prepares first."""
        # A pool set up for PgBouncer has no statement cache, and SQL PREPARE would not survive there either.
        plan = None
        if self._database.prepares and not self._broken and self._connection._stmt_cache.get_max_size() > 0:
            shape = tuple([(step.sql, len(step.values)) if isinstance(step, Statement) else step for step in steps])
            plan = _plan(shape, self._database.mark)
        if plan is None:
            return script(map(rendered, steps)), []
        new = [name for name in plan.prepares if name not in self._prepared]
        values = [literal(value) for step in steps if isinstance(step, Statement) for value in step.values]
        return (plan.template_preparing(new) if new else plan.template).format(*values), new

    def _mapped(self, error: BaseException) -> OnefoldError:
        sqlstate = getattr(error, "sqlstate", None)
        if isinstance(error, asyncpg.InterfaceError) and not self._connection.is_closed():
            return refused(error)  # asyncpg itself would not send it
        return error_for(sqlstate, error)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How batches of one shape are sent: the query with holes for its values, and what it needs prepared."""

    parts: tuple[tuple[str, str | None], ...]
    """Each step as text, and the name of the statement it executes."""
    prepares: dict[str, str]
    template: str

    def template_preparing(self, new: list[str]) -> str:
        """Each statement is prepared right before it is first executed: BEGIN must come first, and so must the
        ROLLBACK that makes an aborted transaction take statements again."""
        left = set(new)
        texts = []
        for text, name in self.parts:
            if name in left:
                left.remove(name)
                texts.append(f"PREPARE {name} AS {self.prepares[name]}".replace("{", "{{").replace("}", "}}"))
            texts.append(text)
        return script(texts)


@lru_cache(maxsize=1000)
def _plan(shape: tuple[tuple[str, int] | Boundary, ...], mark: str) -> _Plan | None:
    """None: a statement of the batch cannot be prepared."""
    parts: list[tuple[str, str | None]] = []
    prepares: dict[str, str] = {}
    for step in shape:
        if isinstance(step, Boundary):
            parts.append((BOUNDARIES[step], None))
            continue
        sql, count = step
        if not _PREPARABLE.match(sql):
            return None
        holes = ["{}"] * count
        # A name that changes with the text: two releases of onefold may share a server-side session.
        name = f"onefold_{mark}_{blake2b(sql.encode(), digest_size=8).hexdigest()}"
        prepares[name] = sql
        parts.append((f"EXECUTE {name}({','.join(holes)})" if holes else f"EXECUTE {name}", name))
    return _Plan(tuple(parts), prepares, script(text for text, _ in parts))


def _has_one_ready(pool: Any) -> bool:
    """Whether the pool's next connection is free and connected, so that nobody will wait for it."""
    free = pool._queue._queue
    return bool(free) and bool(free[-1].is_connected())


def _row_count(status: str) -> int:
    last = status.rsplit(" ", 1)[-1]
    return int(last) if last.isdigit() else 0
