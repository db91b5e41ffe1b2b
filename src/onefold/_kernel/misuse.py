"""What a refused end of a transaction says about the handler that had it."""

from __future__ import annotations

from onefold.errors import RequiredValueMissing, TransactionAborted, TransactionEnded, TransactionMisused

COMMITTED_BY_HANDLER = (
    "the handler committed or rolled back its transaction by itself; nothing was stored, but its rows may be committed "
    "on their own. onefold commits everything together: remove the commit()/rollback() from the handler (with "
    "SQLAlchemy use onefold's session, where commit() is a savepoint)"
)

_SWALLOWED_ERROR = (
    "the handler swallowed an SQL error and answered success, but the database had aborted the transaction; nothing "
    "was stored. Let the error rise, or put the statement that may fail into a savepoint"
)


def translated(error: Exception) -> Exception:
    """What a refused settle says about the handler, where it says something; else the error itself."""
    match error:
        case RequiredValueMissing() | TransactionEnded():
            return TransactionMisused(COMMITTED_BY_HANDLER)
        case TransactionAborted():
            return TransactionMisused(_SWALLOWED_ERROR)
        case _:
            return error
