"""psycopg 3 by its public API, for threads and for asyncio: one connection of a pool.

A batch is one simple query, sent by a cursor; where values must not stand in the text, each statement is sent by
itself. A connection is in autocommit mode while it is out, so that the only BEGIN is ours, and goes back to its pool as
it came.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, ClassVar, Final, Generic, TypeAlias

import psycopg
from psycopg.adapt import AdaptersMap, Dumper, PyFormat
from psycopg.postgres import register_default_adapters, types
from psycopg.pq import Format, PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from onefold._kernel.effects import BatchItem, Boundary, HandlerStatement, NamedRows, Row, Statement
from onefold._kernel.executors import begin_in_background
from onefold._kernel.foreign_cancellations import cancellations, check_lost
from onefold.db._postgres_batches import has_secrets
from onefold.db._postgres_session import FIND_TABLES, Place, as_ourselves, connect_error, error_for, unsent_error
from onefold.db._postgres_text import PLACEHOLDER, qualify_tables, render_item, script
from onefold.db._psycopg_handle import C, LentCopy, check_left, check_left_by_tasks, hang_up_tasks, refuse
from onefold.db._psycopg_pools import give_back, give_back_async
from onefold.errors import OnefoldError

Handle: TypeAlias = psycopg.Connection[Any]
AsyncHandle: TypeAlias = psycopg.AsyncConnection[Any]
AnyConnection: TypeAlias = Handle | AsyncHandle

VENDOR_ERRORS: Final = (psycopg.Error, OSError, UnicodeError)

#: From 3.2 on there are cursors that take statements as they are written, with $1, and need not read them first.
_TAKES_NUMBERS: Final = hasattr(psycopg, "RawCursor")
_CURSOR: Final[Any] = psycopg.RawCursor if _TAKES_NUMBERS else psycopg.Cursor
_ASYNC_CURSOR: Final[Any] = psycopg.AsyncRawCursor if _TAKES_NUMBERS else psycopg.AsyncCursor


class _Taken(Generic[C]):
    """One connection of a pool, in either colour."""

    __slots__ = ("_connection", "_ended", "_handed_out", "_left", "_pool", "_schema", "_was_autocommit")

    hands_out: ClassVar[type[LentCopy[Any]]] = LentCopy

    def __init__(self, pool: Any, connection: C, schema: str | None) -> None:
        self._pool = pool
        self._connection: C = connection
        self._was_autocommit = connection.autocommit
        #: Where our tables are.
        self._schema = schema
        self._handed_out: LentCopy[C] | None = None
        #: Whether what a handler had is void, and whether the connection was given back.
        self._ended = self._left = False

    @property
    def handle(self) -> C:
        return (self._handed_out or self._hand_out()).handle

    def _hand_out(self) -> LentCopy[C]:
        """Refused to a task or a thread that was left behind, and comes by `query`: it would write beside the
        transaction, or into another request's."""
        status = self._connection.info.transaction_status
        if self._left or (self._ended and status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR)):
            refuse()
        handed_out = self._handed_out = self.hands_out(self._connection)
        if self._left:  # meanwhile
            handed_out.void()
        return handed_out

    @property
    def executed(self) -> bool:
        """Whether the handler has had anything executed."""
        return self._handed_out is not None and self._handed_out.executed

    def _note_end(self) -> bool:
        """Called before a batch is sent: if it comes after the handler, what that has is void. Whether the session was
        the handler's until now."""
        if self._connection.pgconn.pipeline_status != PipelineStatus.OFF:
            raise psycopg.ProgrammingError("the handler has left the connection in pipeline mode")
        handed_out = self._handed_out
        if handed_out is None:
            return False
        if handed_out.waits.over:  # `check_left` has found that these items come after it
            handed_out.void()
            self._ended, self._handed_out = True, None
        return True


class PsycopgConnection(_Taken[Handle]):
    """One connection of the pool."""

    __slots__ = ()

    def begin(self, place: Place) -> None:
        """It was taken from the pool; where our tables are is looked up unless it is known."""
        try:
            self._set_autocommit(True)
            if self._schema is None:
                self._schema = place.read(self.fetch(FIND_TABLES))
        except (OnefoldError, *VENDOR_ERRORS) as error:
            self.discard()
            raise connect_error(error) from error
        except BaseException:
            self.discard()
            raise

    def batch(self, items: Sequence[BatchItem]) -> int:
        if self._handed_out is not None:
            check_left(self._handed_out, items)
        try:
            return self._send(items)
        except VENDOR_ERRORS as error:
            raise translate_error(self._connection, error) from error

    def fetch(self, statement: Statement) -> list[Row]:
        if self._handed_out is not None:
            check_left(self._handed_out)
        try:
            return self._rows(statement)
        except VENDOR_ERRORS as error:
            raise translate_error(self._connection, error) from error

    def query(self, statement: HandlerStatement) -> NamedRows:
        """With the adapters of the handle, and whatever rows and cursors the handler has chosen for itself."""
        try:
            cursor = _CURSOR(self.handle, row_factory=tuple_row)  # as `handle.execute` makes one, which is not closed
            cursor.execute(*handlers_query_of(statement))
            return rows_of(cursor, cursor.fetchall())
        except VENDOR_ERRORS as error:
            raise translate_error(self._connection, error) from error

    def _send(self, items: Sequence[BatchItem]) -> int:
        binds = has_secrets(items)
        if self._note_end():
            items = as_ourselves(items)
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            use_defaults(cursor)
            for query, values in queries(self._connection, items, binds, self._schema):
                cursor.execute(query, values, prepare=False)
            return row_count(cursor)

    def _rows(self, statement: Statement) -> list[Row]:
        with psycopg.Cursor(self._connection, row_factory=tuple_row) as cursor:
            use_defaults(cursor)
            return cursor.execute(*query_of(statement, self._schema), prepare=False).fetchall()

    def _set_autocommit(self, value: bool) -> None:
        self._connection.autocommit = value

    def release(self) -> None:
        self._left = True
        if self._handed_out is not None:
            self._handed_out.void()
        if not is_idle(self._connection):  # in a transaction, or lost
            self.discard()
            return
        try:
            self._set_autocommit(self._was_autocommit)
        except VENDOR_ERRORS:  # what was to be committed is committed: it is not for the next request, and no error
            self.discard()
        except BaseException:
            self.discard()
            raise
        else:
            give_back(self._pool, self._connection)

    def discard(self) -> None:
        self._left = True
        handed_out, self._handed_out = self._handed_out, None
        self._close() if handed_out is None else handed_out.close_when_left(self._close)

    def _close(self) -> None:
        end_session(self._connection)
        give_back(self._pool, self._connection)


class AsyncPsycopgConnection(_Taken[AsyncHandle]):
    """`PsycopgConnection` for asyncio."""

    __slots__ = ()

    async def begin(self, place: Place) -> None:
        """It was taken from the pool; where our tables are is looked up unless it is known."""
        try:
            await self._set_autocommit(True)
            if self._schema is None:
                self._schema = place.read(await self.fetch(FIND_TABLES))
        except (OnefoldError, *VENDOR_ERRORS) as error:
            await self.discard()
            raise connect_error(error) from error
        except BaseException:
            await self.discard()
            raise

    async def batch(self, items: Sequence[BatchItem]) -> int:
        if self._handed_out is not None:
            await check_left_by_tasks(self._handed_out, items)
        before = cancellations()
        try:
            return await self._send(items)
        except VENDOR_ERRORS as error:
            check_lost(before, error)
            raise translate_error(self._connection, error) from error

    async def fetch(self, statement: Statement) -> list[Row]:
        if self._handed_out is not None:
            await check_left_by_tasks(self._handed_out)
        before = cancellations()
        try:
            return await self._rows(statement)
        except VENDOR_ERRORS as error:
            check_lost(before, error)
            raise translate_error(self._connection, error) from error

    async def query(self, statement: HandlerStatement) -> NamedRows:
        """`PsycopgConnection.query`."""
        before = cancellations()
        try:
            cursor = _ASYNC_CURSOR(self.handle, row_factory=tuple_row)
            await cursor.execute(*handlers_query_of(statement))
            return rows_of(cursor, await cursor.fetchall())
        except VENDOR_ERRORS as error:
            check_lost(before, error)
            raise translate_error(self._connection, error) from error

    async def _send(self, items: Sequence[BatchItem]) -> int:
        binds = has_secrets(items)
        if self._note_end():
            items = as_ourselves(items)
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            use_defaults(cursor)
            for query, values in queries(self._connection, items, binds, self._schema):
                await cursor.execute(query, values, prepare=False)
            return row_count(cursor)

    async def _rows(self, statement: Statement) -> list[Row]:
        async with psycopg.AsyncCursor(self._connection, row_factory=tuple_row) as cursor:
            use_defaults(cursor)
            await cursor.execute(*query_of(statement, self._schema), prepare=False)
            return await cursor.fetchall()

    async def _set_autocommit(self, value: bool) -> None:
        await self._connection.set_autocommit(value)

    async def release(self) -> None:
        self._left = True
        if self._handed_out is not None:
            self._handed_out.void()
            self._handed_out = None
        if not is_idle(self._connection):  # in a transaction, or lost
            await self.discard()
            return
        try:
            await self._set_autocommit(self._was_autocommit)
        except VENDOR_ERRORS:
            await self.discard()
        except BaseException:
            await self.discard()
            raise
        else:
            await give_back_async(self._pool, self._connection)

    async def discard(self) -> None:
        self._left = True
        # A task that is cancelled here stops waiting. The connection goes all the same, and only when the handler's
        # tasks have left it.
        await asyncio.shield(begin_in_background(self._close()))

    async def _close(self) -> None:
        try:
            await hang_up_tasks(self._handed_out)
        finally:
            end_session(self._connection)
            await give_back_async(self._pool, self._connection)


# --- what both colours share ---------------------------------------------------------------------------------


def end_session(connection: AnyConnection) -> None:
    """Close it for good, before its pool gets it back. `close()` gives it back as it is, where the application has set
    its pool to `close_returns`, and the pool refuses it when it comes again."""
    connection.pgconn.finish()


def queries(
    connection: AnyConnection, items: Sequence[BatchItem], binds: bool, schema: str | None
) -> Iterator[tuple[Any, Any]]:
    """What is executed, one after the other. The first error ends it: COMMIT is not sent."""
    begin = begin_of(connection)
    texts: list[str] = []
    for item in items:
        if binds and isinstance(item, Statement) and item.values:
            if texts:
                yield script(texts), None
                texts = []
            yield query_of(item, schema)
        else:
            texts.append(begin if item is Boundary.BEGIN_AS_CHOSEN else render_item(item, schema))
    if texts:
        yield script(texts), None


def rows_of(cursor: Any, rows: list[Row]) -> NamedRows:
    """The rows, with the names of their columns. Where they are plain, they are not decoded for each answer anew."""
    names = names_of(cursor.pgresult)
    return NamedRows(tuple(column.name for column in cursor.description) if names is None else names, rows)


def names_of(result: Any) -> tuple[str, ...] | None:
    """The names of its columns. None: the encoding of the connection matters."""
    return _plain_names(tuple(map(result.fname, range(result.nfields))))


@lru_cache(maxsize=1000)
def _plain_names(names: tuple[bytes, ...]) -> tuple[str, ...] | None:
    """None: the encoding of the connection matters."""
    return tuple(name.decode() for name in names) if all(map(bytes.isascii, names)) else None


def query_of(statement: Statement | HandlerStatement, schema: str | None) -> tuple[Any, Any]:
    """A statement as psycopg's cursors take it, with its values."""
    if not statement.values:
        return qualify_tables(statement.sql, schema), None
    values = {f"p{number}": value for number, value in enumerate(statement.values, start=1)}
    return _with_names(statement.sql, schema), values


def handlers_query_of(statement: HandlerStatement) -> tuple[Any, Any]:
    """A statement for the cursors below."""
    return (statement.sql.encode(), statement.values) if _TAKES_NUMBERS else query_of(statement, None)


@lru_cache(maxsize=1000)
def _with_names(sql: str, schema: str | None) -> str:
    return PLACEHOLDER.sub(r"%(p\1)s", qualify_tables(sql, schema).replace("%", "%%"))


def begin_of(connection: AnyConnection) -> str:
    """As psycopg would begin: the application may have set the level of the connection."""
    level = connection.isolation_level
    return "BEGIN" if level is None else f"BEGIN ISOLATION LEVEL {level.name.replace('_', ' ')}"


def row_count(cursor: Any) -> int:
    """The row count of the last result."""
    while cursor.nextset():
        pass
    return max(0, int(cursor.rowcount))


class _IntDumper(Dumper):
    """Without a type of its own: its place gives it one, as with the other drivers."""

    def dump(self, obj: int) -> bytes:
        return b"%d" % obj


#: As psycopg reads and writes values by default. An application may have registered loaders and dumpers of its own, for
#: a connection or for all of psycopg: what those make of a bool, an int or bytes is not what our flows can read.
DEFAULTS: Final = AdaptersMap(types=types)
register_default_adapters(DEFAULTS)

_OIDS: Final = [types[name].oid for name in ("bool", "bytea", "int2", "int4", "int8", "name", "text", "varchar")]
_LOADERS: Final = {oid: DEFAULTS.get_loader(oid, Format.TEXT) for oid in _OIDS}
_DUMPERS: Final[dict[type[Any], Any]] = {
    str: DEFAULTS.get_dumper(str, PyFormat.AUTO),
    bytes: DEFAULTS.get_dumper(bytes, PyFormat.AUTO),
    int: _IntDumper,
}


def use_defaults(cursor: Any) -> None:
    """Have a cursor of our own read and write values so."""
    for oid, loader in _LOADERS.items():
        cursor.adapters.register_loader(oid, loader)
    for kind, dumper in _DUMPERS.items():
        cursor.adapters.register_dumper(kind, dumper)


def is_idle(connection: AnyConnection) -> bool:
    return connection.info.transaction_status is TransactionStatus.IDLE


def translate_error(connection: AnyConnection, error: BaseException) -> OnefoldError:
    """Our error for psycopg's."""
    sqlstate = error.sqlstate if isinstance(error, psycopg.Error) else None
    if sqlstate is None and not connection.closed:
        return unsent_error(error)  # psycopg itself would not send it
    return error_for(sqlstate, error)
