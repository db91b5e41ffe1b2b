"""A claim is flushed to disk whatever the database was told to do by default; the end of a call is spared the wait."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import psycopg
import pytest

from onefold._client.journal.flow import Journal
from onefold._client.journal.schema import prepare
from onefold._kernel.effects import BatchItem, Boundary, Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.ports import Database
from onefold._kernel.runners import run
from onefold.db._drivers import sync_database
from tests.client.journal.backends import HASH, PAY, TARGET

ASK = {
    "sqlite": Statement("PRAGMA synchronous"),
    "postgres": Statement("SELECT current_setting('synchronous_commit')"),
}

FULL, NORMAL = 2, 1


class Watching(ThreadExecutor[object]):
    """Asks, in every transaction and just before it ends, how it will be flushed."""

    __slots__ = ("_ask", "seen")

    def __init__(self, database: Database[object]) -> None:
        super().__init__(database)
        self._ask = ASK[database.dialect]
        self.seen: list[object] = []

    def batch(self, items: Sequence[BatchItem]) -> int:
        if items[-1] is not Boundary.COMMIT:
            return super().batch(items)
        if items[:-1]:
            super().batch(items[:-1])
        self.seen += [row[0] for row in self.fetch(self._ask)]
        return super().batch(items[-1:])


def flushes(address: str) -> tuple[object, object, object, object]:
    """How these are flushed: a first claim, a second one, a call that was left, and one that was answered."""
    with closing(sync_database(address)) as database:
        run(prepare(database.dialect), ThreadExecutor(database))
        executor, journal = Watching(database), Journal(database.dialect)
        run(journal.claim(PAY, HASH, TARGET), executor)
        run(journal.claim(PAY, HASH, TARGET), executor)
        run(journal.leave(PAY, "timeout"), executor)
        run(journal.resolve(PAY, 201), executor)
    first, second, left, answered = executor.seen
    return first, second, left, answered


def test_on_sqlite_a_claim_waits_for_the_disk_and_the_end_of_a_call_does_not(sqlite_path: Path) -> None:
    assert flushes(str(sqlite_path)) == (FULL, FULL, NORMAL, NORMAL)


@pytest.mark.parametrize(("given", "claims"), [("off", "on"), ("on", "on"), ("remote_apply", "remote_apply")])
def test_on_postgres_a_claim_waits_for_the_disk_whatever_the_default(
    postgres_dsn: str, given: str, claims: str
) -> None:
    name = postgres_dsn.rpartition("/")[2]
    with psycopg.connect(postgres_dsn, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} SET synchronous_commit = {given}".encode())
    assert flushes(postgres_dsn) == (claims, claims, "off", "off")


def test_the_setting_ends_with_its_transaction(postgres_dsn: str) -> None:
    with closing(sync_database(postgres_dsn)) as database:
        run(prepare(database.dialect), ThreadExecutor(database))
        run(Journal(database.dialect).resolve(PAY, 201), ThreadExecutor(database))
        connection = database.acquire()
        assert connection.fetch(ASK["postgres"]) == [("on",)]
        connection.release()
