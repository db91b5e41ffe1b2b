"""Whatever an application has becomes a database, or an error that says what to give instead."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg_pool
import pytest
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.orm import Session

from onefold.db._drivers import async_database, dialect_of, sync_database
from onefold.db._threaded import ThreadedDatabase
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase, SqlalchemyDatabase
from onefold.db.sqlite import SqliteDatabase, async_sqlite
from onefold.errors import ConfigurationError
from tests.support.patience import PATIENCE_S

DSN = "postgresql://me:hunter2@host:5432/name"


class CustomPool(psycopg_pool.ConnectionPool[Any]):
    """A pool of the application's own kind."""


def pool(kind: Callable[..., Any] = psycopg_pool.ConnectionPool) -> Any:
    return kind(DSN, open=False)


async def asyncpg_pool() -> Any:
    return asyncpg.create_pool(DSN, min_size=0)


# --- strings and paths ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("sqlite:///relative/file.db", "relative/file.db"),
        ("sqlite:////absolute/file", "/absolute/file"),
        ("file.db", "file.db"),
        ("./file.sqlite", "./file.sqlite"),
        ("/absolute/file.sqlite3", "/absolute/file.sqlite3"),
        (Path("any") / "name", "any/name"),
    ],
)
def test_a_path_is_a_file_of_sqlite(given: str | Path, path: str) -> None:
    database = sync_database(given)
    assert isinstance(database, SqliteDatabase)
    assert database.path == str(Path(path).absolute())
    assert isinstance(async_database(given), ThreadedDatabase)
    assert dialect_of(given) == "sqlite"


@pytest.mark.parametrize("dsn", [DSN, DSN.replace("postgresql", "postgres")])
def test_a_url_of_postgres_is_served_by_psycopg_on_threads_and_by_asyncpg_on_asyncio(dsn: str) -> None:
    assert isinstance(sync_database(dsn), PsycopgDatabase)
    assert isinstance(async_database(dsn), AsyncpgDatabase)
    assert dialect_of(dsn) == "postgres"


REFUSED = {
    "in memory": (":memory:", "path of a file"),
    "sqlite in memory": ("sqlite:///:memory:", "path of a file"),
    "two slashes": ("sqlite://file.db", "three slashes"),
    "nothing": ("sqlite:///", "three slashes"),
    "options": ("sqlite:///file.db?mode=ro", "without options"),
    "another database": ("mysql://me:hunter2@host/name", "no database for mysql://"),
    "SQLAlchemy": ("postgresql+asyncpg://me:hunter2@host/name", "pass the engine"),
    "keywords": ("host=db password=hunter2", "neither a URL"),
    "settings of libpq": ("host=h password=hunter2", "neither a URL"),
    "a blank": ("hunter2 is the password", "neither a URL"),
    "odd scheme": ("me:hunter2@x://host", r"no database for \.\.\.://"),
    "two ats": ("postgresql://me:x@hunter2@host/name", "percent-encoded"),
}


@pytest.mark.parametrize(("given", "said"), REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("connect", [sync_database, async_database])
def test_another_string_is_refused_without_its_password(
    connect: Callable[[object], object], given: str, said: str
) -> None:
    with pytest.raises(ConfigurationError, match=said) as refusal:
        connect(given)
    assert "hunter2" not in str(refusal.value)


# --- pools and engines ----------------------------------------------------------------------------------------


async def test_pools_and_engines_become_the_database_of_their_driver(sqlite_path: Path) -> None:
    assert isinstance(sync_database(pool()), PsycopgDatabase)
    assert isinstance(sync_database(pool(CustomPool)), PsycopgDatabase)
    assert isinstance(sync_database(pool(psycopg_pool.NullConnectionPool)), PsycopgDatabase)
    assert isinstance(async_database(pool(psycopg_pool.AsyncConnectionPool)), AsyncPsycopgDatabase)
    assert isinstance(async_database(await asyncpg_pool()), AsyncpgDatabase)
    engine = create_engine(f"sqlite:///{sqlite_path}")
    assert isinstance(sync_database(engine), SqlalchemyDatabase)
    assert dialect_of(engine) == "sqlite"
    async_engine = create_async_engine(DSN.replace("postgresql", "postgresql+asyncpg"))
    assert isinstance(async_database(async_engine), AsyncSqlalchemyDatabase)
    assert dialect_of(async_engine) == "postgres"
    assert dialect_of(pool()) == "postgres"


def test_a_database_is_taken_as_it_is(sqlite_path: Path) -> None:
    database = SqliteDatabase(sqlite_path)
    assert sync_database(database) is database
    threaded = async_sqlite(sqlite_path)
    assert async_database(threaded) is threaded
    assert dialect_of(threaded) == "sqlite"


async def test_an_object_for_asyncio_is_refused_on_threads_with_the_way_out(sqlite_path: Path) -> None:
    async_engine = create_async_engine(f"sqlite+aiosqlite:///{sqlite_path}")
    for given, instead in (
        (await asyncpg_pool(), "psycopg_pool.ConnectionPool"),
        (pool(psycopg_pool.AsyncConnectionPool), "psycopg_pool.ConnectionPool"),
        (async_engine, "sqlalchemy.Engine"),
        (async_sqlite(sqlite_path), "AsyncOnefold"),
    ):
        with pytest.raises(ConfigurationError, match="works on asyncio; use AsyncOnefold") as refusal:
            sync_database(given)
        assert str(refusal.value).endswith(instead)


def test_an_object_for_threads_is_refused_on_asyncio_with_the_way_out(sqlite_path: Path) -> None:
    for given, instead in (
        (pool(), "psycopg_pool.AsyncConnectionPool"),
        (create_engine(f"sqlite:///{sqlite_path}"), "sqlalchemy AsyncEngine"),
        (SqliteDatabase(sqlite_path), "Onefold"),
    ):
        with pytest.raises(ConfigurationError, match="works on threads; use Onefold") as refusal:
            async_database(given)
        assert str(refusal.value).endswith(instead)


@pytest.mark.parametrize("connect", [sync_database, async_database])
def test_anything_else_is_refused_by_its_name(connect: Callable[[object], object], sqlite_path: Path) -> None:
    with closing(sqlite3.connect(sqlite_path)) as connection, Session() as session:
        for given, name in (
            (connection, "sqlite3.Connection"),
            (session, "sqlalchemy.orm.session.Session"),
            (None, r"None \(is the variable set that has its URL\?\)"),
            (asyncio, "module"),
            (b"file.db", "bytes"),
        ):
            with pytest.raises(ConfigurationError, match=f"cannot use {name} as its database; it takes"):
                connect(given)


# --- missing drivers ------------------------------------------------------------------------------------------


WITHOUT = """
import sys

function, given, *missing = sys.argv[1:]
sys.modules.update(dict.fromkeys(missing))
from onefold.db import _drivers
from onefold.errors import ConfigurationError

try:
    print(type(getattr(_drivers, function)(given)).__name__)
except ConfigurationError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("function", "missing", "said"),
    [
        ("sync_database", ["psycopg"], "pip install 'onefold[psycopg]'"),
        ("sync_database", ["psycopg_pool"], "pip install 'onefold[psycopg]'"),
        ("async_database", ["asyncpg", "psycopg"], "pip install 'onefold[asyncpg]'"),
        ("async_database", ["asyncpg"], "AsyncPsycopgDatabase"),
    ],
)
def test_a_driver_that_is_not_installed_is_named_with_the_extra_that_brings_it(
    function: str, missing: list[str], said: str
) -> None:
    command = [sys.executable, "-c", WITHOUT, function, DSN, *missing]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE_S)
    assert said in ran.stdout
    assert "hunter2" not in ran.stdout
