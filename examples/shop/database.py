"""The same SQL for SQLite and for Postgres: values are $1, $2, ... A service with one database needs none of this: it
uses its driver's own connection, which is `tx.connection`."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import Any

from onefold import Transaction
from onefold.db.sqlite import AsyncSqlite


async def execute(tx: Transaction[Any], sql: str, *values: object) -> None:
    """Execute a statement in the transaction."""
    if isinstance(tx.connection, AsyncSqlite):
        await tx.connection.execute(sql.replace("$", "?"), values)
    else:
        await tx.connection.execute(sql, *values)


async def fetch(tx: Transaction[Any], sql: str, *values: object) -> list[tuple[Any, ...]]:
    """The rows of a query in the transaction."""
    if isinstance(tx.connection, AsyncSqlite):
        return await tx.connection.fetch(sql.replace("$", "?"), values)
    return [tuple(row) for row in await tx.connection.fetch(sql, *values)]


async def look(database: str, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query, on a connection of its own."""
    if not database.startswith("postgresql://"):
        with closing(sqlite3.connect(database)) as file:
            return file.execute(sql).fetchall()
    import asyncpg

    connection = await asyncpg.connect(database)
    try:
        return [tuple(row) for row in await connection.fetch(sql)]
    finally:
        await connection.close()
