"""asyncpg by its private names: each batch is one round trip, and connections pass from request to request.

asyncpg cannot pipeline, and a multi-statement simple query answers with the last command's tag only; that tag carries a
row count, which is what a batch promises. Statements are prepared with SQL PREPARE once per connection: parsing them
again each time costs more than running them.

All of asyncpg's private names that the driver uses are in this file and in `_asyncpg_statements`, which are used only
with the versions that the tests have run with, where all of them are there (`may_be_used`). `_asyncpg_public` does
without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple, TypeAlias

import asyncpg
from asyncpg.pool import PoolConnectionHolder, PoolConnectionProxy
from asyncpg.protocol.protocol import PreparedStatementState, Protocol

from onefold._kernel.checkout import log_release_error
from onefold._kernel.effects import BatchItem, Boundary, Statement
from onefold._kernel.executors import begin_in_background
from onefold._kernel.public_drivers import may_use_private_names
from onefold._kernel.sqlstates import NOT_AS_PREPARED, sqlstate_of
from onefold.db._asyncpg_pool import FairPool, Pool
from onefold.db._asyncpg_public import RELEASE_FAILED, VENDOR_ERRORS, Handle
from onefold.db._asyncpg_session import NO_RESET, BegunByBatch, CopyCount, SessionReset, split_reset
from onefold.db._asyncpg_statements import AsyncpgStatements, forget_outdated
from onefold.db._opened_elsewhere import close_quietly
from onefold.db._postgres_batches import ITEMS_MAX, Binder, Plans, Preparer, has_secrets, render_unprepared, shape_of
from onefold.db._postgres_session import as_ourselves, error_for, unsent_error
from onefold.db._postgres_text import qualify_tables, read_tag, render_item
from onefold.errors import OnefoldError

TESTED: Final = ((0, 32),)  # minor versions

_NAMES: Final = {
    asyncpg.Pool: "_closing _generation _holders _loop _queue _reset _setup",
    PoolConnectionHolder: "_con _generation _in_use _max_queries _maybe_cancel_inactive_callback _proxy _release "
    "_setup_inactive_callback",
    PoolConnectionProxy: "_con _detach _holder",
    asyncpg.Connection: "_check_open _drop_global_statement_cache _drop_global_type_cache _execute _listeners "
    "_log_listeners _pool_release_ctr _protocol _query_loggers _stmt_cache _top_xact _transport get_reset_query",
    Protocol: "_is_cancelling _wait_for_cancellation bind_execute bind_execute_many copy_in copy_out is_in_transaction "
    "queries_count query",
}

#: How often a connection passes from one request to the next before the pool gets it back.
PASSES_MAX = 32


def may_be_used() -> bool:
    """Whether the asyncpg that is installed is one that this file was written for."""
    there = all(hasattr(kind, name) for kind, names in _NAMES.items() for name in names.split())
    return there and may_use_private_names("asyncpg", TESTED)


class KnownBatch(NamedTuple):
    """Batches of one shape, for a session that has all their statements."""

    write: Callable[[Sequence[BatchItem]], Any]
    """A simple query, or messages that stand in front of the end."""
    end: PreparedStatementState | None
    """The last statement, as asyncpg knows it. None: of a simple query."""


class PooledSession:
    """What outlives a request on a connection of the pool."""

    __slots__ = (
        "connection", "copies", "known", "passed", "prepared", "prepares", "protocol", "reset", "resets_as_usual",
    )  # fmt: skip

    def __init__(self, connection: Any, pool: Any) -> None:
        self.connection = connection
        #: A connection that is closed has none any more. This one refuses then what it is asked for.
        self.protocol = connection._protocol
        #: A pool set up for PgBouncer has no statement cache, and SQL PREPARE would not survive there either.
        self.prepares = connection._stmt_cache.get_max_size() > 0
        self.prepared: set[str] = set()
        #: By their shape, the schema, and whether they come before the handler.
        self.known: Plans[KnownBatch] = Plans()
        #: How often it went from request to request without the pool.
        self.passed = 0
        #: A pool or a connection class with hooks of its own keeps them.
        usual = type(connection).get_reset_query is asyncpg.Connection.get_reset_query
        self.resets_as_usual = usual and getattr(pool, "_reset", None) is None and getattr(pool, "_setup", None) is None
        self.reset = split_reset(connection.get_reset_query()) if self.resets_as_usual else NO_RESET
        self.copies = CopyCount(self.protocol)


class FastPool(FairPool):
    """A pool on its event loop, the line in front of it, and what is known of its sessions."""

    def __init__(self, pool: Pool, *, patience_s: float) -> None:
        super().__init__(pool, patience_s=patience_s)
        #: By the pool's own places for them.
        self._sessions: dict[PoolConnectionHolder, PooledSession] = {}
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
        if pool._setup is not None or pool._closing:
            return None
        idle.pop()
        holder._maybe_cancel_inactive_callback()
        holder._proxy = PoolConnectionProxy(holder, connection)
        holder._in_use = pool._loop.create_future()
        return holder._proxy

    @staticmethod
    def loop_of(pool: Any) -> Any:
        return pool._loop

    def has_idle(self) -> bool:
        return bool(self.pool._queue._queue)

    def connection(self, proxy: Any, schema: str | None) -> FastConnection:
        holder, connection = proxy._holder, proxy._con  # the pooled connection itself: the proxy is new each time
        session = self._sessions.get(holder)
        if session is None or session.connection is not connection:
            session = self._sessions[holder] = PooledSession(connection, self.pool)
        return FastConnection(self, proxy, session, schema)

    def stop_preparing(self) -> None:
        """A session was found to have other statements than it was given: a pooler changes sessions under us, or the
        application discards what they have."""
        self.prepares = False
        for session in self._sessions.values():
            session.known.clear()

    def may_keep(self, proxy: Any) -> bool:
        """Whether a connection without traces of its last use can be used on as it is. False: there is something about
        it that only the pool knows how to end."""
        holder, connection = proxy._holder, proxy._con
        if connection is None or connection.is_closed():
            return False
        protocol = connection._protocol
        return not (
            connection._listeners
            or connection._log_listeners
            or protocol.queries_count >= holder._max_queries
            or protocol._is_cancelling()
            or holder._generation != self.pool._generation
        )

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


#: A batch as it is sent, what it prepares, and what is known of such batches once it is done.
_Written: TypeAlias = tuple[str | bytes, Collection[str], KnownBatch | None]


class FastConnection(AsyncpgStatements):
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
        self._copies = session.copies.begun
        #: Whether the session is as the pool expects it back. Our own statements leave nothing behind.
        self._pure = True

    @property
    def handle(self) -> Handle:
        self._pure = False
        connection = self._connection
        if connection._top_xact is None and self._session.protocol.is_in_transaction():
            connection._top_xact = BegunByBatch
        handle: Handle = self._proxy
        return handle

    @property
    def executed(self) -> bool:
        """Whether the handler has had anything executed: what it forgets to await is not even sent."""
        if self._connection.is_closed():
            return True  # it cannot be told
        session = self._session
        counts = session.protocol.queries_count != self._sent
        return self._executed or counts or session.copies.begun != self._copies

    async def batch(self, items: Sequence[BatchItem]) -> int:
        session, pure = self._session, self._pure
        protocol = session.protocol
        if not pure and protocol.queries_count != self._sent:
            self._executed = True
        known = session.known.get((self.schema, pure, shape_of(items)))
        try:
            if known is None:
                status = await self._send_anew(items)
            else:
                write, end = known
                status = await self._send(write(items), end)
        except VENDOR_ERRORS as error:
            if sqlstate_of(error) in NOT_AS_PREPARED:
                self._pool.stop_preparing()
            if not self._pool.prepares:
                self._break()
            raise self._translate_error(error) from error
        finally:
            if not pure and not protocol.is_in_transaction():
                self._connection._top_xact = None  # what we told asyncpg is over
        last = items[-1]
        if type(last) is Statement:
            return read_tag(status)
        if last is Boundary.COMMIT or last is Boundary.ROLLBACK:
            self._pure = pure or session.resets_as_usual
            if protocol.queries_count != self._sent:
                # A task that the handler left behind was quicker: it uses the connection now, outside of ours.
                self._broken = True
        return 0

    async def _send_anew(self, items: Sequence[BatchItem]) -> str:
        """Send a batch that nothing is known of, and keep how it was sent, for the next one."""
        session, pure, prepares = self._session, self._pure, self._prepares
        reset = session.reset if not pure and items[-1] in (Boundary.COMMIT, Boundary.ROLLBACK) else NO_RESET
        sent = items if pure else as_ourselves(items)
        if has_secrets(items):
            if not prepares or len(items) == 1:
                return await self._send_one_by_one(sent, reset)
            written, new, known = self._bind_anew(items, (*sent, *reset.each))
        elif prepares:
            written, new, known = self._prepare_anew(items, (*sent, *reset.first), reset.rest)
        else:
            return await self._send(render_unprepared((*sent, *reset.first), self.schema) + reset.rest)
        try:
            status = await self._send(written, None if known is None else known.end)
        except VENDOR_ERRORS:
            if new:  # which of them exist by now is unknown
                self._break()
            raise
        session.prepared.update(new)
        if known is not None and len(items) <= ITEMS_MAX and self._prepares:
            session.known.keep((self.schema, pure, shape_of(items)), known)
        return status

    def _bind_anew(self, items: Sequence[BatchItem], sent: Sequence[BatchItem | str]) -> _Written:
        session, binder = self._session, self._pool.binder
        messages, new, last = binder.write(sent, session.prepared, self.schema)
        # Our own messages parse it. `connection.prepare` would ask the server about it: a round trip, on a new
        # connection, between what the handler did and its COMMIT.
        end = PreparedStatementState(last.name, last.sql, session.protocol, asyncpg.Record, True)
        return messages, new, KnownBatch(binder.plan(items, sent, self.schema).write, end)

    def _prepare_anew(self, items: Sequence[BatchItem], sent: Sequence[BatchItem], rest: str) -> _Written:
        preparer = self._pool.preparer
        query, new = preparer.write(sent, self._session.prepared, self.schema)
        plan = preparer.plan(items, sent, rest, self.schema)
        return query + rest, new, None if plan is None else KnownBatch(plan.write, None)

    def _send(self, written: Any, end: PreparedStatementState | None = None) -> Awaitable[str]:
        """A simple query, or messages and what ends them. It returns what asyncpg makes to be awaited: every coroutine
        in between is paid for by every request."""
        connection, protocol = self._connection, self._session.protocol
        sent: Awaitable[str]
        self._sent = protocol.queries_count + 1
        if end is not None:
            # asyncpg can send no two statements at once, but it can send one for many arguments, which it asks for when
            # it is free to send: then our messages go out in front of its last one.
            sent = protocol.bind_execute_many(end, _after(connection._transport, written), "", None, False)
        else:
            sent = connection.execute(written) if connection._query_loggers else protocol.query(written, None)
        return sent

    async def _send_one_by_one(self, items: Sequence[BatchItem], reset: SessionReset) -> str:
        """Where nothing can be prepared for later: a round trip for each statement that has values."""
        status = ""
        for item in (*items, *reset.first):
            if isinstance(item, Statement) and item.values:
                _, said, _ = await self._execute_ours(qualify_tables(item.sql, self.schema), item.values, status=True)
                status = said.decode()
            else:
                status = await self._send(render_item(item, self.schema))
        return await self._send(reset.rest) if reset.rest else status

    @property
    def _prepares(self) -> bool:
        return self._pool.prepares and self._session.prepares and not self._broken

    async def release(self) -> None:
        session, pool, proxy = self._session, self._pool, self._proxy
        if self._broken or session.protocol.is_in_transaction():
            await self.discard()
            return
        if self._pure and session.resets_as_usual and pool.may_keep(proxy):
            if session.passed < PASSES_MAX and pool.pass_on(proxy):
                session.passed += 1
                return
            session.passed = 0
            if pool.put_back(proxy):
                await asyncio.sleep(0)
            return
        try:
            await pool.pool.release(proxy, timeout=pool.patience_s)
        except Exception as error:
            log_release_error(
                self._translate_error(error) if isinstance(error, VENDOR_ERRORS) else error, RELEASE_FAILED
            )
            with suppress(Exception):
                await self.discard()

    async def discard(self) -> None:
        connection = self._connection
        if self._proxy._con is not connection:
            return  # the pool has taken it back, and it may be another request's by now: or it is closed
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
            with suppress(*VENDOR_ERRORS):  # the server did not confirm in time
                await connection._protocol._wait_for_cancellation(pool.patience_s)
        connection.terminate()
        with suppress(*VENDOR_ERRORS):  # terminated: there may be nothing to give back
            await pool.pool.release(self._proxy)

    def _break(self) -> None:
        """Prepare no more here, and do not reuse it."""
        self._broken = True
        self._session.known.clear()

    def _translate_error(self, error: BaseException) -> OnefoldError:
        connection = self._connection
        forget_outdated(connection, error)
        sqlstate = sqlstate_of(error)
        if sqlstate in NOT_AS_PREPARED:
            self._break()  # asyncpg goes on to look for the statements that are gone
        # The server's end may have closed the transport already, and asyncpg hear of it only in the loop's next turn.
        alive = not connection.is_closed() and not connection._transport.is_closing()
        if isinstance(error, asyncpg.InterfaceError) and alive:
            return unsent_error(error)  # asyncpg itself would not send it
        return error_for(sqlstate, error)


def _after(transport: Any, messages: bytes) -> Iterator[tuple[()]]:
    """The arguments of the last statement (none), after what goes in front of it."""
    transport.write(messages)
    yield ()
