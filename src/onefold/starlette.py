"""Starlette: the request's transaction."""

from onefold._http.starlette import transaction_of

__all__ = [
    "transaction_of",
]
