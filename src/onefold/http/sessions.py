"""FastAPI with SQLAlchemy: a session in the request's transaction, as a dependency.

The session's own `commit()` is a savepoint; what it still holds back is written when the request is settled. Its
rows, the key and the response commit together.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, TypeAlias

from fastapi import Depends
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session

from onefold.db.sqlalchemy import join_async_session, join_session
from onefold.http.fastapi import Tx


async def session_of(tx: Tx[Connection]) -> Session:
    """A Session in the request's transaction, for plain (`def`) endpoints."""
    session = join_session(tx.connection)

    def end(keep_rows: bool) -> None:
        if keep_rows:
            session.commit()
        session.close()

    async def end_on_a_thread(keep_rows: bool) -> None:
        await asyncio.to_thread(end, keep_rows)

    tx.endings.append(end_on_a_thread)
    return session


async def async_session_of(tx: Tx[AsyncConnection]) -> AsyncSession:
    """An AsyncSession in the request's transaction, for `async def` endpoints."""
    session = join_async_session(tx.connection)

    async def end(keep_rows: bool) -> None:
        if keep_rows:
            await session.commit()
        await session.close()

    tx.endings.append(end)
    return session


SessionTx: TypeAlias = Annotated[Session, Depends(session_of)]
AsyncSessionTx: TypeAlias = Annotated[AsyncSession, Depends(async_session_of)]
