"""What a handler says that its `tx.connection` is, held against what it gets: told where the handler is written, not by
an AttributeError in its first request.

Only classes that are known to be another driver's are refused. Any, a class of the application's own and an annotation
that cannot be looked up yet are left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, get_args, get_origin

from onefold._http.session_needs import DEPTH_MAX, read_parameters
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError

#: What handlers are annotated with, by the class of the Database.
_GIVEN: Final = {
    "AsyncPsycopgDatabase": "psycopg.AsyncConnection",
    "AsyncSqlalchemyDatabase": "sqlalchemy.ext.asyncio.AsyncConnection",
    "AsyncpgDatabase": "asyncpg.Connection",
    "PsycopgDatabase": "psycopg.Connection",
    "SqlalchemyDatabase": "sqlalchemy.Connection",
    "SqliteDatabase": "sqlite3.Connection",
    "ThreadedDatabase": "onefold.db.sqlite.AsyncSqlite",
}

#: Classes of drivers, by package and name: which of those a handler means. Drivers are imported by those who use them.
_MEANT: Final = {
    ("aiosqlite", "Connection"): "aiosqlite.Connection",
    ("asyncpg", "Connection"): "asyncpg.Connection",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg.Connection",
    ("onefold", "AsyncSqlite"): "onefold.db.sqlite.AsyncSqlite",
    ("psycopg", "AsyncConnection"): "psycopg.AsyncConnection",
    ("psycopg", "Connection"): "psycopg.Connection",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy.ext.asyncio.AsyncConnection",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy.ext.asyncio.AsyncSession",
    ("sqlalchemy", "Connection"): "sqlalchemy.Connection",
    ("sqlalchemy", "Session"): "sqlalchemy.orm.Session",
    ("sqlite3", "Connection"): "sqlite3.Connection",
}


class _Annotated(NamedTuple):
    parameter: str
    meant: str
    through: str


def check_handles(function: Callable[..., Any], name: str, by: str, database: object) -> None:
    """Refuse a handler whose transaction is annotated with a connection of another driver than the database has."""
    given = _GIVEN.get(type(database).__name__)
    if given is None:
        return
    for found in _find(function, DEPTH_MAX):
        if found.meant != given:
            session = found.meant.endswith("Session") and "sqlalchemy" in given
            instead = "for a session take AsyncSessionTx or SessionTx (onefold.fastapi), or tx.session(). " * session
            raise ConfigurationError(
                f"the parameter {found.parameter!r} of {name}{found.through} says that its tx.connection is a "
                f"{found.meant}, and {by} gives a {given}: {instead}write [{given}] there, or give the application the "
                "database that is meant"
            )


def _find(function: Callable[..., Any], depth: int, through: str = "") -> Iterator[_Annotated]:
    for parameter in read_parameters(function):
        if get_origin(parameter.kind) is Transaction:
            for kind in getattr(get_args(parameter.kind)[0], "__mro__", ()):
                meant = _MEANT.get((kind.__module__.partition(".")[0], kind.__name__))
                if meant is not None:
                    yield _Annotated(parameter.name, meant, through)
                    break
        for dependency in parameter.dependencies if depth else ():
            yield from _find(dependency, depth - 1, f" (in {getattr(dependency, '__qualname__', '?')})")
