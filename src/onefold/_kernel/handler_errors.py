"""What an error of the database says about the handler in whose transaction it came: at its end, or before."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from onefold._kernel.sqlstates import ISOLATION_TOO_LATE, LEASE_OVER, UNSERIALIZED, sqlstate_of
from onefold.errors import (
    RequiredValueMissing,
    SerializationFailed,
    StoreBusy,
    StoreError,
    StoreUnavailable,
    TransactionAborted,
    TransactionEnded,
    TransactionMisused,
)

COMMITTED_BY_HANDLER = (
    "the handler committed or rolled back its transaction by itself; nothing was stored, but its rows may be committed "
    "on their own. onefold commits everything together: remove the commit()/rollback() from the handler (with "
    "SQLAlchemy use onefold's session, where commit() is a savepoint). On Postgres a RESET ALL is taken for the same, "
    "because it takes away the transaction's mark and its time limits: reset single settings"
)

_SWALLOWED_ERROR = (
    "the handler swallowed an SQL error and answered success, but the database had aborted the transaction; nothing "
    "was stored. Let the error rise, or put the statement that may fail into a savepoint"
)


def nothing_executed_error(whose: str, way_out: str) -> TransactionMisused:
    """For a handler that took the connection, executed nothing on it, and takes its work for done."""
    return TransactionMisused(
        f"{whose} and took tx.connection, but executed nothing on it: an `await` may be missing, as in `await "
        f"tx.connection.execute(...)`, and then nothing is written. {way_out}"
    )


def success_not_stored(operation: str, raised: BaseException, status: int) -> str:
    """What the log says of a success that goes out although something was raised."""
    return (
        f"{operation} raised {type(raised).__name__} and an exception handler answered {status}: its rows were rolled "
        "back and the answer is not stored, so a retry runs again"
    )


def refusal_not_stored(operation: str, status: int) -> str:
    """What the log says of a refusal that goes out, but not for good."""
    return (
        f"{operation} answered {status} after it had swallowed an SQL error that aborted its transaction. At its "
        "isolation level that may be a serialization failure, so the answer is not stored and a retry runs again. Let "
        "such errors rise; put a statement that may fail for other reasons into a savepoint, and its refusal is stored"
    )


def translate_refusal(error: Exception) -> Exception:
    """What a refused settle says about the handler, where it says something; else the error itself."""
    match error:
        case RequiredValueMissing() | TransactionEnded():
            return TransactionMisused(COMMITTED_BY_HANDLER)
        case TransactionAborted():
            return TransactionMisused(_SWALLOWED_ERROR)
        case _:
            return error


def rethrow(error: Exception) -> NoReturn:
    """Raise it translated. An error without a translation keeps its cause, the vendor's: applications handle that."""
    translated = translate_refusal(error)
    if translated is error:
        raise error
    raise translated from error


#: How far an error is followed to where it came from.
_CAUSES_MAX = 20


def failure_of(error: BaseException, operation: str, lease_s: float) -> StoreError | None:
    """What a handler raised, if the database is at fault: it could not have its transaction (SQLite has one write
    lock), that could not be serialised, or it outlived its lease."""
    if isinstance(error, StoreBusy):
        return error
    return serialization_failure_of(error, operation) or lease_over(error, operation, lease_s)


def serialization_failure_of(error: BaseException, operation: str) -> SerializationFailed | None:
    """Our error for a handler's, where all it says is that the transaction was in the way of another: a retry may
    succeed, whatever the handler or an exception handler made of it. Without its text, which may quote values."""
    for cause in _causes(error):
        if isinstance(cause, SerializationFailed) or is_serialization_failure(cause):
            return SerializationFailed(
                f"the transaction of {operation} could not be serialised with others beside it "
                f"({type(cause).__name__}, in the handler); nothing of it is left, and a retry runs again"
            )
    return None


def is_serialization_failure(error: BaseException) -> bool:
    """Whether a driver's error says that the transaction could not be serialised, or was the victim of a deadlock."""
    return sqlstate_of(error) in UNSERIALIZED


def lease_over(error: BaseException, operation: str, lease_s: float) -> StoreUnavailable | None:
    """Our error for a handler's, where all it says is that the server ended its transaction with the lease."""
    for cause in _causes(error):
        if sqlstate_of(cause) in LEASE_OVER:
            return StoreUnavailable(
                f"the handler of {operation} took longer than its lease, lease_s={lease_s:g}, and Postgres cut it off "
                f"({type(cause).__name__}); nothing of it is left, and a retry runs again"
            )
    return None


def late_isolation(error: BaseException) -> TransactionMisused | None:
    """Our error for a SET TRANSACTION in the handler, whose transaction has begun long before it."""
    for cause in _causes(error):
        if sqlstate_of(cause) == ISOLATION_TOO_LATE and "TRANSACTION ISOLATION LEVEL" in str(cause):
            return TransactionMisused(
                "the handler tried to SET TRANSACTION ISOLATION LEVEL, but its transaction has begun before it, with "
                "the request's claim: say isolation='serializable' (or 'repeatable read') in @once.idempotent(...) or "
                "in Onefold(...), or choose it for the engine or the database"
            )
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, what it was raised from, and the driver's error inside of SQLAlchemy's."""
    waiting, count = [error], 0
    while waiting and count < _CAUSES_MAX:
        current, count = waiting.pop(), count + 1
        yield current
        context = None if current.__suppress_context__ else current.__context__
        grouped = current.exceptions if isinstance(current, BaseExceptionGroup) else ()
        behind = (getattr(current, "orig", None), current.__cause__, context, *grouped)
        waiting += [cause for cause in behind if isinstance(cause, BaseException)]
