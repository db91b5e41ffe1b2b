"""What the tests of natural writes share: every driver in both colours, tables in three forms, and a look from outside.

A scenario is an `async def`. What the methods of a transaction return can be awaited in either colour, so that the same
lines serve threads and asyncio.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal, TypeAlias

import psycopg
import pytest
from psycopg_pool import AsyncConnectionPool
from sqlalchemy import Numeric, create_engine
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from onefold import AsyncOnefold, Onefold

Form: TypeAlias = Literal["plain", "table", "mapped"]

PLAIN = ("sqlite", "sqlite-async", "psycopg", "psycopg-async", "asyncpg")
ENGINES = (
    "sqlite engine", "psycopg engine", "psycopg2 engine", "aiosqlite engine", "asyncpg engine", "psycopg-async engine",
)  # fmt: skip
#: Every driver, and with SQLAlchemy every form of a table.
WAYS = [(driver, "plain") for driver in PLAIN] + [
    (driver, form) for driver in ENGINES for form in ("plain", "table", "mapped")
]

#: What both databases understand.
TABLES = (
    """
    CREATE TABLE orders (
        id text PRIMARY KEY, tenant text, number bigint, total numeric(10,2), status text NOT NULL DEFAULT 'new',
        version bigint NOT NULL DEFAULT 0, email text, note text DEFAULT 'none', UNIQUE (tenant, number)
    )
    """,
    "CREATE UNIQUE INDEX open_email ON orders (email) WHERE status = 'open'",
    "CREATE TABLE entries (id text PRIMARY KEY, account text NOT NULL, amount bigint NOT NULL)",
    "CREATE TABLE accounts (id text PRIMARY KEY, balance bigint CHECK (balance >= 0))",
    """CREATE TABLE "order" ("group" text PRIMARY KEY, "select" text)""",
    "INSERT INTO accounts VALUES ('a', 100), ('b', 0), ('unset', NULL)",
)


class Tables(DeclarativeBase):
    """The application's."""


class Order(Tables):
    """Its attributes are not its columns."""

    __tablename__ = "orders"

    key: Mapped[str] = mapped_column("id", primary_key=True)
    tenant: Mapped[str | None]
    number: Mapped[int | None]
    total: Mapped[Decimal | None] = mapped_column(Numeric(10, 2))
    state: Mapped[str] = mapped_column("status", default="new")
    version: Mapped[int] = mapped_column(default=0)
    email: Mapped[str | None]
    note: Mapped[str | None] = mapped_column(default="none")


class Entry(Tables):
    __tablename__ = "entries"

    id: Mapped[str] = mapped_column(primary_key=True)
    account: Mapped[str]
    amount: Mapped[int]


class Account(Tables):
    __tablename__ = "accounts"

    id: Mapped[str] = mapped_column(primary_key=True)
    balance: Mapped[int | None]


_MAPPED: dict[str, Any] = {"orders": Order, "entries": Entry, "accounts": Account}
_ATTRIBUTES = {"id": "key", "status": "state"}


@dataclass(slots=True)
class Stage:
    """An application on one driver, with tables in one form."""

    once: Any
    address: str
    form: Form

    @property
    def is_postgres(self) -> bool:
        return "://" in self.address

    @property
    def asynchronous(self) -> bool:
        return isinstance(self.once, AsyncOnefold)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Any]:
        async with transaction(self.once) as tx:
            yield tx

    def table(self, name: str) -> Any:
        if self.form == "plain":
            return name
        return _MAPPED[name] if self.form == "mapped" else _MAPPED[name].__table__

    def named(self, values: dict[str, Any]) -> dict[str, Any]:
        """Values of an order by what its user calls them."""
        return {self.name(column): value for column, value in values.items()}

    def name(self, column: str) -> str:
        return _ATTRIBUTES.get(column, column) if self.form == "mapped" else column

    def read(self, row: Any, column: str) -> Any:
        """A column of a row of orders."""
        return getattr(row, self.name(column)) if self.form == "mapped" else row[column]

    def outside(self, sql: str) -> list[tuple[Any, ...]]:
        """What is committed."""
        return look(self.address, sql)


def look(address: str, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query on a connection of its own."""
    if "://" in address:
        with psycopg.connect(address, autocommit=True) as connection:
            cursor = connection.execute(sql.encode())
            return cursor.fetchall() if cursor.description else []
    with closing(sqlite3.connect(address, isolation_level=None)) as file:
        return file.execute(sql).fetchall()


@asynccontextmanager
async def transaction(once: Any) -> AsyncIterator[Any]:
    """`once.transaction()`, in either colour."""
    if isinstance(once, AsyncOnefold):
        async with once.transaction() as tx:
            yield tx
    else:
        with once.transaction() as tx:
            yield tx


def address_for(request: pytest.FixtureRequest, driver: str) -> str:
    """A database with the tables, and nothing in them but the accounts."""
    if "sqlite" not in driver:
        dsn: str = request.getfixturevalue("furnished_postgres")
        look(dsn, 'TRUNCATE orders, entries, accounts, "order"')
        look(dsn, TABLES[-1])
        return dsn
    path = str(request.getfixturevalue("sqlite_path"))
    with closing(sqlite3.connect(path)) as file:
        file.executescript(";".join(TABLES))
    return path


@asynccontextmanager
async def opened(driver: str, address: str, form: Form = "plain", **settings: Any) -> AsyncIterator[Stage]:
    """An application over a driver."""
    async with _database(driver, address) as database:
        onefold_type: Any = AsyncOnefold if _is_async(driver) else Onefold
        once = onefold_type(database, **settings)
        try:
            yield Stage(once, address, form)
        finally:
            if isinstance(once, AsyncOnefold):
                await once.close()
            else:
                once.close()


def _is_async(driver: str) -> bool:
    return driver.partition(" ")[0] in ("sqlite-async", "psycopg-async", "asyncpg", "aiosqlite")


@asynccontextmanager
async def _database(driver: str, address: str) -> AsyncIterator[Any]:
    name, _, engine = driver.partition(" ")
    if engine:
        rest = address.partition("://")[2]
        library = name.partition("-")[0]
        url = f"postgresql+{library}://{rest}" if rest else f"sqlite{'+aiosqlite' * (name == 'aiosqlite')}:///{address}"
        made: Any = create_async_engine(url) if _is_async(driver) else create_engine(url)
        yield made
        if isinstance(made, AsyncEngine):
            await made.dispose()
        else:
            made.dispose()
    elif name == "psycopg-async":
        async with AsyncConnectionPool(address, min_size=0, max_size=4, open=False) as pool:
            yield pool
    else:
        yield address


@contextmanager
def refused(kind: type[BaseException], *words: str) -> Iterator[Any]:
    """The block is refused, in these words."""
    with pytest.raises(kind) as caught:
        yield caught
    for word in words:
        assert word in str(caught.value)
