"""Short commands: one flow after the other over a database, then its connections are closed.

On asyncio, like the workers: so a command runs over asyncpg as well as over psycopg, whichever is installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from onefold._cli.options import require_database
from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold.db._drivers import async_database

T = TypeVar("T")


class CommandSession:
    """Runs flows over one database."""

    def __init__(self, database: AsyncDatabase[Any], loop: asyncio.Runner) -> None:
        self._database = database
        self._loop = loop
        self.dialect = database.dialect

    def run(self, flow: Flow[T]) -> T:
        return self._loop.run(run_async(flow, TaskExecutor(self._database)))


@contextmanager
def open_session(database: str) -> Iterator[CommandSession]:
    """A session over `database`, closed when the block ends."""
    with asyncio.Runner() as loop:
        opened = async_database(database)
        try:
            yield CommandSession(opened, loop)
        finally:
            loop.run(opened.close())


@contextmanager
def session(database: str) -> Iterator[CommandSession]:
    """`open_session` for a database that must be there: no file is made."""
    with open_session(require_database(database)) as db:
        yield db


def run_on_database(database: str, make_flow: Callable[[str], Flow[T]]) -> T:
    """Run one flow, which `make_flow` makes for the dialect of the database."""
    with session(database) as db:
        return db.run(make_flow(db.dialect))
