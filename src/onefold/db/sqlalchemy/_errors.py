"""Our errors for SQLAlchemy's, or for those of the driver below it."""

from __future__ import annotations

import sqlite3

from sqlalchemy import Connection, exc

from onefold._kernel.ports import TWO_CONNECTIONS
from onefold._kernel.sqlstates import sqlstate_of
from onefold.db._postgres_session import error_for, unsent_error
from onefold.db.sqlite._errors import error_for as sqlite_error_for
from onefold.errors import (
    ConnectionLost,
    OnefoldError,
    PoolExhausted,
    StoreUnavailable,
    TransactionEnded,
)

ENDED = "the request's transaction was ended by someone else: a rollback(), a close(), or a COMMIT written as SQL"


def connect_error(error: BaseException) -> OnefoldError:
    """Our error for a connection that could not be had."""
    if isinstance(error, exc.TimeoutError):
        return PoolExhausted(f"no connection of the engine's pool became free in time ({error}). {TWO_CONNECTIONS}")
    return StoreUnavailable(f"no connection to the database: {getattr(error, 'orig', None) or error}")


def translate_error(connection: Connection, error: BaseException) -> OnefoldError:
    """Our error for what was raised while we worked on a connection."""
    if isinstance(error, exc.StatementError):
        # It is chained and may be logged: answers, events and keys are among the parameters of our statements.
        error.hide_parameters = True
    origin = error.orig if isinstance(error, exc.DBAPIError) and error.orig else error
    match error:
        case exc.DBAPIError(connection_invalidated=True):
            return ConnectionLost(f"the connection was lost: {origin}")
        case exc.ResourceClosedError() | exc.PendingRollbackError():
            if connection.invalidated:
                return ConnectionLost(f"the connection was lost: {error}")
            return TransactionEnded(f"{ENDED} ({error})")
        case _:
            pass
    if connection.dialect.name == "sqlite":
        return sqlite_error_for(origin if isinstance(origin, sqlite3.Error) else Exception(str(origin)))
    sqlstate = sqlstate_of(origin)
    if sqlstate is None and not isinstance(error, OSError) and not _is_out_of_step(origin):
        return unsent_error(origin)
    return error_for(sqlstate, origin)


def _is_out_of_step(error: BaseException) -> bool:
    """Whether asyncpg does not know any more what the server sends: a connection that was cut off, but is not known to
    be closed yet. Nothing can be done on it."""
    return any(kind.__name__ == "InternalClientError" for kind in type(error).__mro__)
