"""What the Postgres drivers share: literals for merged batches, and the table of SQLSTATEs.

A batch travels as one simple query, so its values are written into the text. Only four kinds of value exist
(`Value`), each with one rendering that cannot be read as anything but that value.
"""

from __future__ import annotations

import re
from typing import assert_never

from onefold._kernel.effects import Boundary, Statement, Value
from onefold.errors import (
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

SAVEPOINT = "onefold"

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
    "55P03": StoreBusy,
    "57014": StoreUnavailable,  # cancelled by a statement timeout or an operator
    "25P03": ConnectionLost,  # idle_in_transaction_session_timeout: the lease ran out
    "25P04": ConnectionLost,  # transaction_timeout: the lease ran out
    "57P01": ConnectionLost,
    "57P02": ConnectionLost,
    "57P03": StoreUnavailable,  # starting up
    "08": ConnectionLost,
    "28": StoreUnavailable,  # wrong user or password
    "3D": StoreUnavailable,  # no such database
    "53": StoreUnavailable,  # out of connections, memory or disk
}

_PLACEHOLDER = re.compile(r"\$(\d+)")


def error_for(sqlstate: str | None, error: BaseException) -> OnefoldError:
    """Our error for a vendor's. A failure without SQLSTATE never reached the server, or lost its answer."""
    if sqlstate is None:
        return ConnectionLost(f"Postgres: {type(error).__name__}: {error}")
    kind = SQLSTATES.get(sqlstate) or SQLSTATES.get(sqlstate[:2]) or StatementRefused
    hint = "; run `onefold migrate` to create onefold's tables" if kind is SchemaMissing else ""
    return kind(f"Postgres {sqlstate}: {error}{hint}")


def literal(value: Value) -> str:
    """The value as SQL text."""
    match value:
        case None:
            return "NULL"
        case int():
            return str(int(value)) if value >= 0 else f"({int(value)})"
        case bytes():
            # E'' again: with standard_conforming_strings off, '\\x' would lose its backslash.
            return f"E'\\\\x{value.hex()}'::bytea"
        case str():
            if "\0" in value:
                raise StatementRefused("Postgres text cannot hold a NUL character; store such a value as bytes")
            # E'' reads the same whatever standard_conforming_strings says.
            escaped = value.replace("\\", "\\\\").replace("'", "''")
            return f"E'{escaped}'"
        case _:
            assert_never(value)


def inlined(statement: Statement) -> str:
    """The statement with its values written in."""
    literals = [literal(value) for value in statement.values]
    return _PLACEHOLDER.sub(lambda found: literals[int(found[1]) - 1], statement.sql)
