"""Statements that the handler has executed for it, where psycopg's private names may be used.

A cursor costs more than a statement does. One that psycopg has prepared in this session is sent without: its values are
written, and its rows read, by the adapters of the handle, and psycopg's record of prepared statements is kept as a
cursor keeps it. Whatever is not like that goes through a cursor: a statement that is new to the session, and a handle
in pipeline mode, or out of autocommit, where psycopg would begin a transaction.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import psycopg
from psycopg import generators
from psycopg.adapt import PyFormat, Transformer
from psycopg.pq import ExecStatus

from onefold._kernel.effects import HandlerStatement, NamedRows
from onefold._kernel.foreign_cancellations import cancellations, check_lost
from onefold.db._psycopg_public import (
    VENDOR_ERRORS,
    AsyncPsycopgConnection,
    PsycopgConnection,
    names_of,
    translate_error,
)

_DONE: Final = (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK)

#: For so many values, as psycopg chooses the format of each. A statement with more goes through a cursor.
_FORMATS: Final = [[PyFormat.AUTO] * count for count in range(33)]


class PsycopgStatements:
    """The verb of a FastConnection that executes a statement of the handler's."""

    __slots__ = ()

    def query(self: Any, statement: HandlerStatement) -> NamedRows:
        handle = self.handle
        try:
            with handle.lock:
                known = _known(handle, statement)
                if known is not None:
                    answer: NamedRows = handle.wait(known)
                    return answer
        except VENDOR_ERRORS as error:
            raise translate_error(self._connection, error) from error
        return PsycopgConnection.query(self, statement)


class AsyncPsycopgStatements:
    """`PsycopgStatements` for asyncio."""

    __slots__ = ()

    async def query(self: Any, statement: HandlerStatement) -> NamedRows:
        handle, before = self.handle, cancellations()
        try:
            async with handle.lock:
                known = _known(handle, statement)
                if known is not None:
                    answer: NamedRows = await handle.wait(known)
                    return answer
        except VENDOR_ERRORS as error:
            check_lost(before, error)
            raise translate_error(self._connection, error) from error
        return await AsyncPsycopgConnection.query(self, statement)


def _known(handle: Any, statement: HandlerStatement) -> Generator[Any, Any, NamedRows] | None:
    """What executes a statement that is prepared, for `wait` to drive. None: it is not, or it cannot be sent now."""
    handle._check_connection_ok()  # one that is over refuses
    count = len(statement.values)
    if handle._pipeline is not None or not handle._autocommit or count >= len(_FORMATS):
        return None
    reader = Transformer(handle)
    values = reader.dump_sequence(statement.values, _FORMATS[count])
    key = statement.sql.encode(), reader.types or ()
    prepared = handle._prepared
    name = prepared._names.get(key) if prepared.prepare_threshold is not None else None
    if name is None:
        return None
    prepared._names.move_to_end(key)
    return _execute(handle, name, values, reader)


def _execute(handle: Any, name: bytes, values: Any, reader: Any) -> Generator[Any, Any, NamedRows]:
    pgconn, prepared = handle.pgconn, handle._prepared
    pgconn.send_query_prepared(name, values, reader.formats)
    [result] = yield from generators.execute(pgconn)
    if result.status not in _DONE:
        raise psycopg.errors.error_from_result(result, encoding=handle.info.encoding)
    if prepared._to_flush:
        yield from prepared.maintain_gen(handle)
    reader.set_pgresult(result)
    rows = reader.load_rows(0, result.ntuples, tuple)
    return tuple.__new__(NamedRows, (names_of(result) or _decoded(result, handle), rows))


def _decoded(result: Any, handle: Any) -> tuple[str, ...]:
    encoding = handle.info.encoding
    return tuple([result.fname(number).decode(encoding) for number in range(result.nfields)])
