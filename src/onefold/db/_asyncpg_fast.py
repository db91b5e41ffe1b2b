"""asyncpg by its private names: each batch is one round trip, and connections pass from request to request.

asyncpg cannot pipeline, and a multi-statement simple query answers with the last command's tag only; that tag carries a
row count, which is what a batch promises. Statements are prepared with SQL PREPARE once per connection: parsing them
again each time costs more than running them.

All of asyncpg's private names that the driver uses are in this file, and it is used only with the versions that the
tests have run with, where all of them are there (`may_be_used`). `_asyncpg_public` does without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple
from weakref import ref

import asyncpg
from asyncpg.pool import PoolConnectionHolder, PoolConnectionProxy
from asyncpg.protocol.protocol import PreparedStatementState, Protocol

from onefold._kernel.effects import BatchItem, Boundary, Row, Statement, Value
from onefold._kernel.executors import begin_in_background
from onefold._kernel.public_drivers import may_use_private_names
from onefold._kernel.sqlstates import NOT_AS_PREPARED, sqlstate_of
from onefold.db._asyncpg_pool import FairPool, Pool
from onefold.db._asyncpg_public import VENDOR_ERRORS, AsyncpgQueries, Handle
from onefold.db._bound_batches import Binder, has_secrets
from onefold.db._opened_elsewhere import close_quietly
from onefold.db._postgres_session import as_ourselves, error_for, unsent_error
from onefold.db._postgres_text import qualify_tables, read_tag, render_item
from onefold.db._prepared_batches import Preparer, render_unprepared
from onefold.errors import OnefoldError

TESTED: Final = ((0, 32),)  # minor versions

_NAMES: Final = {
    asyncpg.Pool: "_closing _generation _holders _loop _queue _reset _setup",
    PoolConnectionHolder: "_con _generation _in_use _max_queries _maybe_cancel_inactive_callback _proxy _release "
    "_setup _setup_inactive_callback _timeout",
    PoolConnectionProxy: "_con _detach _holder",
    asyncpg.Connection: "_check_open _execute _listeners _log_listeners _pool_release_ctr _protocol _stmt_cache "
    "_top_xact _transport get_reset_query",
    Protocol: "_is_cancelling _wait_for_cancellation bind_execute_many copy_in copy_out queries_count",
}

#: How often a connection passes from one request to the next before the pool gets it back.
PASSES_MAX = 32


def may_be_used() -> bool:
    """Whether the asyncpg that is installed is one that this file was written for."""
    there = all(hasattr(kind, name) for kind, names in _NAMES.items() for name in names.split())
    return there and may_use_private_names("asyncpg", TESTED)


#: How asyncpg's reset of a session begins: the part of it that is cheaper when it is prepared.
_UNLOCK = Statement("SELECT pg_advisory_unlock_all()")


class SessionReset(NamedTuple):
    """What the pool would send to a session that comes back to it, in a round trip of its own."""

    first: tuple[Statement, ...] = ()
    rest: str = ""
    """What follows."""
    each: tuple[Statement | str, ...] = ()
    """All of it, one by one."""


NO_RESET = SessionReset()


class PooledSession:
    """What outlives a request on a connection of the pool."""

    __slots__ = ("_ends", "connection", "copies", "passed", "prepared", "prepares", "reset", "resets_as_usual")

    def __init__(self, connection: Any, gone: Callable[[ref[Any]], None], pool: Any) -> None:
        self.connection = ref(connection, gone)  # an id may be used again, a reference tells
        #: A pool set up for PgBouncer has no statement cache, and SQL PREPARE would not survive there either.
        self.prepares = connection._stmt_cache.get_max_size() > 0
        self.prepared: set[str] = set()
        #: How often it went from request to request without the pool.
        self.passed = 0
        #: A pool or a connection class with hooks of its own keeps them.
        usual = type(connection).get_reset_query is asyncpg.Connection.get_reset_query
        self.resets_as_usual = usual and getattr(pool, "_reset", None) is None and getattr(pool, "_setup", None) is None
        reset: str = connection.get_reset_query() if self.resets_as_usual else ""
        rest = reset.removeprefix(_UNLOCK.sql)
        first = () if rest == reset else (_UNLOCK,)
        self.reset = SessionReset(first, rest, (*first, *(text.strip() for text in rest.split(";") if text.strip())))
        #: The last statements of bound batches, as asyncpg knows them.
        self._ends: dict[str, PreparedStatementState] = {}
        #: How often COPY was begun, which asyncpg does not count among its queries.
        self.copies = 0
        protocol = connection._protocol
        for name in ("copy_in", "copy_out"):
            setattr(protocol, name, partial(self._copy, getattr(protocol, name)))

    def _copy(self, copy: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.copies += 1
        return copy(*args, **kwargs)

    def end(self, connection: Any, name: str, sql: str) -> PreparedStatementState:
        """A statement without values that our own messages parse. `connection.prepare` would ask the server about it:
        a round trip, on a new connection, between what the handler did and its COMMIT."""
        if name not in self._ends:  # once or twice for each connection of the pool
            self._ends[name] = PreparedStatementState(name, sql, connection._protocol, asyncpg.Record, True)
        return self._ends[name]


class FastPool(FairPool):
    """A pool on its event loop, the line in front of it, and what is known of its sessions."""

    def __init__(self, pool: Pool, *, patience_s: float) -> None:
        super().__init__(pool, patience_s=patience_s)
        #: By the id of the connection.
        self._sessions: dict[int, PooledSession] = {}
        self.preparer = Preparer()
        self.binder = Binder(self.preparer.mark)
        self.prepares = True

    def at_hand(self) -> Any:
        """A connection that no task waits for, if the pool has one that is ready; else None."""
        pool = self.pool
        idle = pool._queue._queue
        if self._line or not idle:
            return None
        holder = idle[-1]
        connection = holder._con
        if connection is None or connection.is_closed() or holder._generation != pool._generation:
            return None  # it has to be connected first
        if holder._setup is not None or pool._closing:
            return None
        idle.pop()
        holder._maybe_cancel_inactive_callback()
        holder._proxy = PoolConnectionProxy(holder, connection)
        holder._in_use = pool._loop.create_future()
        holder._timeout = None
        return holder._proxy

    @staticmethod
    def loop_of(pool: Any) -> Any:
        return pool._loop

    def has_idle(self) -> bool:
        return bool(self.pool._queue._queue)

    def connection(self, proxy: Any, schema: str | None) -> FastConnection:
        connection = proxy._con  # the pooled connection itself: the proxy is new each time
        session = self._sessions.get(id(connection))
        if session is None or session.connection() is not connection:
            gone = partial(self._forget, id(connection))
            session = self._sessions[id(connection)] = PooledSession(connection, gone, self.pool)
        return FastConnection(self, proxy, session, schema)

    def _forget(self, number: int, gone: ref[Any]) -> None:
        session = self._sessions.get(number)
        if session is not None and session.connection is gone:
            del self._sessions[number]

    def may_keep(self, proxy: Any) -> bool:
        """Whether a connection without traces of its last use can be used on as it is. False: there is something about
        it that only the pool knows how to end."""
        holder, connection = proxy._holder, proxy._con
        if connection is None or connection.is_closed():
            return False
        if connection._listeners or connection._log_listeners:
            return False
        protocol = connection._protocol
        if protocol.queries_count >= holder._max_queries or protocol._is_cancelling():
            return False
        return bool(holder._generation == self.pool._generation)

    def renew(self, proxy: Any) -> Any:
        holder, connection = proxy._holder, proxy._con
        connection._pool_release_ctr += 1  # cursors and prepared statements that were made with it are void
        proxy._detach()  # a handler that kept it can do nothing with it
        holder._proxy = PoolConnectionProxy(holder, connection)
        return holder._proxy

    def put_back(self, proxy: Any) -> bool:
        """Give such a connection to the pool. True: a task waits there, and has to be let run to take it."""
        holder = proxy._holder
        waited_for = bool(self.pool._queue._getters)
        proxy._con._pool_release_ctr += 1
        holder._release()
        holder._setup_inactive_callback()
        return waited_for

    def drop(self) -> None:
        """The loop is closed."""
        for holder in self.pool._holders:
            if holder._con is not None:
                close_quietly(holder._con)


class _BegunByBatch:
    """What asyncpg is told about the transaction that our batch began, so that the handler's own
    `connection.transaction()` becomes a savepoint instead of an InterfaceError."""

    _isolation = None  # it asks the server, should it want to know
    _managed = True


class FastConnection(AsyncpgQueries):
    """One connection of the pool."""

    __slots__ = (
        "_broken", "_connection", "_copies", "_executed", "_pool", "_proxy", "_pure", "_sent", "_session", "schema",
    )  # fmt: skip

    def __init__(self, pool: FastPool, proxy: Any, session: PooledSession, schema: str | None) -> None:
        self._pool = pool
        self._proxy = proxy
        # The proxy forgets its connection as soon as that is lost.
        self._connection = proxy._con
        self._session = session
        #: Where our tables are.
        self.schema = schema
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
        protocol = self._connection._protocol  # None once it is closed: then it cannot be told
        counts = protocol is None or protocol.queries_count != self._sent
        return self._executed or counts or self._session.copies != self._copies

    async def batch(self, items: Sequence[BatchItem]) -> int:
        connection, session, pool = self._connection, self._session, self._pool
        protocol = connection._protocol  # None once it is closed
        if not self._pure and protocol is not None and protocol.queries_count != self._sent:
            self._executed = True
        last = items[-1]
        binds = has_secrets(items)
        ends = last is Boundary.COMMIT or last is Boundary.ROLLBACK
        purifies = ends and not self._pure and session.resets_as_usual
        new: set[str] = set()
        try:
            send = self._send_bound if binds else self._send
            status = await send(items, session.reset if purifies else NO_RESET, new)
        except VENDOR_ERRORS as error:
            if sqlstate_of(error) in NOT_AS_PREPARED:
                pool.prepares = False
            # Which of the new statements exist by now is unknown: prepare no more here, and do not reuse it.
            self._broken = self._broken or bool(new) or not pool.prepares
            raise self._translate_error(error) from error
        finally:
            if connection._top_xact is not None and (ends or not self._in_transaction()):
                connection._top_xact = None  # what we told asyncpg is over
        if new:
            session.prepared.update(new)
        if purifies:
            self._pure = True
        protocol = connection._protocol
        if ends and protocol is not None and protocol.queries_count != self._sent:
            # A task that the handler left behind was quicker: it uses the connection now, outside of any transaction.
            self._broken = True
        return read_tag(status) if type(last) is Statement else 0

    # What follows returns what asyncpg makes to be awaited: every coroutine in between is paid for by every request.

    def _send(self, items: Sequence[BatchItem], reset: SessionReset, new: set[str]) -> Awaitable[str]:
        """As one simple query, with the values in it."""
        if not self._pure:
            items = as_ourselves(items)
        if self._prepares:
            query, unknown = self._pool.preparer.query((*items, *reset.first), self._session.prepared, self.schema)
            if unknown:
                new.update(unknown)
        else:
            query = render_unprepared((*items, *reset.first), self.schema)
        return self._execute(f"{query};{reset.rest}" if reset.rest else query)

    def _send_bound(self, items: Sequence[BatchItem], reset: SessionReset, new: set[str]) -> Awaitable[str]:
        """With the values beside the text. asyncpg can send no two statements at once, but it can send one for many
        arguments, which it asks for when it is free to send: then our messages go out in front of its last one."""
        connection, session, is_theirs = self._connection, self._session, not self._pure
        if not self._prepares or len(items) == 1:
            return self._send_one_by_one(as_ourselves(items) if is_theirs else items, reset)
        bind = self._pool.binder.bind
        messages, unknown, last = bind(items, reset.each, session.prepared, self.schema, handed_out=is_theirs)
        if unknown:
            new.update(unknown)
        end, protocol = session.end(connection, last.name, last.sql), connection._protocol
        args, self._sent = _after(connection._transport, messages), protocol.queries_count + 1
        sent: Awaitable[str] = protocol.bind_execute_many(end, args, "", None, False)
        return sent

    async def _send_one_by_one(self, items: Sequence[BatchItem], reset: SessionReset) -> str:
        """Where nothing can be prepared for later: a round trip for each statement that has values."""
        status = ""
        for item in (*items, *reset.first):
            if isinstance(item, Statement) and item.values:
                _, said, _ = await self._execute_ours(qualify_tables(item.sql, self.schema), item.values, status=True)
                status = said.decode()
            else:
                status = await self._execute(render_item(item, self.schema))
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
        prepares = self._pool.prepares and self._session.prepares and not self._broken
        return prepares and self._connection._protocol is not None

    async def fetch(self, statement: Statement) -> list[Row]:
        sql = qualify_tables(statement.sql, self.schema)
        try:
            return [tuple(record) for record in await self._execute_ours(sql, statement.values)]
        except VENDOR_ERRORS as error:
            raise self._translate_error(error) from error

    async def release(self) -> None:
        if self._broken or self._in_transaction():
            await self.discard()
            return
        session, pool, proxy = self._session, self._pool, self._proxy
        if self._pure and session.resets_as_usual and pool.may_keep(proxy):
            session.passed = (session.passed + 1) % PASSES_MAX
            if not (session.passed and pool.pass_on(proxy)) and pool.put_back(proxy):
                await asyncio.sleep(0)
            return
        try:
            await pool.pool.release(proxy, timeout=pool.patience_s)
        except VENDOR_ERRORS as error:
            raise self._translate_error(error) from error

    async def discard(self) -> None:
        connection = self._connection
        if not connection.is_closed() and connection._protocol._is_cancelling():
            # A task that is cancelled here stops waiting. The connection goes all the same, or its place in the pool
            # would be lost: nothing else refers to it any more.
            await asyncio.shield(begin_in_background(self._terminate(cancelling=True)))
        else:
            await self._terminate()

    async def _terminate(self, *, cancelling: bool = False) -> None:
        connection, pool = self._connection, self._pool
        if cancelling:
            # A statement was cancelled: let asyncpg tell the server so, which would otherwise finish it first, and keep
            # the request's locks as long.
            with suppress(*VENDOR_ERRORS):  # it does not hear
                await connection._protocol._wait_for_cancellation(pool.patience_s)
        connection.terminate()
        with suppress(*VENDOR_ERRORS):  # terminated: there may be nothing to give back
            await pool.pool.release(self._proxy)

    def _in_transaction(self) -> bool:
        return not self._connection.is_closed() and bool(self._connection.is_in_transaction())

    def _translate_error(self, error: BaseException) -> OnefoldError:
        connection = self._connection
        # The server's end may have closed the transport already, and asyncpg hear of it only in the loop's next turn.
        alive = not connection.is_closed() and not connection._transport.is_closing()
        if isinstance(error, asyncpg.InterfaceError) and alive:
            return unsent_error(error)  # asyncpg itself would not send it
        return error_for(sqlstate_of(error), error)


def _after(transport: Any, messages: bytes) -> Iterator[tuple[()]]:
    """The arguments of the last statement (none), after what goes in front of it."""
    transport.write(messages)
    yield ()
