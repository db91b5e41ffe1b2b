"""From what an application has to a database: a URL, a path, a pool, an engine, or a Database already.

Drivers are imported only when they are used, so the kind of an object is read from the names of its classes.
No message repeats a URL, because it may hold a password.
"""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar, overload

from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.redaction import redact
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    import asyncpg
    from psycopg_pool import AsyncConnectionPool, ConnectionPool
    from sqlalchemy import Engine
    from sqlalchemy.ext.asyncio import AsyncEngine

    from onefold.db.asyncpg import AsyncpgDatabase
    from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
    from onefold.db.sqlalchemy import AsyncSqlalchemyDatabase, SqlalchemyDatabase

H = TypeVar("H")

AppKind: TypeAlias = Literal["Onefold", "AsyncOnefold"]

_OTHER: dict[AppKind, AppKind] = {"Onefold": "AsyncOnefold", "AsyncOnefold": "Onefold"}

_ACCEPTED: dict[AppKind, str] = {
    "Onefold": "postgresql://..., sqlite:///file.db or the path of a .db file, a psycopg_pool.ConnectionPool, "
    "a sqlalchemy.Engine",
    "AsyncOnefold": "postgresql://..., sqlite:///file.db or the path of a .db file, an asyncpg.Pool, "
    "a psycopg_pool.AsyncConnectionPool, a sqlalchemy AsyncEngine",
}

_FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")


@dataclass(frozen=True, slots=True)
class _Vendor:
    """A class of a driver that onefold can stand on: for which app, where its Database is, what the other takes."""

    app_kind: AppKind
    module: str
    database: str
    counterpart: str


_VENDORS: dict[tuple[str, str], _Vendor] = {
    ("psycopg_pool", "ConnectionPool"): _Vendor(
        "Onefold", "psycopg", "PsycopgDatabase", "psycopg_pool.AsyncConnectionPool"
    ),
    ("psycopg_pool", "AsyncConnectionPool"): _Vendor(
        "AsyncOnefold", "psycopg", "AsyncPsycopgDatabase", "psycopg_pool.ConnectionPool"
    ),
    ("asyncpg", "Pool"): _Vendor("AsyncOnefold", "asyncpg", "AsyncpgDatabase", "psycopg_pool.ConnectionPool"),
    ("sqlalchemy", "Engine"): _Vendor("Onefold", "sqlalchemy", "SqlalchemyDatabase", "sqlalchemy AsyncEngine"),
    ("sqlalchemy", "AsyncEngine"): _Vendor(
        "AsyncOnefold", "sqlalchemy", "AsyncSqlalchemyDatabase", "sqlalchemy.Engine"
    ),
}


@overload
def sync_database(database: ConnectionPool[Any]) -> PsycopgDatabase: ...
@overload
def sync_database(database: Engine) -> SqlalchemyDatabase: ...
@overload
def sync_database(database: Database[H]) -> Database[H]: ...
@overload
def sync_database(database: object) -> Database[Any]: ...
def sync_database(database: object) -> Database[Any]:
    """The database for threads."""
    found: Database[Any]
    if not isinstance(database, str | Path):
        found = _wrap(database, "Onefold")
    elif (address := _read(database)).dialect == "sqlite":
        found = _make("sqlite", "SqliteDatabase", address.text)
    else:
        found = _make("psycopg", "PsycopgDatabase", address.text)
    return found


@overload
def async_database(database: asyncpg.Pool[Any]) -> AsyncpgDatabase: ...
@overload
def async_database(database: AsyncConnectionPool[Any]) -> AsyncPsycopgDatabase: ...
@overload
def async_database(database: AsyncEngine) -> AsyncSqlalchemyDatabase: ...
@overload
def async_database(database: AsyncDatabase[H]) -> AsyncDatabase[H]: ...
@overload
def async_database(database: object) -> AsyncDatabase[Any]: ...
def async_database(database: object) -> AsyncDatabase[Any]:
    """The database for asyncio. A Postgres URL is served by asyncpg where it is installed, else by psycopg."""
    found: AsyncDatabase[Any]
    if not isinstance(database, str | Path):
        found = _wrap(database, "AsyncOnefold")
    elif (address := _read(database)).dialect == "sqlite":
        found = _make("sqlite", "async_sqlite", address.text)
    elif find_spec("asyncpg") or not find_spec("psycopg"):
        found = _make("asyncpg", "AsyncpgDatabase", address.text)
    else:
        found = _make("psycopg", "AsyncPsycopgDatabase", address.text)
    return found


def file_of(database: str | Path) -> Path | None:
    """The SQLite file that an address names, if it names one."""
    address = _read(database)
    return Path(address.text) if address.dialect == "sqlite" else None


def check_usable(database: object, setting: str) -> None:
    """Refuse what can never become a database, for threads or for asyncio, without opening or importing anything."""
    if isinstance(database, str | Path):
        _read(database)
    elif _vendor_of(database) is None and not _is_database(database):
        raise ConfigurationError(
            f"{setting}={database!r} is not a database; it may be {_ACCEPTED['AsyncOnefold']}, a "
            "psycopg_pool.ConnectionPool, a sqlalchemy.Engine"
        )


def dialect_of(database: object) -> str:
    """The statement set a database speaks, without opening it."""
    if isinstance(database, str | Path):
        return _read(database).dialect
    app_kind: AppKind = "AsyncOnefold" if _is_async(database) else "Onefold"
    dialect: str = _wrap(database, app_kind).dialect
    return dialect


def _wrap(database: object, app_kind: AppKind) -> Any:
    """A Database for an object of some driver, or the object itself if it is one."""
    vendor = _vendor_of(database)
    if vendor is None and not _is_database(database):
        raise ConfigurationError(
            f"{app_kind} cannot use {_name(database)} as its database; it takes {_ACCEPTED[app_kind]}"
        )
    if _is_async(database) != (app_kind == "AsyncOnefold"):
        works_on = "asyncio" if app_kind == "Onefold" else "threads"
        instead = f", or give {app_kind} a {vendor.counterpart}" if vendor else ""
        raise ConfigurationError(f"{_name(database)} works on {works_on}; use {_OTHER[app_kind]}{instead}")
    return database if vendor is None else _make(vendor.module, vendor.database, database)


def _make(module: str, name: str, given: object) -> Any:
    try:
        driver = import_module(f"onefold.db.{module}")
    except ModuleNotFoundError as error:
        raise ConfigurationError(f"this database needs {error.name}: pip install 'onefold[{module}]'") from None
    except ImportError as error:
        if module != "psycopg":
            raise
        raise ConfigurationError(
            "psycopg is installed, but finds no libpq to work with: pip install 'psycopg[binary]', or have the system "
            "install libpq (Debian's package libpq5)"
        ) from error
    return getattr(driver, name)(given)


def _vendor_of(database: object) -> _Vendor | None:
    for kind in type(database).__mro__:
        vendor = _VENDORS.get((kind.__module__.partition(".")[0], kind.__name__))
        if vendor is not None:
            return vendor
    return None


def _is_database(database: object) -> bool:
    return isinstance(getattr(database, "dialect", None), str) and callable(getattr(database, "acquire", None))


def _is_async(database: object) -> bool:
    vendor = _vendor_of(database)
    if vendor is not None:
        return vendor.app_kind == "AsyncOnefold"
    return inspect.iscoroutinefunction(getattr(database, "acquire", None))


def _name(database: object) -> str:
    if database is None:
        return "None (is the variable set that has its URL?)"
    kind = type(database)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


class _Address(NamedTuple):
    dialect: str
    text: str


def _read(database: str | Path) -> _Address:
    """The dialect and the address in a URL or a path."""
    if isinstance(database, Path):
        return _Address("sqlite", str(database))
    scheme, separator, rest = database.partition("://")
    if not separator:
        if database == ":memory:" or database.endswith(_FILE_ENDINGS):
            return _Address("sqlite", database)
        # What may be something else than a path (host=... password=...) is not repeated either.
        named = redact(database) if re.fullmatch(r"[\w./-]{0,100}", database) else "..."
        raise ConfigurationError(
            f"{named!r} names no database: it is neither a URL (postgresql://..., sqlite:///file.db) nor the path of a "
            f"file that ends in {', '.join(_FILE_ENDINGS)}; for a file of another name write "
            f"sqlite:///{named or 'name'}, or pass a pathlib.Path"
        )
    if "+" in scheme:
        raise ConfigurationError(
            f"{scheme}:// is a URL of SQLAlchemy; pass the engine that it makes, "
            f"or write {scheme.partition('+')[0]}:// for onefold's own driver"
        )
    if scheme in ("postgresql", "postgres"):
        return _Address("postgres", database)
    if scheme != "sqlite":
        known = re.fullmatch(r"[\w.-]+", scheme)
        raise ConfigurationError(
            f"onefold has no database for {scheme if known else '...'}://; "
            "there are postgresql://... and sqlite:///file.db"
        )
    if not rest.startswith("/") or rest == "/" or "?" in rest:
        raise ConfigurationError(
            "a SQLite URL is three slashes and a path, without options: sqlite:///relative.db, "
            "sqlite:////absolute/file.db"
        )
    return _Address("sqlite", rest[1:])
