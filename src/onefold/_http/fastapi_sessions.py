"""FastAPI with SQLAlchemy: sessions as dependencies.

`SessionTx` and `AsyncSessionTx` are in the transaction of an idempotent request. `RequestSession` and
`AsyncRequestSession` are so too where there is one, and elsewhere (a GET) have a transaction of their own: what an
authentication, a GET and a POST share, so that no request needs a second connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypeAlias

from fastapi import Depends

from onefold._kernel.extras import missing_extra

try:
    from sqlalchemy.ext.asyncio import AsyncSession
except ModuleNotFoundError as error:
    raise missing_extra(error, "sqlalchemy") from None
from sqlalchemy.orm import Session
from starlette.requests import HTTPConnection

from onefold._http.fastapi_dependencies import Tx
from onefold._http.handler_needs import GIVES_SESSION
from onefold._http.scope_keys import SESSIONS, TRANSACTION, is_between_steps
from onefold._kernel.transaction import Transaction
from onefold.errors import ProgrammerError


async def session_of(tx: Tx[Any]) -> Any:
    """A session in the request's transaction. Async, so that FastAPI spends no thread on it."""
    return tx.session()


async def request_session(connection: HTTPConnection) -> AsyncIterator[Any]:
    """The transaction's session where the request has one; else a session of its own, which its user commits. A
    handler that works in steps has none while its dependencies run."""
    tx = connection.scope.get(TRANSACTION)
    if isinstance(tx, Transaction) and not is_between_steps(connection.scope):
        yield tx.session()
        return
    sessions = connection.scope.get(SESSIONS)
    if sessions is None:
        raise ProgrammerError(
            f"{connection.url.path} has no session: give Onefold or AsyncOnefold a SQLAlchemy engine, and call "
            "once.install(app)"
        )
    session = sessions.own()
    try:
        yield session
    finally:
        if isinstance(session, AsyncSession):
            await session.close()
        else:
            await asyncio.to_thread(session.close)


for _dependency in (session_of, request_session):
    setattr(_dependency, GIVES_SESSION, True)

SessionTx: TypeAlias = Annotated[Session, Depends(session_of)]
"""A Session in the request's transaction, for plain (`def`) endpoints."""

AsyncSessionTx: TypeAlias = Annotated[AsyncSession, Depends(session_of)]
"""An AsyncSession in the request's transaction, for `async def` endpoints."""

RequestSession: TypeAlias = Annotated[Session, Depends(request_session)]
"""A Session in the request's transaction, or of its own where there is none."""

AsyncRequestSession: TypeAlias = Annotated[AsyncSession, Depends(request_session)]
"""An AsyncSession in the request's transaction, or of its own where there is none."""
