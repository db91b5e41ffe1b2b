"""What the tests of sessions share: tables, an engine in either colour on either database, and a look from outside."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, select, text
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker, create_async_engine
from sqlalchemy.orm import (
    DeclarativeBase,
    Mapped,
    ORMExecuteState,
    Session,
    mapped_column,
    sessionmaker,
    with_loader_criteria,
)
from sqlalchemy.pool import AsyncAdaptedQueuePool, QueuePool

from onefold import AsyncOnefold, Onefold
from tests.http.stages import account_of

KINDS = ["sync-sqlite", "sync-postgres", "async-sqlite", "async-postgres"]


class Tables(DeclarativeBase):
    """The application's tables."""


class Order(Tables):
    __tablename__ = "orders"

    item: Mapped[str] = mapped_column(primary_key=True)
    tenant: Mapped[str] = mapped_column(default="acme")


class TenantSession(Session):
    """The application's own class: it shows the rows of one tenant only."""


@event.listens_for(TenantSession, "do_orm_execute")
def _one_tenant(state: ORMExecuteState) -> None:
    state.statement = state.statement.options(with_loader_criteria(Order, Order.tenant == "acme"))


@dataclass(slots=True)
class Stage:
    """An engine and what is seen from outside of it."""

    engine: Any
    outside: Engine
    told: list[str] = field(default_factory=list)
    onefolds: list[Any] = field(default_factory=list)

    @property
    def asynchronous(self) -> bool:
        return isinstance(self.engine, AsyncEngine)

    def factory(self, **options: Any) -> Any:
        """The application's own sessionmaker, with its hooks."""
        if self.asynchronous:
            return async_sessionmaker(self.engine, sync_session_class=TenantSession, **options)
        return sessionmaker(self.engine, class_=TenantSession, **options)

    def once(self, **settings: Any) -> Any:
        onefold_type = AsyncOnefold if self.asynchronous else Onefold
        self.onefolds.append(once := onefold_type(self.engine, source="shop", principal=account_of, **settings))
        return once

    async def migrated(self, **settings: Any) -> Any:
        once = self.once(**settings)
        await settle(once.migrate())
        return once

    def items(self) -> list[str]:
        with Session(self.outside) as session:
            return list(session.scalars(select(Order.item).order_by(Order.item)))

    def events(self) -> int:
        with self.outside.connect() as connection:
            return int(connection.execute(text("SELECT count(*) FROM onefold_outbox")).scalar_one())

    def listen(self, target: Any) -> None:
        """Have each end of a session's transaction told, with what can be seen from outside by then."""

        def tell(what: str) -> Callable[[Session], None]:
            return lambda session: self.told.append(f"{what} {','.join(self.items())}")

        event.listen(target, "after_commit", tell("kept"))
        event.listen(target, "after_rollback", tell("undone"))


@asynccontextmanager
async def staged(request: pytest.FixtureRequest, kind: str, **pool: Any) -> AsyncIterator[Stage]:
    colour, _, database = kind.partition("-")
    if database in ("postgres", "psycopg"):
        address = request.getfixturevalue("postgres_dsn").partition("://")[2]
        outside = create_engine(f"postgresql+psycopg://{address}")
        url = f"postgresql+{'asyncpg' if kind == 'async-postgres' else 'psycopg'}://{address}"
    else:
        path = request.getfixturevalue("sqlite_path")
        outside = create_engine(f"sqlite:///{path}")
        url = f"sqlite+aiosqlite:///{path}" if colour == "async" else f"sqlite:///{path}"
        if pool:  # older SQLAlchemys keep no connections to SQLite files
            pool["poolclass"] = AsyncAdaptedQueuePool if colour == "async" else QueuePool
    Tables.metadata.create_all(outside)
    engine: Engine | AsyncEngine = create_async_engine(url, **pool) if colour == "async" else create_engine(url, **pool)
    stage = Stage(engine, outside)
    try:
        yield stage
    finally:
        for once in stage.onefolds:
            await settle(once.close())
        if isinstance(engine, AsyncEngine):
            await engine.dispose()
        else:
            engine.dispose()
        outside.dispose()


async def settle(answer: Any) -> Any:
    """What a session in either colour answers."""
    return await answer if hasattr(answer, "__await__") else answer
