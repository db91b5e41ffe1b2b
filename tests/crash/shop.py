"""What every campaign here runs: a payments API of one handler, and the books that tell what really happened.

The handler writes its row before it decides, so that whatever fails afterwards has something to undo, and every
execution answers with a number of its own, so that a second execution can never pass for a replay.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import psycopg

from onefold import Onefold, single_principal
from onefold._http.route_policy import Policy
from onefold._http.routes import RouteTable, routes_of
from onefold._idempotency.model import Scope
from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import uuid7
from onefold.db.sqlite._locks import SUFFIX, lock_file
from tests.support.crash import Boundaries
from tests.support.invariants import Effected

PAY = "/payments"
#: The same, for clients that would rather wait for a request in flight.
PAY_OR_WAIT = "/patient-payments"
#: The same, with keys that never run again, however late.
PAY_ONCE = "/strict-payments"

#: The same, with or without a key.
PAY_UNKEYED = "/easy-payments"

CREATE = "CREATE TABLE payments (key text NOT NULL, payload text NOT NULL)"

#: Payloads that the handler does something special about.
DECLINED = "declined"


class Books(Protocol):
    """The database, seen from outside: no onefold, a connection of its own."""

    def insert(self, key: str, payload: str) -> None: ...
    def rows(self, key: str) -> list[Effected]: ...
    def forget(self, key: str) -> None: ...
    def expire(self, route: str, key: str) -> None: ...
    def end_lease(self, route: str, key: str) -> None:
        """Take the key from whoever runs it."""
        ...

    def close(self) -> None: ...


class SqliteBooks:
    """The books in a SQLite file."""

    def __init__(self, path: Path, *, busy_timeout_s: float = 5.0) -> None:
        self._connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False)
        self._path = os.path.realpath(path)

    def insert(self, key: str, payload: str) -> None:
        self._connection.execute("INSERT INTO payments VALUES (?, ?)", (key, payload))

    def rows(self, key: str) -> list[Effected]:
        found = self._connection.execute("SELECT key, payload FROM payments WHERE key = ?", (key,))
        return [Effected(*row) for row in found.fetchall()]

    def forget(self, key: str) -> None:
        self._connection.execute("DELETE FROM payments WHERE key = ?", (key,))

    def expire(self, route: str, key: str) -> None:
        self._connection.execute("UPDATE onefold_record SET expires_at_ms = 1 WHERE digest = ?", (digest(route, key),))

    def end_lease(self, route: str, key: str) -> None:
        """There is no lease. Locks can be lost, by a backup that opens and closes the file: so let them be, and here in
        the process, too, as if their holder were in another one."""
        lock_file(self._path)._holders.clear()
        os.close(os.open(self._path + SUFFIX, os.O_RDWR | os.O_CREAT))

    def close(self) -> None:
        self._connection.close()


class PostgresBooks:
    """The books on a Postgres server; reconnects, because some campaigns kill the server."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self._connection = self._connected()

    def insert(self, key: str, payload: str) -> None:
        self._execute("INSERT INTO payments VALUES (%s, %s)", (key, payload))

    def rows(self, key: str) -> list[Effected]:
        found = self._execute("SELECT key, payload FROM payments WHERE key = %s", (key,))
        return [Effected(*row) for row in found.fetchall()]

    def forget(self, key: str) -> None:
        self._execute("DELETE FROM payments WHERE key = %s", (key,))

    def expire(self, route: str, key: str) -> None:
        self._execute("UPDATE onefold_record SET expires_at = 'epoch' WHERE digest = %s", (digest(route, key),))

    def end_lease(self, route: str, key: str) -> None:
        """What the server does by itself to transactions that stand idle for longer than their lease."""
        idle = "FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'"
        self._execute(f"SELECT pg_terminate_backend(pid) {idle}", ())
        while self._execute(f"SELECT 1 {idle}", ()).fetchall():
            pass  # its own way of waiting takes a tenth of a second

    def close(self) -> None:
        self._connection.close()

    def _connected(self) -> psycopg.Connection[Any]:
        return psycopg.connect(self._dsn, autocommit=True)

    def _execute(self, sql: Any, values: tuple[Any, ...]) -> psycopg.Cursor[Any]:
        try:
            return self._connection.execute(sql, values)
        except psycopg.OperationalError:
            self._connection = self._connected()
            return self._connection.execute(sql, values)


def open_books(address: str | Path) -> Books:
    """Create the tables, onefold's and our own, where they are missing; then look at them from outside."""
    books: Books
    once = Onefold(address, principal=single_principal)
    once.migrate()
    once.close()
    if isinstance(address, Path):
        with contextlib.closing(sqlite3.connect(address)) as connection:
            connection.execute(CREATE.replace("TABLE", "TABLE IF NOT EXISTS"))
        books = SqliteBooks(address)
    else:
        with psycopg.connect(address, autocommit=True) as admin:
            admin.execute(CREATE.replace("TABLE", "TABLE IF NOT EXISTS"))
        books = PostgresBooks(address)
    return books


def routes(**settings: Any) -> RouteTable:
    """The shop's routes, all with these settings."""

    def policy(**own: Any) -> Policy:
        return Policy(**{"principal": single_principal, "required": True, **settings, **own})

    return routes_of(
        {
            f"POST {PAY}": policy(),
            f"POST {PAY_OR_WAIT}": policy(wait_s=5.0),
            f"POST {PAY_ONCE}": policy(expiry="refuse"),
            f"POST {PAY_UNKEYED}": policy(required=False),
        }
    )


def digest(route: str, key: str) -> bytes:
    return Scope("single", f"POST {route}").digest(key)


def new_key() -> str:
    return str(uuid7(wall_ms(), os.urandom(10)))


Answer: TypeAlias = tuple[int, list[tuple[str, str]], bytes]
Insert: TypeAlias = Callable[[Any, str, str], Any]
AsyncInsert: TypeAlias = Callable[[Any, str, str], Awaitable[Any]]


class Shop:
    """The handler's decisions, the same on threads and on asyncio."""

    def __init__(self, boundaries: Boundaries, *, splits: Books | None = None) -> None:
        self.boundaries = boundaries
        #: Keys whose next execution breaks.
        self.breaking: set[str] = set()
        #: Where the planted bug writes: the row goes its own way, apart from the key.
        self.splits = splits

    def decide(self, key: str, payload: str) -> Answer:
        """What is answered, once the row is written."""
        if key in self.breaking:
            self.breaking.discard(key)
            raise RuntimeError("the card processor is down")
        number = secrets.token_hex(8)
        status = 402 if payload == DECLINED else 201
        body = json.dumps({"payment": number}).encode()
        headers = [
            ("content-type", "application/json"),
            ("location", f"{PAY}/{number}"),
            ("set-cookie", f"visit={number}"),
            ("content-length", str(len(body))),
        ]
        return status, headers, body


def insert_sqlite(handle: Any, key: str, payload: str) -> Any:
    """sqlite3's connection, or its awaited counterpart."""
    return handle.execute("INSERT INTO payments VALUES (?, ?)", (key, payload))


def insert_psycopg(handle: Any, key: str, payload: str) -> Any:
    return handle.execute("INSERT INTO payments VALUES (%s, %s)", (key, payload))


def insert_asyncpg(handle: Any, key: str, payload: str) -> Any:
    return handle.execute("INSERT INTO payments VALUES ($1, $2)", key, payload)
