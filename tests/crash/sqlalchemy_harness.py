"""The shop on SQLAlchemy's engines, in both colours: their batches are many round trips, so more can come between."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from sqlalchemy import NullPool, create_engine, text
from sqlalchemy.ext.asyncio import create_async_engine

from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase, SqlalchemyDatabase
from tests.crash.asgi_harness import AsgiHarness
from tests.crash.shop import open_books
from tests.crash.wsgi_harness import WsgiHarness, WsgiPsycopg, WsgiSqlite
from tests.support.patience import PATIENCE_S

POOL: dict[str, Any] = {"pool_size": 3, "max_overflow": 0, "pool_timeout": 5}


def insert(handle: Any, key: str, payload: str) -> Any:
    """A sqlalchemy Connection, or its awaited counterpart."""
    return handle.execute(text("INSERT INTO payments VALUES (:key, :payload)"), {"key": key, "payload": payload})


class _AsgiEngine(AsgiHarness):
    def __init__(self, url: str, address: Any, rival: WsgiHarness, pool: dict[str, Any], **options: Any) -> None:
        self.engine = create_async_engine(url, **pool)
        database = AsyncSqlalchemyDatabase(self.engine)
        super().__init__(asyncio.Runner(), database, insert, open_books(address), rival, **options)

    async def _leaks(self) -> list[str]:
        found = await super()._leaks()
        deadline = time.monotonic() + PATIENCE_S
        while _checked_out(self.engine.pool) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # a connection whose taking was cancelled goes back by a task of its own
        return [*found, *_checked_out(self.engine.pool)]

    def close(self) -> None:
        self.runner.run(self.engine.dispose())
        super().close()


class _WsgiEngine(WsgiHarness):
    def __init__(self, url: str, address: Any, rival: WsgiHarness, pool: dict[str, Any], **options: Any) -> None:
        self.engine = create_engine(url, **pool)
        super().__init__(SqlalchemyDatabase(self.engine), insert, open_books(address), rival, **options)

    def leaks(self) -> list[str]:
        return [*super().leaks(), *_checked_out(self.engine.pool)]

    def close(self) -> None:
        super().close()
        self.engine.dispose()


class AsgiSqlalchemyPostgres(_AsgiEngine):
    """AsyncEngine, asyncpg, Postgres."""

    def __init__(self, dsn: str, *, through: str | None = None, **options: Any) -> None:
        url = (through or dsn).replace("postgresql://", "postgresql+asyncpg://")
        super().__init__(url, dsn, WsgiPsycopg(dsn, alone=True), POOL, **options)


class AsgiSqlalchemySqlite(_AsgiEngine):
    """AsyncEngine, aiosqlite, SQLite."""

    def __init__(self, path: Path, **options: Any) -> None:
        pool: dict[str, Any] = {"poolclass": NullPool, "connect_args": {"timeout": 0.5}}
        super().__init__(f"sqlite+aiosqlite:///{path}", path, WsgiSqlite(path, alone=True), pool, **options)


class WsgiSqlalchemyPostgres(_WsgiEngine):
    """Engine, psycopg, Postgres."""

    def __init__(self, dsn: str, *, through: str | None = None, **options: Any) -> None:
        url = (through or dsn).replace("postgresql://", "postgresql+psycopg://")
        super().__init__(url, dsn, WsgiPsycopg(dsn, alone=True), POOL, **options)


class WsgiSqlalchemySqlite(_WsgiEngine):
    """Engine, sqlite3, SQLite."""

    def __init__(self, path: Path, **options: Any) -> None:
        pool: dict[str, Any] = {**POOL, "connect_args": {"timeout": 0.5}}
        super().__init__(f"sqlite:///{path}", path, WsgiSqlite(path, alone=True), pool, **options)


def _checked_out(pool: Any) -> list[str]:
    out = 0 if isinstance(pool, NullPool) else pool.checkedout()
    return [f"{out} connections of the engine are out"] if out else []
