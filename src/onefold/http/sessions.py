"""FastAPI with SQLAlchemy: a session in the request's transaction, as a dependency.

The session's own `commit()` is a savepoint; what it still holds back is written when the request is settled. Its
rows, the key and the response commit together. What the session rolls back, also a nested part of it, takes the events
published meanwhile with it.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, TypeAlias

from fastapi import Depends
from sqlalchemy import Connection, event
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession
from sqlalchemy.orm import Session, SessionTransaction

from onefold._kernel.transaction import Transaction
from onefold.db.sqlalchemy import join_async_session, join_session
from onefold.http.fastapi import Tx


async def session_of(tx: Tx[Connection]) -> Session:
    """A Session in the request's transaction, for plain (`def`) endpoints."""
    session = join_session(tx.connection)
    _retract_with(session, tx)

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
    _retract_with(session.sync_session, tx)

    async def end(keep_rows: bool) -> None:
        if keep_rows:
            await session.commit()
        await session.close()

    tx.endings.append(end)
    return session


def _retract_with(session: Session, tx: Transaction[Any]) -> None:
    """Let events share the fate of the session's work."""
    #: How many events there were when the session's work began, and each nested part of it.
    since: dict[SessionTransaction | None, int] = {None: tx.published}

    @event.listens_for(session, "after_transaction_create")
    def begun(_: Session, part: SessionTransaction) -> None:
        since[part] = tx.published if part.nested else since[None]

    @event.listens_for(session, "after_transaction_end")
    def ended(_: Session, part: SessionTransaction) -> None:
        if not part.nested:
            since[None] = tx.published

    @event.listens_for(session, "after_soft_rollback")  # comes after the end
    def undone(session: Session, part: SessionTransaction) -> None:
        tx.retract(since[part])
        ended(session, part)


SessionTx: TypeAlias = Annotated[Session, Depends(session_of)]
AsyncSessionTx: TypeAlias = Annotated[AsyncSession, Depends(async_session_of)]
