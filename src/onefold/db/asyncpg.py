"""asyncpg: each batch is one simple query, so claim and settle cost one round trip each.

asyncpg cannot pipeline, and a multi-statement simple query answers with the last command's tag only; that tag
carries a row count, which is what a batch promises. Statements are prepared with SQL PREPARE once per
connection, because parsing them again each time costs more than running them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeAlias
from weakref import ref

from onefold._kernel.extras import missing_extra

try:
    import asyncpg
except ModuleNotFoundError as error:
    raise missing_extra(error, "asyncpg") from None

from onefold._kernel.effects import Boundary, Row, Statement, Step, Value
from onefold._kernel.executors import begin_in_background, in_background
from onefold.db._asyncpg_pool import FairPool, Pool
from onefold.db._asyncpg_sessions import NO_RESET, Reset, Session
from onefold.db._bound_batches import Binder, has_secrets
from onefold.db._fork_and_loop import PerLoop, close_quietly, elsewhere
from onefold.db._postgres import (
    FIND_TABLES,
    Place,
    as_ourselves,
    checked_dsn,
    error_for,
    none_free,
    not_connected,
    placed,
    refused,
    rendered,
)
from onefold.db._prepared_batches import NOT_AS_PREPARED, Preparer, unprepared
from onefold.errors import ConfigurationError, OnefoldError

__all__ = ["AsyncpgDatabase"]

Handle: TypeAlias = "asyncpg.Connection[asyncpg.Record]"

_VENDOR_ERRORS = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,
    TimeoutError,
)

#: How often a connection passes from one request to the next before the pool gets it back.
PASSES_MAX = 32


class AsyncpgDatabase:
    """A pool of asyncpg connections: the application's own, or one opened from a DSN on first use."""

    dialect = "postgres"

    def __init__(self, pool: Pool | str, *, acquire_timeout_s: float = 10.0, close_timeout_s: float = 10.0) -> None:
        self._dsn = checked_dsn(pool) if isinstance(pool, str) else None
        self._pool: Any = None if isinstance(pool, str) else pool
        self._opened = PerLoop(_Opened, _Opened.drop)
        self._acquire_timeout_s = acquire_timeout_s
        self._close_timeout_s = close_timeout_s
        #: What is known of each of the pool's connections, by id.
        self._sessions: dict[int, Session] = {}
        self._place = Place()
        self.preparer = Preparer()
        self.binder = Binder(self.preparer.mark)
        self.prepares = True

    async def acquire(self) -> AsyncpgConnection:
        try:
            opened = self._opened.here()
            turns = opened.turns or await self._open(opened)
            proxy: Any = turns.at_hand() or await turns.take()
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
            session = self._sessions[id(connection)] = Session(connection, gone, turns.pool)
        taken = AsyncpgConnection(self, turns, proxy, session, self._place.schema)
        if self._place.schema is None:
            await taken.find_tables(self._place)
        return taken

    def _forget(self, number: int, gone: ref[Any]) -> None:
        session = self._sessions.get(number)
        if session is not None and session.connection is gone:
            del self._sessions[number]

    async def close(self) -> None:
        for opened in self._opened.take() if self._dsn is not None else ():
            if opened.turns is not None:
                with suppress(TimeoutError):  # whoever is still at work then is cut off
                    await asyncio.wait_for(opened.turns.pool.close(), self._close_timeout_s)

    async def _open(self, opened: _Opened) -> FairPool:
        if self._pool is not None and self._pool._loop is not asyncio.get_running_loop():
            raise elsewhere("asyncpg pool")
        async with opened.opening:  # a pool refuses to be opened by two tasks at once
            if opened.turns is None:
                pool = asyncpg.create_pool(self._dsn, min_size=0) if self._pool is None else self._pool
                _ = await pool
                opened.turns = FairPool(pool, patience_s=self._acquire_timeout_s)
            return opened.turns


class _Opened:
    """What is opened on one event loop."""

    __slots__ = ("opening", "turns")

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.turns: FairPool | None = None

    def drop(self) -> None:
        """The loop is closed."""
        if self.turns is not None:
            for holder in self.turns.pool._holders:
                if holder._con is not None:
                    close_quietly(holder._con)


class _BegunByBatch:
    """What asyncpg is told about the transaction that our batch began, so that the handler's own
    `connection.transaction()` becomes a savepoint instead of an InterfaceError."""

    _isolation = None  # it asks the server, should it want to know
    _managed = True


class AsyncpgConnection:
    """One connection of the pool."""

    __slots__ = (
        "_broken", "_connection", "_copies", "_database", "_executed", "_proxy", "_pure", "_schema", "_sent",
        "_session", "_turns",
    )  # fmt: skip

    def __init__(
        self, database: AsyncpgDatabase, turns: FairPool, proxy: Any, session: Session, schema: str | None
    ) -> None:
        self._database = database
        self._turns = turns
        self._proxy = proxy
        # The proxy forgets its connection as soon as that is lost.
        self._connection = proxy._con
        self._session = session
        #: Where our tables are.
        self._schema = schema
        self._broken = False
        #: How many queries asyncpg has sent on this connection with our last one.
        self._sent = 0
        #: Whether the handler had sent one before that, and how often COPY was begun before it had the connection.
        self._executed = False
        self._copies = session.copies
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

    @property
    def executed(self) -> bool:
        """Whether the handler has had anything executed: what it forgets to await is not even sent."""
        protocol = self._connection._protocol  # None once it is closed: then nobody can tell
        counts = protocol is None or protocol.queries_count != self._sent
        return self._executed or counts or self._session.copies != self._copies

    async def batch(self, steps: Sequence[Step]) -> int:
        connection, session, database = self._connection, self._session, self._database
        protocol = connection._protocol  # None once it is closed
        if not self._pure and protocol is not None and protocol.queries_count != self._sent:
            self._executed = True
        last = steps[-1]
        binds = has_secrets(steps)
        if not self._pure:
            steps = as_ourselves(steps)
        ends = last is Boundary.COMMIT or last is Boundary.ROLLBACK
        purifies = ends and not self._pure and session.resets_as_usual
        new: set[str] = set()
        try:
            send = self._send_bound if binds else self._send
            status = await send(steps, session.reset if purifies else NO_RESET, new)
        except _VENDOR_ERRORS as error:
            if getattr(error, "sqlstate", None) in NOT_AS_PREPARED:
                database.prepares = False
            # Which of the new statements exist by now is unknown: prepare no more here, and do not reuse it.
            self._broken = self._broken or bool(new) or not database.prepares
            raise self._mapped(error) from error
        finally:
            if connection._top_xact is not None and (ends or not self._in_transaction()):
                connection._top_xact = None  # what we told asyncpg is over
        if new:
            session.prepared.update(new)
        if purifies:
            self._pure = True
        protocol = connection._protocol
        if ends and protocol is not None and protocol.queries_count != self._sent:
            # A task that the handler left behind was quicker than we are: it is at it now, in nobody's transaction.
            self._broken = True
        return _row_count(status) if isinstance(last, Statement) else 0

    # What follows returns what asyncpg makes to be awaited: every coroutine in between is paid for by every request.

    def _send(self, steps: Sequence[Step], reset: Reset, new: set[str]) -> Awaitable[str]:
        """As one simple query, with the values in it."""
        if self._prepares:
            query, unknown = self._database.preparer.query((*steps, *reset.first), self._session.prepared, self._schema)
            if unknown:
                new.update(unknown)
        else:
            query = unprepared((*steps, *reset.first), self._schema)
        return self._execute(f"{query};{reset.rest}" if reset.rest else query)

    def _send_bound(self, steps: Sequence[Step], reset: Reset, new: set[str]) -> Awaitable[str]:
        """With the values beside the text. asyncpg can send no two statements at once, but it can send one for many
        arguments, which it asks for when it is free to send: then our messages go out in front of its last one."""
        connection, session, schema = self._connection, self._session, self._schema
        if not self._prepares or len(steps) == 1:
            return self._send_one_by_one(steps, reset)
        messages, unknown, last = self._database.binder.bind(steps, reset.each, session.prepared, schema)
        if unknown:
            new.update(unknown)
        end = session.end(connection, last.name, last.sql)
        self._sent = connection._protocol.queries_count + 1
        arguments = _after(connection._transport, messages)
        sent: Awaitable[str] = connection._protocol.bind_execute_many(end, arguments, "", None, False)
        return sent

    async def _send_one_by_one(self, steps: Sequence[Step], reset: Reset) -> str:
        """Where nothing can be prepared for later: a round trip for each statement that has values."""
        status = ""
        for step in (*steps, *reset.first):
            if isinstance(step, Statement) and step.values:
                _, said, _ = await self._execute_ours(placed(step.sql, self._schema), step.values, status=True)
                status = said.decode()
            else:
                status = await self._execute(rendered(step, self._schema))
        return await self._execute(reset.rest) if reset.rest else status

    def _execute(self, query: str) -> Awaitable[str]:
        protocol = self._connection._protocol  # None once it is closed
        self._sent = 0 if protocol is None else protocol.queries_count + 1
        sent: Awaitable[str] = self._connection.execute(query)
        return sent

    def _execute_ours(self, query: str, values: tuple[Value, ...], *, status: bool = False) -> Awaitable[Any]:
        """Read and write values as asyncpg does by default, whatever codecs the application has set on its connections:
        what those make of a bool, an int or bytes is not what our flows can read."""
        connection = self._connection
        connection._check_open()
        self._sent = connection._protocol.queries_count + 1
        sent: Awaitable[Any] = connection._execute(
            query, values, 0, None, return_status=status, record_class=asyncpg.Record, ignore_custom_codec=True
        )
        return sent

    @property
    def _prepares(self) -> bool:
        prepares = self._database.prepares and self._session.prepares and not self._broken
        return prepares and self._connection._protocol is not None

    async def fetch(self, statement: Statement) -> list[Row]:
        sql = placed(statement.sql, self._schema)
        try:
            return [tuple(record) for record in await self._execute_ours(sql, statement.values)]
        except _VENDOR_ERRORS as error:
            raise self._mapped(error) from error

    async def find_tables(self, place: Place) -> None:
        try:
            self._schema = place.read(await self.fetch(FIND_TABLES))
        except OnefoldError as error:
            await self.discard()
            raise not_connected(error) from error
        except BaseException:  # a cancelled task must not wait for a connection in an unknown state
            in_background(self.discard())
            raise

    async def release(self) -> None:
        if self._broken or self._in_transaction():
            await self.discard()
            return
        session, turns, proxy = self._session, self._turns, self._proxy
        if self._pure and session.resets_as_usual and turns.may_keep(proxy):
            session.passed = (session.passed + 1) % PASSES_MAX
            if not (session.passed and turns.pass_on(proxy)) and turns.put_back(proxy):
                await asyncio.sleep(0)
            return
        try:
            await turns.pool.release(proxy, timeout=turns.patience_s)
        except _VENDOR_ERRORS as error:
            raise self._mapped(error) from error

    async def discard(self) -> None:
        connection = self._connection
        if not connection.is_closed() and connection._protocol._is_cancelling():
            # Whoever is cancelled here stops waiting. The connection goes all the same, or its place in the pool would
            # be lost: nobody else knows of it any more.
            await asyncio.shield(begin_in_background(self._terminate(cancelling=True)))
        else:
            await self._terminate()

    async def _terminate(self, *, cancelling: bool = False) -> None:
        connection, turns = self._connection, self._turns
        if cancelling:
            # A statement was cancelled: let asyncpg tell the server so, which would otherwise finish it first, and keep
            # the request's locks as long.
            with suppress(*_VENDOR_ERRORS):  # it does not hear
                await connection._protocol._wait_for_cancellation(turns.patience_s)
        connection.terminate()
        with suppress(*_VENDOR_ERRORS):  # terminated: there may be nothing to give back
            await turns.pool.release(self._proxy)

    def _in_transaction(self) -> bool:
        return not self._connection.is_closed() and bool(self._connection.is_in_transaction())

    def _mapped(self, error: BaseException) -> OnefoldError:
        sqlstate = getattr(error, "sqlstate", None)
        connection = self._connection
        # The server's end may have closed the transport already, and asyncpg hear of it only in the loop's next turn.
        alive = not connection.is_closed() and not connection._transport.is_closing()
        if isinstance(error, asyncpg.InterfaceError) and alive:
            return refused(error)  # asyncpg itself would not send it
        return error_for(sqlstate, error)


def _after(transport: Any, messages: bytes) -> Iterator[tuple[()]]:
    """The arguments of the last statement (none), after what goes in front of it."""
    transport.write(messages)
    yield ()


def _row_count(status: str) -> int:
    count = status.rpartition(" ")[2]
    return int(count) if count.isdigit() else 0
