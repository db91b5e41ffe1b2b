"""psycopg 3 by its private names: batches without a cursor, which would cost more than the statements do.

A batch whose values must not stand in the text goes in libpq's pipeline mode, one round trip with the values beside the
text (see `_postgres_batches`). A handler's copy of its connection has the prepared statements of the original.

Statements of ours are prepared once per session, because parsing and planning them costs the server five times what
running them does. psycopg deallocates all statements of a session, ours too, after something was rolled back: it says
so in a queue of its own, which is read along (`_Deallocations`).

All of psycopg's private names that the driver uses are in this file and in `_psycopg_statements`, and it is used only
with the versions that the tests have run with, where all of them are there (`may_be_used`). `_psycopg_public` does
without.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Any, Final, TypeAlias
from weakref import ref

import psycopg
from psycopg import BaseConnection, generators
from psycopg._preparing import PrepareManager
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from onefold._kernel.effects import BatchItem, Boundary, Row, Statement
from onefold._kernel.public_drivers import may_use_private_names
from onefold._kernel.sqlstates import NOT_AS_PREPARED
from onefold.db._postgres_batches import Plans, PreparedPlan, encode_values, has_secrets, shape_of
from onefold.db._postgres_session import as_ourselves
from onefold.db._postgres_text import LEVELS, qualify_tables, render_item, render_unbound, script
from onefold.db._psycopg_handle import C, LentCopy, NoSession, refuse
from onefold.db._psycopg_plans import AS_CHOSEN, PipelinePlan, PlannedBatch, PreparedNames, is_nameless, undoes
from onefold.db._psycopg_public import (
    DEFAULTS,
    AnyConnection,
    AsyncHandle,
    AsyncPsycopgConnection,
    Handle,
    PsycopgConnection,
    begin_of,
)
from onefold.db._psycopg_statements import AsyncPsycopgStatements, PsycopgStatements

#: Minor versions.
TESTED: Final = ((3, 3),)
TESTED_POOLS: Final = ((3, 3),)

#: What is there, and what their objects are given when they are made.
_NAMES: Final[dict[Any, str]] = {
    BaseConnection: "_check_connection_ok _notice_handler _notify_handler",
    PrepareManager: "clear maintain_gen",
    generators: "execute fetch_many send",
}
_ATTRIBUTES: Final[dict[type[Any], str]] = {
    BaseConnection: "_adapters _autocommit _closed _pipeline _prepared",
    PrepareManager: "_names _to_flush",
    psycopg.RawCursor: "_adapters",
    psycopg.AsyncRawCursor: "_adapters",
    ConnectionPool: "_workers",
    AsyncConnectionPool: "_workers",
}

_DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_BEGINS: Final = frozenset({Boundary.BEGIN_AS_CHOSEN, *LEVELS})

#: Where our things hang on psycopg's objects: as long-lived as those are, and found again by every request.
_SESSION: Final = "_onefold_session"
_PREPARING: Final = "_onefold_preparing"


def may_be_used() -> bool:
    """Whether the psycopg that is installed is one that this file was written for."""
    there = all(hasattr(kind, name) for kind, names in _NAMES.items() for name in names.split())
    given = all(name in _names_set_by(kind) for kind, names in _ATTRIBUTES.items() for name in names.split())
    tested = may_use_private_names("psycopg", TESTED) and may_use_private_names("psycopg-pool", TESTED_POOLS)
    return there and given and tested


def _names_set_by(kind: type[Any]) -> set[str]:
    makers = (vars(base).get("__init__") for base in kind.__mro__)
    return {name for maker in makers for name in getattr(getattr(maker, "__code__", None), "co_names", ())}


# --- pools ----------------------------------------------------------------------------------------------------


def is_inherited(pool: ConnectionPool[Any]) -> bool:
    """Whether a pool that is open was opened before this process was forked: its threads do not survive that."""
    return not any(worker.is_alive() for worker in pool._workers)


def loop_of(pool: AsyncConnectionPool[Any]) -> asyncio.AbstractEventLoop | None:
    """The loop that a pool was opened on: its workers are tasks of it."""
    return next((worker.get_loop() for worker in pool._workers), None)


# --- connections ----------------------------------------------------------------------------------------------


class _Copied(LentCopy[C]):
    """A copy with the same prepared statements."""

    __slots__ = ()

    def copy(self, connection: C) -> C:
        kind = type(connection)
        handle: C = kind.__new__(kind)
        # Without its pool, to which `close()` would give the copy (`close_returns`).
        handle.__dict__.update(connection.__dict__, wait=self.waits, _pool=None)
        if connection._adapters is not None:  # what the handler registers is for its own request
            handle._adapters = AdaptersMap(connection._adapters)
        # psycopg ties these to the object that was there first, and by a weak reference: notices would be lost.
        pgconn = connection.pgconn
        pgconn.notice_handler = partial(kind._notice_handler, ref(handle))
        pgconn.notify_handler = partial(kind._notify_handler, ref(handle))
        return handle

    def empty(self) -> None:
        self.handle.__dict__.update(wait=refuse, _check_connection_ok=refuse, pgconn=NoSession(), _closed=True)


class _Deallocations(deque[bytes | None]):
    """What psycopg has to deallocate in a session. It takes out what it does next; None stands for everything."""

    def __init__(self, due: Sequence[bytes | None], forget: Callable[[], None]) -> None:
        super().__init__(due)
        self._forget = forget

    def popleft(self) -> bytes | None:
        name = super().popleft()
        if name is None:
            self._forget()
        return name


class PreparingSession:
    """What outlives a request on a connection of the pool."""

    __slots__ = ("broken", "known", "prepared", "preparing")

    def __init__(self, connection: AnyConnection, pool: Any) -> None:
        self.preparing: PreparedNames = vars(pool).setdefault(_PREPARING, PreparedNames())
        self.prepared: set[str] = set()
        #: By their shape, the schema, how they begin, and whether they come after the handler.
        self.known: Plans[PlannedBatch] = Plans()
        #: Whether it is unknown which statements it has: it is not used again.
        self.broken = False
        manager = connection._prepared
        manager._to_flush = _Deallocations(manager._to_flush, self._forget)

    def _forget(self) -> None:
        self.prepared.clear()
        self.known.clear()

    def prepares(self, connection: AnyConnection) -> bool:
        """An application behind a pooler sets psycopg to prepare nothing (prepare_threshold=None)."""
        return self.preparing.on and not self.broken and connection.prepare_threshold is not None


def _session_of(connection: AnyConnection, pool: Any) -> PreparingSession:
    session: PreparingSession | None = vars(connection).get(_SESSION)
    if session is None:
        session = vars(connection)[_SESSION] = PreparingSession(connection, pool)
    return session


class FastConnection(PsycopgStatements, PsycopgConnection):
    """For threads."""

    __slots__ = ("_session",)
    hands_out = _Copied

    def __init__(self, pool: Any, connection: Handle, schema: str | None) -> None:
        super().__init__(pool, connection, schema)
        self._session = _session_of(connection, pool)

    def _send(self, items: Sequence[BatchItem]) -> int:
        connection = self._connection
        with connection.lock:
            return connection.wait(_batch(connection, self._session, items, self._schema, self._note_end()))

    def _rows(self, statement: Statement) -> list[Row]:
        with _OwnCursor(self._connection) as cursor:
            return cursor.execute(qualify_tables(statement.sql, self._schema).encode(), statement.values).fetchall()

    def _set_autocommit(self, value: bool) -> None:
        self._connection._autocommit = value  # it is idle: there is nothing to ask the server, nor to lock

    def release(self) -> None:
        self.discard() if self._session.broken else super().release()


class AsyncFastConnection(AsyncPsycopgStatements, AsyncPsycopgConnection):
    """For asyncio."""

    __slots__ = ("_session",)
    hands_out = _Copied

    def __init__(self, pool: Any, connection: AsyncHandle, schema: str | None) -> None:
        super().__init__(pool, connection, schema)
        self._session = _session_of(connection, pool)

    async def _send(self, items: Sequence[BatchItem]) -> int:
        connection = self._connection
        async with connection.lock:
            return await connection.wait(_batch(connection, self._session, items, self._schema, self._note_end()))

    async def _rows(self, statement: Statement) -> list[Row]:
        async with _AsyncOwnCursor(self._connection) as cursor:
            await cursor.execute(qualify_tables(statement.sql, self._schema).encode(), statement.values)
            return await cursor.fetchall()

    async def _set_autocommit(self, value: bool) -> None:
        self._connection._autocommit = value

    async def release(self) -> None:
        await (self.discard() if self._session.broken else super().release())


class _OwnCursor(psycopg.RawCursor[Row]):
    """For our own statements."""

    def __init__(self, connection: Handle) -> None:
        super().__init__(connection, row_factory=tuple_row)
        self._adapters = AdaptersMap(DEFAULTS)


class _AsyncOwnCursor(psycopg.AsyncRawCursor[Row]):
    """`_OwnCursor` for asyncio."""

    def __init__(self, connection: AsyncHandle) -> None:
        super().__init__(connection, row_factory=tuple_row)
        self._adapters = AdaptersMap(DEFAULTS)


def _batch(
    connection: AnyConnection,
    session: PreparingSession,
    items: Sequence[BatchItem],
    schema: str | None,
    theirs: bool,
) -> Generator[Any, Any, int]:
    """Send the items in one round trip, `as_ourselves` where the session was the handler's. `wait` drives it, on a
    thread or on asyncio."""
    prepares, begin = session.prepares(connection), begin_of(connection)
    shape = (schema, theirs, begin, shape_of(items))
    known = session.known.get(shape) if prepares else None
    is_undone = undoes(items) if known is None else known.undoes
    new: set[str] = set()
    try:
        if known is None:
            sent = as_ourselves(items) if theirs else items
            send = _send_each if has_secrets(items) else _send_text
            last = yield from send(connection, session if prepares else None, new, sent, begin, schema)
        else:
            last = yield from _send_known(connection, known.plan, items)
    finally:
        if is_undone:
            connection._prepared.clear()  # as psycopg does: what was prepared may rest on what is gone
    if last.status in _DONE:
        if known is None and prepares:
            session.prepared |= new
            if (plan := session.preparing.plan(items, sent, begin, schema)) is not None:
                session.known.keep(shape, PlannedBatch(plan, is_undone))
        return last.command_tuples or 0
    session.broken = session.broken or bool(new)  # which of the new statements exist by now is unknown
    error = psycopg.errors.error_from_result(last, encoding=connection.info.encoding)
    if error.sqlstate in NOT_AS_PREPARED and prepares:
        session.preparing.on, session.broken = False, True
        if items[0] in _BEGINS:  # nothing came before it: all of it can be sent again, as it is
            return (yield from _batch(connection, session, (Boundary.ROLLBACK, *items), schema, theirs))
    raise error


def _send_known(
    connection: AnyConnection, plan: PreparedPlan | PipelinePlan, items: Sequence[Any]
) -> Generator[Any, Any, Any]:
    """Send a batch of a known shape to a session that has its statements. The last result, or of the first failure."""
    pgconn = connection.pgconn
    if isinstance(plan, PreparedPlan):
        return (yield from _query(connection, plan.write(items)))
    # All values first: one that cannot be written leaves nothing half sent.
    bound = [encode_values(items[place].values) for place in plan.places]
    pgconn.enter_pipeline_mode()
    send = pgconn.send_query_prepared
    for name, number in plan.steps:
        if number is None:
            send(name, None)
        else:
            send(name, *bound[number])
    return (yield from _end_pipeline(pgconn, len(plan.steps)))


def _send_text(
    connection: AnyConnection,
    session: PreparingSession | None,
    new: set[str],
    items: Sequence[BatchItem],
    begin: str,
    schema: str | None,
) -> Generator[Any, Any, Any]:
    """Send the items as one simple query, with the values in it. The last result."""
    if session is not None and begin == AS_CHOSEN:
        query, unknown = session.preparing.preparer.write(items, session.prepared, schema)
        new.update(unknown)
    else:
        query = script(begin if item is Boundary.BEGIN_AS_CHOSEN else render_item(item, schema) for item in items)
    return (yield from _query(connection, query))


def _query(connection: AnyConnection, query: str) -> Generator[Any, Any, Any]:
    pgconn = connection.pgconn
    pgconn.send_query(query.encode(connection.info.encoding))
    return (yield from generators.execute(pgconn))[-1]


def _send_each(
    connection: AnyConnection,
    session: PreparingSession | None,
    new: set[str],
    items: Sequence[BatchItem],
    begin: str,
    schema: str | None,
) -> Generator[Any, Any, Any]:
    """Send the items one by one, with their values beside the text, and prepare what the session has not. The result of
    the last, or of the first that failed."""
    pgconn = connection.pgconn
    queries = [_bindable(item, session, begin, schema) for item in items]  # as in `_send_known`
    pgconn.enter_pipeline_mode()
    for name, text, data, formats in queries:
        if session is None or name is None:
            pgconn.send_query_params(text.encode(), data, param_formats=formats)
            continue
        known = name.encode()
        if name not in session.prepared and name not in new:
            new.add(name)
            pgconn.send_prepare(known, text.encode())
        pgconn.send_query_prepared(known, data, formats)
    return (yield from _end_pipeline(pgconn, len(queries) + len(new)))


def _end_pipeline(pgconn: Any, sent: int) -> Generator[Any, Any, Any]:
    pgconn.pipeline_sync()
    yield from generators.send(pgconn)
    results: list[Any] = []
    for _ in range(sent + 1):  # the last answers the Sync
        results += yield from generators.fetch_many(pgconn)
    pgconn.exit_pipeline_mode()
    last = results[-2]
    if last.status in _DONE:
        return last
    return next(result for result in results if result.status not in _DONE)  # what comes after it was passed over


#: A statement's name, if it has one, its text, its values and their formats, as libpq takes them.
_Bindable: TypeAlias = tuple[str | None, str, list[bytes | None], tuple[int, ...]]


def _bindable(item: BatchItem, session: PreparingSession | None, begin: str, schema: str | None) -> _Bindable:
    data, formats = encode_values(item.values if isinstance(item, Statement) else ())
    if session is None or is_nameless(item):
        text = begin if item is Boundary.BEGIN_AS_CHOSEN else render_unbound(item, schema)
        return None, text, data, formats
    named = session.preparing.binder.find(item, schema)
    return named.name, named.sql, data, formats
