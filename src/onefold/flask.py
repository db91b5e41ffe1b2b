"""Flask: the request's transaction and SQLAlchemy session."""

from onefold._http.flask import current_session, current_transaction

__all__ = [
    "current_session",
    "current_transaction",
]
