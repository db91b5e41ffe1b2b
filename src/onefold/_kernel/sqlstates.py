"""The SQLSTATEs that onefold distinguishes: what each means, in one place for drivers, handlers and consumers.

An error of a driver says its own as `sqlstate` (asyncpg, psycopg) or `pgcode` (psycopg2).
"""

from __future__ import annotations

from typing import Final

from onefold.errors import (
    ConnectionLost,
    OnefoldError,
    RequiredValueMissing,
    SchemaMissing,
    SerializationFailed,
    StoreBusy,
    StoreReadOnly,
    StoreUnavailable,
    TransactionAborted,
    TransactionEnded,
    UniqueViolated,
)

#: SQLSTATE, or its class, to error. Exact codes win over classes.
SQLSTATES: Final[dict[str, type[OnefoldError]]] = {
    "23505": UniqueViolated,
    "23502": RequiredValueMissing,
    "40001": SerializationFailed,
    "40P01": SerializationFailed,
    "25P02": TransactionAborted,
    "25P01": TransactionEnded,
    "3B001": TransactionEnded,  # the savepoint is gone
    "2201G": TransactionEnded,  # the mark of the transaction is gone: see POSTGRES_PROOF
    "25006": StoreReadOnly,
    "42P01": SchemaMissing,  # undefined table
    "42703": SchemaMissing,  # undefined column: a schema older than this code
    "3F000": SchemaMissing,
    "26000": StoreUnavailable,  # a prepared statement of ours is gone: see `_postgres_batches`
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

#: A transaction that could not be serialised with others, or was the victim of a deadlock.
UNSERIALIZED: Final = ("40001", "40P01")

#: SET TRANSACTION in a transaction that has begun.
ISOLATION_TOO_LATE: Final = "25001"

#: The session of a transaction that stood still, or lasted, longer than it may: its lease ran out.
LEASE_OVER: Final = ("25P03", "25P04")

#: A prepared statement is missing, or there already. Not the session it was, or a pooler is in between.
NOT_AS_PREPARED: Final = ("26000", "42P05")

#: What passes, or how it begins: connections, rollbacks of transactions, resources, locks, operators.
PASSING: Final = ("08", "25006", *LEASE_OVER, "40", "53", "55P03", "57", "58")


def sqlstate_of(error: object) -> str | None:
    """The SQLSTATE of a driver's error, or of a class of them."""
    found = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return found if isinstance(found, str) else None
