"""A migrated database for works, on SQLite or Postgres, with a table of effects, and hands to act with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

import pytest

from onefold._app.migrations import MIGRATIONS
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Flow, Row, Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.ports import Database
from onefold._kernel.runners import run
from onefold._kernel.transaction import Transaction
from onefold._steps.model import WorkAsk
from onefold._steps.works import Works
from onefold.db._drivers import sync_database
from onefold.db._migrations import migrate

T = TypeVar("T")

#: For tests of what only one of the databases has.
ON_POSTGRES = pytest.mark.parametrize("address", ["postgres"], indirect=True)
ON_SQLITE = pytest.mark.parametrize("address", ["sqlite"], indirect=True)

ASK = WorkAsk(
    digest=b"d" * 16,
    kind="request",
    operation="POST /rides",
    fingerprint=b"f" * 16,
    lease_s=60.0,
    retention_s=3600.0,
    request=b"what was asked",
)


class Place:
    """What tests of works share."""

    def __init__(self, address: str, database: Database[Any]) -> None:
        self.address = address
        self.database = database
        self.works = Works(database.dialect)

    @property
    def is_postgres(self) -> bool:
        return self.database.dialect == "postgres"

    def executor(self) -> ThreadExecutor[Any]:
        return ThreadExecutor(self.database)

    def flow(self, flow: Flow[T]) -> T:
        return run(flow, self.executor())

    def rows(self, sql: str) -> list[Row]:
        return self.flow(with_connection(lambda: _rows(sql)))

    def change(self, sql: str) -> None:
        self.flow(with_connection(lambda: _changed(sql)))

    def lease_runs_out(self) -> None:
        """Of every work that is not in a phase: what would change that row waits for its transaction."""
        self.change(
            "UPDATE onefold_work SET lease_ends_at = now() - interval '1 second' "
            "WHERE digest IN (SELECT digest FROM onefold_work FOR UPDATE SKIP LOCKED)"
            if self.is_postgres
            else "UPDATE onefold_work SET lease_ends_at_ms = 1"
        )

    def retention_passes(self) -> None:
        self.lease_runs_out()
        self.change(
            "UPDATE onefold_work SET expires_at = now() - interval '1 second'"
            if self.is_postgres
            else "UPDATE onefold_work SET expires_at_ms = 1"
        )

    def works_left(self) -> int:
        return len(self.rows("SELECT digest FROM onefold_work"))

    def steps_left(self) -> list[tuple[int, str, str, str]]:
        """Position, name, kind and state of what is recorded."""
        found = self.rows("SELECT position, name, kind, state FROM onefold_step ORDER BY digest, position")
        return [(position, name, kind, state) for position, name, kind, state in found]


async def _rows(sql: str) -> list[Row]:
    return await Fetch(Statement(sql))


async def _changed(sql: str) -> int:
    return await Batch((Boundary.BEGIN, Statement(sql), Boundary.COMMIT))


def create_tables(address: str) -> None:
    with closing(sync_database(address)) as database:
        executor = ThreadExecutor(database)
        run(migrate(database.dialect, MIGRATIONS[database.dialect]), executor)
        run(with_connection(lambda: _changed("CREATE TABLE effects (name text NOT NULL)")), executor)


@contextmanager
def place_at(address: str) -> Iterator[Place]:
    """Over a database that has its tables."""
    with closing(sync_database(address)) as database:
        yield Place(address, database)


def insert(tx: Transaction[Any], name: str) -> str:
    """A phase of tests: one row in `effects`."""
    mark = "%s" if "psycopg" in type(tx.connection).__module__ else "?"
    tx.connection.execute(f"INSERT INTO effects VALUES ({mark})", (name,))
    return name


def effects(place: Place) -> list[str]:
    """What phases have inserted."""
    return [name for (name,) in place.rows("SELECT name FROM effects ORDER BY name")]
