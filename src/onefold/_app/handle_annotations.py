"""Checks the annotation of a handler's `tx.connection` against the database's driver: a mismatch is refused where the
handler is declared, and not by an AttributeError in its first request.

Only classes that are known to be another driver's are refused. Any, a class of the application's own and an annotation
that cannot be resolved yet are accepted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, get_args, get_origin

from onefold._http.handler_needs import DEPTH_MAX, read_parameters
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError

#: The connection that handlers get, by the class of the Database.
_PROVIDED: Final = {
    "AsyncPsycopgDatabase": "psycopg.AsyncConnection",
    "AsyncSqlalchemyDatabase": "sqlalchemy.ext.asyncio.AsyncConnection",
    "AsyncpgDatabase": "asyncpg.Connection",
    "PsycopgDatabase": "psycopg.Connection",
    "SqlalchemyDatabase": "sqlalchemy.Connection",
    "SqliteDatabase": "sqlite3.Connection",
    "ThreadedDatabase": "onefold.db.sqlite.AsyncSqlite",
}

#: The connections that handlers are annotated with, by package and class: no driver is imported for the check.
_ANNOTATED: Final = {
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
    expected: str
    through: str


def check_handles(function: Callable[..., Any], name: str, by: str, database: object) -> None:
    """Refuse a handler whose transaction is annotated with a connection of another driver than the database's."""
    provided = _PROVIDED.get(type(database).__name__)
    if provided is None:
        return
    for annotation in _find(function, DEPTH_MAX):
        if annotation.expected != provided:
            session = annotation.expected.endswith("Session") and "sqlalchemy" in provided
            instead = "for a session take AsyncSessionTx or SessionTx (onefold.fastapi), or tx.session(). " * session
            raise ConfigurationError(
                f"the parameter {annotation.parameter!r} of {name}{annotation.through} says that its tx.connection is "
                f"a {annotation.expected}, and {by} gives a {provided}: {instead}write [{provided}] there, or give the "
                "application a database of that driver"
            )


def _find(function: Callable[..., Any], depth: int, through: str = "") -> Iterator[_Annotated]:
    for parameter in read_parameters(function):
        if get_origin(parameter.kind) is Transaction:
            for kind in getattr(get_args(parameter.kind)[0], "__mro__", ()):
                expected = _ANNOTATED.get((kind.__module__.partition(".")[0], kind.__name__))
                if expected is not None:
                    yield _Annotated(parameter.name, expected, through)
                    break
        for dependency in parameter.dependencies if depth else ():
            yield from _find(dependency, depth - 1, f" (in {getattr(dependency, '__qualname__', '?')})")
