"""psycopg 3 by its private names: batches without a cursor, which would cost more than the statements do.

A batch whose values must not stand in the text goes in libpq's pipeline mode, one round trip with the values beside the
text (see `_bound_batches`). A handler's copy of its connection has the prepared statements of the original.

All of psycopg's private names that the driver uses are in this file, and it is used only with the versions that the
tests have run with, where all of them are there (`may_be_used`). `_psycopg_public` does without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from functools import partial
from typing import Any, Final
from weakref import ref

import psycopg
from psycopg import BaseConnection, generators
from psycopg.adapt import AdaptersMap
from psycopg.pq import ExecStatus, Format
from psycopg.rows import tuple_row
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from onefold._kernel.effects import Boundary, Nested, Row, Statement, Step, Value
from onefold._kernel.public_drivers import may_use_private_names
from onefold.db._bound_batches import encoded, has_secrets
from onefold.db._postgres import crossing, placed, rendered, script
from onefold.db._psycopg_handle import C, LentCopy, NoSession, refuse
from onefold.db._psycopg_public import (
    DEFAULTS,
    AnyConnection,
    AsyncHandle,
    AsyncPsycopgConnection,
    Handle,
    PsycopgConnection,
    begin_of,
)

#: Minor versions.
TESTED: Final = ((3, 3),)
TESTED_POOLS: Final = ((3, 3),)

#: What is there, and what their objects are given when they are made.
_NAMES: Final[dict[Any, str]] = {
    BaseConnection: "_check_connection_ok _notice_handler _notify_handler",
    generators: "execute fetch_many send",
}
_ATTRIBUTES: Final[dict[type[Any], str]] = {
    BaseConnection: "_adapters _autocommit _closed _prepared",
    psycopg.RawCursor: "_adapters",
    psycopg.AsyncRawCursor: "_adapters",
    ConnectionPool: "_workers",
    AsyncConnectionPool: "_workers",
}

_DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)
_UNDOES: Final = frozenset({Boundary.ROLLBACK, Boundary.ROLLBACK_TO_SAVEPOINT})


def may_be_used() -> bool:
    """Whether the psycopg that is installed is one that this file was written for."""
    there = all(hasattr(kind, name) for kind, names in _NAMES.items() for name in names.split())
    given = all(name in _given(kind) for kind, names in _ATTRIBUTES.items() for name in names.split())
    tested = may_use_private_names("psycopg", TESTED) and may_use_private_names("psycopg-pool", TESTED_POOLS)
    return there and given and tested


def _given(kind: type[Any]) -> set[str]:
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
        handle.__dict__.update(connection.__dict__, wait=self.waits)
        if connection._adapters is not None:  # what the handler registers is for its own request
            handle._adapters = AdaptersMap(connection._adapters)
        # psycopg ties these to the object that was there first, and by a weak reference: notices would be lost.
        pgconn = connection.pgconn
        pgconn.notice_handler = partial(kind._notice_handler, ref(handle))
        pgconn.notify_handler = partial(kind._notify_handler, ref(handle))
        return handle

    def empty(self) -> None:
        self.handle.__dict__.update(wait=refuse, _check_connection_ok=refuse, pgconn=NoSession(), _closed=True)


class FastConnection(PsycopgConnection):
    """For threads."""

    __slots__ = ()
    hands_out = _Copied

    def _send(self, steps: Sequence[Step]) -> int:
        connection = self._connection
        with connection.lock:
            return connection.wait(_batch(connection, self._sendable(steps), self._schema))

    def _rows(self, statement: Statement) -> list[Row]:
        with _OwnCursor(self._connection) as cursor:
            return cursor.execute(placed(statement.sql, self._schema).encode(), statement.values).fetchall()

    def _set_autocommit(self, value: bool) -> None:
        self._connection._autocommit = value  # it is idle: there is nothing to ask the server, nor to lock


class AsyncFastConnection(AsyncPsycopgConnection):
    """For asyncio."""

    __slots__ = ()
    hands_out = _Copied

    async def _send(self, steps: Sequence[Step]) -> int:
        connection = self._connection
        async with connection.lock:
            return await connection.wait(_batch(connection, self._sendable(steps), self._schema))

    async def _rows(self, statement: Statement) -> list[Row]:
        async with _AsyncOwnCursor(self._connection) as cursor:
            await cursor.execute(placed(statement.sql, self._schema).encode(), statement.values)
            return await cursor.fetchall()

    async def _set_autocommit(self, value: bool) -> None:
        self._connection._autocommit = value


class _OwnCursor(psycopg.RawCursor[Row]):
    """For our own statements."""

    def __init__(self, connection: Handle) -> None:
        super().__init__(connection, row_factory=tuple_row)
        self._adapters = AdaptersMap(DEFAULTS)


class _AsyncOwnCursor(psycopg.AsyncRawCursor[Row]):
    """The same, for asyncio."""

    def __init__(self, connection: AsyncHandle) -> None:
        super().__init__(connection, row_factory=tuple_row)
        self._adapters = AdaptersMap(DEFAULTS)


def _batch(connection: AnyConnection, steps: Sequence[Step], schema: str | None) -> Generator[Any, Any, int]:
    """Send the steps in one round trip. `wait` drives it, on a thread or on asyncio."""
    pgconn, encoding = connection.pgconn, connection.info.encoding
    begin = begin_of(connection)
    try:
        if has_secrets(steps):
            last = yield from _send_bound(pgconn, steps, begin, schema)
        else:
            texts = (begin if step is Boundary.BEGIN_AS_CHOSEN else rendered(step, schema) for step in steps)
            pgconn.send_query(script(texts).encode(encoding))
            last = (yield from generators.execute(pgconn))[-1]
    finally:
        if any((step.boundary if isinstance(step, Nested) else step) in _UNDOES for step in steps):
            connection._prepared.clear()  # as psycopg does: what was prepared may rest on what is gone
    if last.status not in _DONE:
        raise psycopg.errors.error_from_result(last, encoding=encoding)
    return last.command_tuples or 0


def _send_bound(pgconn: Any, steps: Sequence[Step], begin: str, schema: str | None) -> Generator[Any, Any, Any]:
    """Send the steps with their values beside the text. The result of the last, or of the first that failed."""
    queries = []
    for step in steps:
        values: tuple[Value, ...] = ()
        if isinstance(step, Statement):
            sql, values = placed(step.sql, schema), step.values
        else:
            sql = begin if step is Boundary.BEGIN_AS_CHOSEN else crossing(step)
        formats = [Format.BINARY if isinstance(value, bytes) else Format.TEXT for value in values]
        queries.append((sql.encode(), [encoded(value) for value in values], formats))
    pgconn.enter_pipeline_mode()
    for text, data, formats in queries:
        pgconn.send_query_params(text, data, param_formats=formats)
    pgconn.pipeline_sync()
    yield from generators.send(pgconn)
    found = None
    while (result := (yield from generators.fetch_many(pgconn))[-1]).status != ExecStatus.PIPELINE_SYNC:
        if found is None or found.status in _DONE:
            found = result
    pgconn.exit_pipeline_mode()
    return found
