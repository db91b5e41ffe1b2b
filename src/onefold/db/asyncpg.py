"""asyncpg: each batch is one simple query, so claim and settle cost one round trip each.

asyncpg cannot pipeline, and a multi-statement simple query answers with the last command's tag only; that tag
carries a row count, which is what a batch promises. Statements are prepared with SQL PREPARE once per
connection, because parsing them again each time costs more than running them.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from secrets import token_hex
from typing import Any, TypeAlias
from weakref import ref

import asyncpg

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold.db.postgres import (
    BOUNDARIES,
    checked_dsn,
    error_for,
    literals,
    none_free,
    not_connected,
    placeholders,
    refused,
    rendered,
    script,
)
from onefold.db.turns import Pool, Turns
from onefold.errors import ConfigurationError, OnefoldError

Handle: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_VENDOR_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

#: SQL PREPARE takes these and refuses the rest (DDL, SET ...).
_PREPARABLE = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|MERGE|VALUES|WITH)\b", re.IGNORECASE)

#: How asyncpg's reset of a session begins: the part of it that is cheaper when it is prepared.
_UNLOCK = Statement("SELECT pg_advisory_unlock_all()")

#: How often a connection passes from one request to the next before the pool gets it back.
PASSES_MAX = 32

#: A prepared statement is missing, or there already: not the session it was, or a pooler between us and it.
_NOT_AS_PREPARED = ("26000", "42P05")


class AsyncpgDatabase:
    """A pool of asyncpg connections: the application's own, or one opened from a DSN on first use."""

    dialect = "postgres"

    def __init__(self, pool: Pool | str, *, acquire_timeout_s: float = 10.0, close_timeout_s: float = 10.0) -> None:
        self._dsn = checked_dsn(pool) if isinstance(pool, str) else None
        self._pool = None if isinstance(pool, str) else pool
        self._turns: Turns | None = None
        self._opening = asyncio.Lock()
        self._acquire_timeout_s = acquire_timeout_s
        self._close_timeout_s = close_timeout_s
        #: What is known of each of the pool's connections, by id.
        self._sessions: dict[int, _Session] = {}
        self.prepares = True
        #: Two of us may share a pool, and so a session: what each prepares there carries a mark of its own.
        self._mark = token_hex(4)
        self._plans: dict[tuple[str | Boundary, ...], _Plan | None] = {}

    async def acquire(self) -> AsyncpgConnection:
        try:
            turns = self._turns or await self._opened()
            proxy: Any = await turns.take()
        except asyncpg.exceptions.ClientConfigurationError:
            # Not chained: asyncpg quotes what it could not read, which may be a password.
            raise ConfigurationError("asyncpg cannot read the Postgres DSN") from None
        except TimeoutError as error:
            raise none_free(self._acquire_timeout_s) from error
        except _VENDOR_ERRORS as error:
            raise not_connected(error) from error
        connection = proxy._con  # the pooled connection itself: the proxy is new each time
        session = self._sessions.get(id(connection))
        if session is None or session.connection() is not connection:
            gone = partial(self._forget, id(connection))
            session = self._sessions[id(connection)] = _Session(ref(connection, gone), type(connection), turns.pool)
        return AsyncpgConnection(self, turns, proxy, session)

    def plan(self, steps: Sequence[Step]) -> _Plan | None:
        """How to send batches of this shape. None: a statement of it cannot be prepared."""
        shape = tuple([step.sql if isinstance(step, Statement) else step for step in steps])
        try:
            return self._plans[shape]
        except KeyError:  # once for each place in onefold that sends a batch
            return self._plans.setdefault(shape, _planned(steps, self._mark))

    def _forget(self, number: int, gone: ref[Any]) -> None:
        session = self._sessions.get(number)
        if session is not None and session.connection is gone:
            del self._sessions[number]

    async def close(self) -> None:
        if self._dsn is not None and self._turns is not None:
            turns, self._turns = self._turns, None
            with suppress(TimeoutError):  # whoever is still at work then is cut off
                await asyncio.wait_for(turns.pool.close(), self._close_timeout_s)

    async def _opened(self) -> Turns:
        async with self._opening:  # a pool refuses to be opened by two tasks at once
            if self._turns is None:
                pool = asyncpg.create_pool(self._dsn, min_size=0) if self._pool is None else self._pool
                _ = await pool
                self._turns = Turns(pool, patience_s=self._acquire_timeout_s)
            return self._turns


class _Session:
    """What outlives a request on a connection of the pool."""

    __slots__ = ("connection", "passed", "prepared", "resets_as_usual")

    def __init__(self, connection: ref[Any], kind: type[Any], pool: Any) -> None:
        self.connection = connection  # an id may be used again, a reference tells
        self.prepared: set[str] = set()
        #: How often it went from request to request without the pool.
        self.passed = 0
        #: A pool or a connection class with hooks of its own keeps them.
        usual = kind.get_reset_query is asyncpg.Connection.get_reset_query
        self.resets_as_usual = usual and getattr(pool, "_reset", None) is None and getattr(pool, "_setup", None) is None


class _BegunByBatch:
    """What asyncpg is told about the transaction that our batch began, so that the handler's own
    `connection.transaction()` becomes a savepoint instead of an InterfaceError."""

    _isolation = "read_committed"
    _managed = True


class AsyncpgConnection:
    """One connection of the pool."""

    __slots__ = ("_broken", "_connection", "_database", "_proxy", "_pure", "_session", "_turns")

    def __init__(self, database: AsyncpgDatabase, turns: Turns, proxy: Any, session: _Session) -> None:
        self._database = database
        self._turns = turns
        self._proxy = proxy
        # The proxy forgets its connection as soon as that is lost.
        self._connection = proxy._con
        self._session = session
        self._broken = False
        #: Whether the session is as the pool expects it back. Our own statements leave nothing behind.
        self._pure = True

    @property
    def handle(self) -> Handle:
        self._pure = False
        connection = self._connection
        if connection._top_xact is None and self._in_transaction():
            connection._top_xact = _BegunByBatch
        handle: Handle = self._proxy
        return handle

    async def batch(self, steps: Sequence[Step]) -> int:
        connection = self._connection
        last = steps[-1]
        ends = last is Boundary.COMMIT or last is Boundary.ROLLBACK
        purifies = ends and not self._pure and self._session.resets_as_usual
        if purifies:
            # The pool would reset the session in a round trip of its own.
            reset: str = connection.get_reset_query()
            rest = reset.removeprefix(_UNLOCK.sql)
            query, new = self._query((*steps, _UNLOCK) if rest != reset else steps)
            query = f"{query};{rest}"
        else:
            query, new = self._query(steps)
        try:
            status: str = await connection.execute(query)
        except _VENDOR_ERRORS as error:
            if getattr(error, "sqlstate", None) in _NOT_AS_PREPARED:
                self._database.prepares = False
            # Which of the new statements exist by now is unknown: prepare no more here, and do not reuse it.
            self._broken = self._broken or bool(new) or not self._database.prepares
            raise self._mapped(error) from error
        finally:
            if connection._top_xact is not None and (ends or not self._in_transaction()):
                connection._top_xact = None  # what we told asyncpg is over
        if new:
            self._session.prepared.update(new)
        if purifies:
            self._pure = True
        return 0 if isinstance(last, Boundary) else _row_count(status)

    async def fetch(self, statement: Statement) -> list[Row]:
        try:
            return [tuple(record) for record in await self._connection.fetch(statement.sql, *statement.values)]
        except _VENDOR_ERRORS as error:
            raise self._mapped(error) from error

    async def release(self) -> None:
        if self._broken or self._in_transaction():
            return await self.discard()
        connection, session, turns = self._connection, self._session, self._turns
        if not (self._pure and session.resets_as_usual):
            return await self._to_pool(turns.pool.release(self._proxy, timeout=turns.patience_s))
        session.passed += 1
        if session.passed < PASSES_MAX and turns.pass_on(self._proxy):
            return None
        session.passed = 0
        # No reset is sent, so nothing is waited for: the task that the pool would shield it with is spared too.
        connection._on_release()
        connection._reset_query = ""
        try:
            await self._to_pool(self._proxy._holder.release(None))
        finally:
            connection._reset_query = None  # found anew when it is next asked for

    async def _to_pool(self, release: Awaitable[None]) -> None:
        try:
            await release
        except _VENDOR_ERRORS as error:
            raise self._mapped(error) from error

    async def discard(self) -> None:
        self._connection.terminate()
        with suppress(*_VENDOR_ERRORS):  # terminated: there may be nothing to give back
            await self._turns.pool.release(self._proxy)

    def _in_transaction(self) -> bool:
        return not self._connection.is_closed() and bool(self._connection.is_in_transaction())

    def _query(self, steps: Sequence[Step]) -> tuple[str, Collection[str]]:
        """The batch as one simple query, and the names of the statements it prepares first."""
        # A pool set up for PgBouncer has no statement cache, and SQL PREPARE would not survive there either.
        prepares = self._database.prepares and not self._broken and self._connection._stmt_cache.get_max_size() > 0
        plan = self._database.plan(steps) if prepares else None
        if plan is None:
            return script(map(rendered, steps)), ()
        values = literals([value for step in steps if isinstance(step, Statement) for value in step.values])
        new = plan.prepares.keys() - self._session.prepared
        return (plan.template_preparing(new) if new else plan.template) % values, new

    def _mapped(self, error: BaseException) -> OnefoldError:
        sqlstate = getattr(error, "sqlstate", None)
        if isinstance(error, asyncpg.InterfaceError) and not self._connection.is_closed():
            return refused(error)  # asyncpg itself would not send it
        return error_for(sqlstate, error)


@dataclass(frozen=True, slots=True)
class _Plan:
    """How batches of one shape are sent: the query with `%s` for its values, and what it needs prepared."""

    parts: tuple[tuple[str, str | None], ...]
    """Each step as text, and the name of the statement it executes."""
    prepares: dict[str, str]
    template: str

    def template_preparing(self, new: Collection[str]) -> str:
        """Each statement is prepared right before it is first executed: BEGIN must come first, and so must the
        ROLLBACK that makes an aborted transaction take statements again."""
        left = set(new)
        texts = []
        for text, name in self.parts:
            if name in left:
                left.remove(name)
                texts.append(f"PREPARE {name} AS {self.prepares[name]}".replace("%", "%%"))
            texts.append(text)
        return script(texts)


def _planned(steps: Sequence[Step], mark: str) -> _Plan | None:
    parts: list[tuple[str, str | None]] = []
    prepares: dict[str, str] = {}
    for step in steps:
        if isinstance(step, Boundary):
            parts.append((BOUNDARIES[step], None))
            continue
        if not _PREPARABLE.match(step.sql):
            return None
        # A name that changes with the text: two releases of onefold may share a server-side session.
        name = f"onefold_{mark}_{blake2b(step.sql.encode(), digest_size=8).hexdigest()}"
        prepares[name] = step.sql
        holes = ",".join(["%s"] * placeholders(step.sql))
        parts.append((f"EXECUTE {name}({holes})" if holes else f"EXECUTE {name}", name))
    return _Plan(tuple(parts), prepares, script(text for text, _ in parts))


def _row_count(status: str) -> int:
    count = status.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
