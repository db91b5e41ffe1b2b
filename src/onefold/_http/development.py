"""Reports of programming errors: writes past the transaction (in development), waiting for a second connection."""

from __future__ import annotations

from typing import Any

from onefold._kernel.handler_errors import nothing_executed_error
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import TWO_CONNECTIONS
from onefold.errors import TransactionMisused


def check_used(tx: OwnedTransaction[Any], operation: str, status: int) -> None:
    """A success that made no statement on its transaction wrote elsewhere, or nothing."""
    if tx.is_idle:
        raise nothing_executed_error(
            f"{operation} answered {status}",
            "A handler that writes nothing leaves tx.connection alone, or declares the route with writes=False",
        )
    if not (tx.touched or tx.pending.published):
        raise TransactionMisused(
            f"{operation} answered {status} without using its transaction: what it wrote through another "
            "session or connection commits apart from the key and can happen twice. Write through tx, or declare "
            "the route with writes=False"
        )


#: What pools raise when nothing became free in time. Read from the names: drivers are imported by those who use them.
_POOL_TIMEOUTS = frozenset({("sqlalchemy", "TimeoutError"), ("psycopg_pool", "PoolTimeout")})


def explain_wait(error: BaseException, operation: str) -> None:
    """Name the cause where a request that holds a connection has waited for another one and did not get it."""
    for kind in type(error).__mro__:
        if (kind.__module__.partition(".")[0], kind.__name__) in _POOL_TIMEOUTS:
            error.add_note(
                f"{operation} holds a connection and waited for a second one, and got none. {TWO_CONNECTIONS}"
            )
            return
