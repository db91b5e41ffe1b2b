"""A handler that is annotated with the connection of another driver than it gets is told so where it is written."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import aiosqlite
import asyncpg
import psycopg
import pytest
from fastapi import Depends
from sqlalchemy import Connection, create_engine
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine

import onefold
from onefold import AsyncOnefold, Message, Onefold, Transaction
from onefold.db.sqlite import AsyncSqlite
from onefold.errors import ConfigurationError
from onefold.fastapi import Tx

POSTGRES = "postgresql://nowhere/shop"


class OwnConnection(asyncpg.Connection):
    """As a pool may be told to make them."""


async def of_asyncpg(tx: Tx[asyncpg.Connection]) -> None: ...
async def of_own_class(tx: Tx[OwnConnection]) -> None: ...
async def of_psycopg(tx: Tx[psycopg.AsyncConnection]) -> None: ...
async def of_aiosqlite(tx: Tx[aiosqlite.Connection]) -> None: ...
async def of_sqlite(tx: Tx[AsyncSqlite]) -> None: ...
async def of_threads(tx: Tx[sqlite3.Connection]) -> None: ...
async def of_engine(tx: Tx[AsyncConnection]) -> None: ...
async def of_session(tx: Tx[AsyncSession]) -> None: ...
async def of_anything(tx: Tx[Any]) -> None: ...
async def plain(tx: Transaction[Any]) -> None: ...
async def through(found: Annotated[None, Depends(of_asyncpg)]) -> None: ...


def read_sync(tx: Tx[sqlite3.Connection]) -> None: ...
def read_psycopg(tx: Tx[psycopg.Connection]) -> None: ...
def read_engine(tx: Tx[Connection]) -> None: ...


def place(kind: str, folder: Path) -> AsyncOnefold | Onefold:
    principal, file = onefold.single_principal, folder / "app.db"
    match kind:
        case "sqlite":
            return AsyncOnefold(file, principal=principal)
        case "threads":
            return Onefold(file, principal=principal)
        case "postgres":
            return AsyncOnefold(POSTGRES, principal=principal)
        case "postgres threads":
            return Onefold(POSTGRES, principal=principal)
        case "engine":
            return AsyncOnefold(create_async_engine(f"sqlite+aiosqlite:///{file}"), principal=principal)
        case _:
            return Onefold(create_engine(f"sqlite:///{file}"), principal=principal)


@pytest.mark.parametrize(
    ("kind", "handler", "meant", "given"),
    [
        ("sqlite", of_asyncpg, "asyncpg.Connection", "onefold.db.sqlite.AsyncSqlite"),
        ("sqlite", of_own_class, "asyncpg.Connection", "onefold.db.sqlite.AsyncSqlite"),
        ("sqlite", of_threads, "sqlite3.Connection", "onefold.db.sqlite.AsyncSqlite"),
        ("sqlite", of_aiosqlite, "aiosqlite.Connection", "onefold.db.sqlite.AsyncSqlite"),
        ("threads", read_psycopg, "psycopg.Connection", "sqlite3.Connection"),
        ("postgres", of_psycopg, "psycopg.AsyncConnection", "asyncpg.Connection"),
        ("postgres", of_sqlite, "onefold.db.sqlite.AsyncSqlite", "asyncpg.Connection"),
        ("postgres threads", read_sync, "sqlite3.Connection", "psycopg.Connection"),
        ("engine", of_asyncpg, "asyncpg.Connection", "sqlalchemy.ext.asyncio.AsyncConnection"),
        ("engine", of_session, "sqlalchemy.ext.asyncio.AsyncSession", "sqlalchemy.ext.asyncio.AsyncConnection"),
        ("engine threads", read_sync, "sqlite3.Connection", "sqlalchemy.Connection"),
    ],
)
def test_the_connection_of_another_driver_is_refused_where_the_handler_is_marked(
    kind: str, handler: Callable[..., Any], meant: str, given: str, tmp_path: Path
) -> None:
    once = place(kind, tmp_path)
    with pytest.raises(ConfigurationError) as refused:
        once.idempotent(required=True)(handler)
    said = str(refused.value)
    assert f"is a {meant}, and " in said
    assert f"gives a {given}: " in said
    assert handler.__name__ in said
    assert ("AsyncSessionTx" in said) is (handler is of_session)


@pytest.mark.parametrize(
    ("kind", "handlers"),
    [
        ("sqlite", (of_sqlite, of_anything, plain)),
        ("threads", (read_sync,)),
        ("postgres", (of_asyncpg, of_own_class, through, of_anything)),
        ("postgres threads", (read_psycopg,)),
        ("engine", (of_engine,)),
        ("engine threads", (read_engine,)),
    ],
)
def test_the_connection_that_it_gets_is_not_refused(
    kind: str, handlers: tuple[Callable[..., Any], ...], tmp_path: Path
) -> None:
    once = place(kind, tmp_path)
    for handler in handlers:
        once.idempotent(required=True)(handler)


def test_a_dependency_and_a_consumer_are_looked_at_too(tmp_path: Path) -> None:
    once = place("sqlite", tmp_path)
    with pytest.raises(ConfigurationError, match=r"'tx' of .*through \(in of_asyncpg\) says"):
        once.idempotent(required=True)(through)

    async def ship(message: Message, tx: Transaction[asyncpg.Connection]) -> None: ...

    with pytest.raises(ConfigurationError, match="'tx' of consumer 'shipping' says"):
        once.consumer("shipping", topic="order.placed")(ship)
    assert once.consumers == ()
