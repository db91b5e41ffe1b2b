"""Where the payments go: a Postgres of the bench's own with fsync on, and SQLite files on the same disk."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import asyncpg
from redis import Redis

import onefold
from benchmarks.applications import COUNT_PAYMENTS, POSTGRES_TABLES, SQLITE_TABLES
from onefold.testing.servers import PrivatePostgres, PrivateValkey

#: No checkpoint and no vacuum falls into one variant's round and not into another's.
_SETTINGS: Final = {
    "max_connections": "400",
    "shared_buffers": "256MB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "1h",
    "autovacuum": "off",
}


def private_postgres() -> PrivatePostgres:
    return PrivatePostgres(version=18, fsync=True, settings=_SETTINGS)


@contextlib.contextmanager
def cache_server() -> Iterator[str]:
    """The address of a Valkey as one has it for a cache: it writes nothing to disk."""
    with PrivateValkey() as server:
        with Redis.from_url(server.url) as client:
            client.config_set("appendonly", "no")
        yield server.url


def postgres_place(server: PrivatePostgres) -> str:
    """A database with every table that any application needs."""
    dsn = f"{server.fresh_database()}?sslmode=disable"
    asyncio.run(_prepare_postgres(dsn))
    return dsn


def sqlite_place(folder: Path, name: str) -> str:
    """A file with every table that any application needs."""
    path = str(folder / f"{name}.sqlite3")
    connection = sqlite3.connect(path)
    for table in SQLITE_TABLES:
        connection.execute(table)
    connection.commit()
    connection.close()
    asyncio.run(_migrate(path))
    return path


def payments_in(place: str) -> int:
    """How many payments were really made."""
    if place.startswith("postgresql:"):
        return asyncio.run(_payments_in_postgres(place))
    connection = sqlite3.connect(place)
    [count] = connection.execute(COUNT_PAYMENTS).fetchone()
    connection.close()
    return int(count)


async def _prepare_postgres(dsn: str) -> None:
    connection = await asyncpg.connect(dsn)
    for table in POSTGRES_TABLES:
        await connection.execute(table)
    await connection.close()
    await _migrate(dsn)


async def _migrate(place: str) -> None:
    once = onefold.AsyncOnefold(place)
    await once.migrate()
    await once.close()


async def _payments_in_postgres(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    count = await connection.fetchval(COUNT_PAYMENTS)
    await connection.close()
    return int(count)
