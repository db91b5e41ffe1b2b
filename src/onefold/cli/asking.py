"""Short commands: one flow after the other over a driver for threads, then the connection is closed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from onefold._kernel.effects import Flow
from onefold._kernel.lanes import ThreadLane
from onefold._kernel.ports import Database
from onefold._kernel.runners import run
from onefold.cli.options import existing
from onefold.db.connect import sync_database

T = TypeVar("T")


class Desk:
    """Where questions are put to a database."""

    def __init__(self, database: Database[Any]) -> None:
        self._database = database
        self.dialect = database.dialect

    def ask(self, flow: Flow[T]) -> T:
        return run(flow, ThreadLane(self._database))


@contextmanager
def desk(database: str) -> Iterator[Desk]:
    """For as long as the block lasts. The database must be there: no file is made."""
    opened = sync_database(existing(database))
    try:
        yield Desk(opened)
    finally:
        opened.close()


def asked(database: str, question: Callable[[str], Flow[T]]) -> T:
    """The answer to one question, a function of the dialect."""
    with desk(database) as place:
        return place.ask(question(place.dialect))
