"""The handle inside a transaction has the driver's own type: mypy checks this file, running it checks the names."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING, Annotated, Any, assert_type, get_origin, get_type_hints

import asyncpg
import psycopg
from sqlalchemy import Connection
from sqlalchemy.ext.asyncio import AsyncConnection

from onefold._http.fastapi_dependencies import Tx
from onefold.db.sqlite import AsyncSqlite

if TYPE_CHECKING:  # generic for the type checker only
    AsyncpgConnection = asyncpg.Connection[asyncpg.Record]
else:
    AsyncpgConnection = asyncpg.Connection


def handles(
    a: Tx[AsyncpgConnection],
    b: Tx[psycopg.AsyncConnection[Any]],
    c: Tx[psycopg.Connection[Any]],
    d: Tx[sqlite3.Connection],
    e: Tx[AsyncSqlite],
    f: Tx[Connection],
    g: Tx[AsyncConnection],
) -> None:
    """Never called: its types are the test."""
    assert_type(a.connection, AsyncpgConnection)
    assert_type(b.connection, psycopg.AsyncConnection[Any])
    assert_type(c.connection, psycopg.Connection[Any])
    assert_type(d.connection, sqlite3.Connection)
    assert_type(e.connection, AsyncSqlite)
    assert_type(f.connection, Connection)
    _ = assert_type(g.connection, AsyncConnection)


def test_a_typed_transaction_is_still_a_dependency() -> None:
    hints = get_type_hints(handles, include_extras=True)
    assert {get_origin(hint) for name, hint in hints.items() if name != "return"} == {Annotated}
