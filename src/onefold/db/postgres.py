"""What the Postgres drivers share: literals for merged batches, the table of SQLSTATEs, and what a DSN may be.

A batch travels as one simple query, so its values are written into the text. Only four kinds of value exist
(`Value`), each with one rendering that cannot be read as anything but that value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from secrets import token_hex

from onefold._kernel.effects import Boundary, Statement, Step, Value
from onefold.errors import (
    ConfigurationError,
    ConnectionLost,
    OnefoldError,
    RequiredValueMissing,
    SchemaMissing,
    SerializationFailed,
    StatementRefused,
    StoreBusy,
    StoreReadOnly,
    StoreUnavailable,
    TransactionAborted,
    TransactionEnded,
    UniqueViolated,
)

#: Nobody else has a savepoint of this name: where it is gone, so is the transaction that we began.
SAVEPOINT = f"onefold_{token_hex(4)}"

#: READ COMMITTED whatever the server's default: claiming needs one snapshot per statement.
BOUNDARIES = {
    Boundary.BEGIN: "BEGIN ISOLATION LEVEL READ COMMITTED",
    Boundary.BEGIN_LIGHT: "BEGIN ISOLATION LEVEL READ COMMITTED",
    Boundary.COMMIT: "COMMIT",
    Boundary.ROLLBACK: "ROLLBACK",
    Boundary.SAVEPOINT: f"SAVEPOINT {SAVEPOINT}",
    Boundary.ROLLBACK_TO_SAVEPOINT: f"ROLLBACK TO SAVEPOINT {SAVEPOINT}",
    Boundary.RELEASE_SAVEPOINT: f"RELEASE SAVEPOINT {SAVEPOINT}",
}

#: SQLSTATE, or its class, to error. Exact codes win over classes.
SQLSTATES: dict[str, type[OnefoldError]] = {
    "23505": UniqueViolated,
    "23502": RequiredValueMissing,
    "40001": SerializationFailed,
    "40P01": SerializationFailed,
    "25P02": TransactionAborted,
    "25P01": TransactionEnded,
    "3B001": TransactionEnded,  # the savepoint is gone
    "25006": StoreReadOnly,
    "42P01": SchemaMissing,  # undefined table
    "42703": SchemaMissing,  # undefined column: a schema older than this code
    "3F000": SchemaMissing,
    "26000": StoreUnavailable,  # a prepared statement of ours is gone: see db/asyncpg.py
    "42P05": StoreUnavailable,  # a prepared statement of ours is there already
    "40003": ConnectionLost,  # the server itself does not know whether it completed
    "55P03": StoreBusy,
    "57014": StoreUnavailable,  # cancelled by a statement timeout or an operator
    "25P03": ConnectionLost,  # idle_in_transaction_session_timeout: the lease ran out
    "25P04": ConnectionLost,  # transaction_timeout: the lease ran out
    "57P01": ConnectionLost,
    "57P02": ConnectionLost,
    "57P03": StoreUnavailable,  # starting up
    "57P04": ConnectionLost,  # the database was dropped
    "57P05": ConnectionLost,  # idle_session_timeout
    "08": ConnectionLost,
    "28": StoreUnavailable,  # wrong user or password
    "3D": StoreUnavailable,  # no such database
    "53": StoreUnavailable,  # out of connections, memory or disk
    "58": StoreUnavailable,  # the server's own files or disk
}

_PLACEHOLDER = re.compile(r"\$(\d+)")


def error_for(sqlstate: str | None, error: BaseException) -> OnefoldError:
    """Our error for a vendor's. A failure without SQLSTATE never reached the server, or lost its answer."""
    if sqlstate is None:
        return ConnectionLost(f"Postgres: {type(error).__name__}: {error}")
    kind = SQLSTATES.get(sqlstate) or SQLSTATES.get(sqlstate[:2]) or StatementRefused
    hint = "; run `onefold migrate` to create onefold's tables" if kind is SchemaMissing else ""
    return kind(f"Postgres {sqlstate}: {error}{hint}")


def refused(error: BaseException) -> StatementRefused:
    """Our error for a statement that the driver would not even send."""
    return StatementRefused(f"Postgres: {type(error).__name__}: {error}")


def not_connected(error: BaseException) -> StoreUnavailable:
    """Our error for a connection that could not be had."""
    return StoreUnavailable(f"no connection to Postgres: {type(error).__name__}: {error}")


def none_free(seconds: float) -> StoreUnavailable:
    """Our error for a pool that has nothing to give."""
    return StoreUnavailable(
        f"no Postgres connection could be had within {seconds:g} s; is the server up, and the pool large enough?"
    )


def checked_dsn(dsn: str) -> str:
    """The DSN, if it is a URL the drivers agree on. It may hold a password, so no message repeats it."""
    scheme, separator, rest = dsn.partition("://")
    if not separator or scheme not in ("postgresql", "postgres"):
        raise ConfigurationError("a Postgres DSN is written postgresql://user:password@host:port/database")
    location = rest.partition("?")[0]
    authority = location.partition("/")[0]
    user, _, hosts = authority.rpartition("@")
    # A raw "@" or "/" in a password moves what follows it into the host or the database name.
    if "@" in user or "@" in location[len(authority) :] or "#" in dsn:
        raise ConfigurationError(
            "the Postgres DSN has an '@', '/' or '#' too many; inside a user name or a password they are "
            "percent-encoded: %40, %2F, %23"
        )
    for host in hosts.split(","):
        port = host.rpartition("]")[2].rpartition(":")[2] if ":" in host.rpartition("]")[2] else ""
        if port and not port.isdecimal():
            raise ConfigurationError("the port in the Postgres DSN is not a number")
    return dsn


def literals(values: Iterable[Value]) -> tuple[str, ...]:
    """The values as SQL text, of no type until their places give them one: as parameters would be."""
    texts = []
    for value in values:  # a dozen in every request: written out, where a table of functions would be prettier
        if isinstance(value, bytes):
            # E'' reads the same whatever standard_conforming_strings says.
            texts.append(f"E'\\\\x{value.hex()}'")
        elif isinstance(value, int):
            texts.append(f"'{value:d}'")
        elif isinstance(value, str):
            texts.append(_short(value) if len(value) <= _SHORT else _escaped(value))
        elif value is None:
            texts.append("NULL")
        else:
            raise StatementRefused(f"a batch takes bytes, int, str and None; it was given {type(value).__name__}")
    return tuple(texts)


#: Operations, spans and names come again and again.
_SHORT = 100


def _escaped(value: str) -> str:
    if "\0" in value or not _is_unicode(value):
        raise StatementRefused(
            "Postgres text holds no NUL character and no half of a surrogate pair; store such a value as bytes"
        )
    escaped = value.replace("\\", "\\\\").replace("'", "''")
    return f"E'{escaped}'"


_short = lru_cache(maxsize=1000)(_escaped)


def _is_unicode(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def inlined(statement: Statement) -> str:
    """The statement with its values written in."""
    template, places = _template(statement.sql)
    texts = literals(statement.values)
    return template % tuple([texts[place] for place in places])


@lru_cache(maxsize=1000)
def _template(sql: str) -> tuple[str, tuple[int, ...]]:
    """The text with `%s` for its values, and which of them goes where."""
    places = tuple(int(number) - 1 for number in _PLACEHOLDER.findall(sql))
    return _PLACEHOLDER.sub("%s", sql.replace("%", "%%")), places


def placeholders(sql: str) -> int:
    """How many values a statement takes."""
    return max((int(found) for found in _PLACEHOLDER.findall(sql)), default=0)


def rendered(step: Step) -> str:
    """A step of a batch as SQL text."""
    return BOUNDARIES[step] if isinstance(step, Boundary) else inlined(step)


def script(statements: Iterable[str]) -> str:
    """The statements as one simple query. The new line keeps a comment at the end of one from hiding the next."""
    return "\n;".join(statements)
