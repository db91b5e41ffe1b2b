"""SQLAlchemy: the transaction that a session belongs to."""

from onefold.db.sqlalchemy import tx_of

__all__ = [
    "tx_of",
]
