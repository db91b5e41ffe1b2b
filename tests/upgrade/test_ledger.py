"""A ledger that two releases write: the one before knows no sources, and neither handles what the other has handled."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import asyncpg
import pytest

from onefold import Onefold
from onefold._kernel.effects import Statement
from onefold._kernel.executors import ThreadExecutor
from onefold.db._drivers import sync_database
from tests.upgrade.places import restore, rows, sent

EU, US = "/shop/eu", "/shop/us"


@pytest.fixture(params=["postgres", "sqlite"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))


@pytest.fixture
def once(address: str) -> Iterator[Onefold]:
    """Today's release, over the recorded database of the one before."""
    restore(address)
    once = Onefold(address)
    once.migrate()
    yield once
    once.close()


def handles(once: Onefold, name: str, source: str | None = None) -> bool:
    """Whether today's release handles this message."""
    with once.handling("mailer", name, source=source) as tx:
        return tx is not None


def previous_claim(dialect: str) -> Statement:
    batches = [entry for entry in sent(dialect) if not isinstance(entry, Statement)]
    steps = [step for batch in batches for step in batch if isinstance(step, Statement)]
    return next(step for step in steps if "INSERT INTO onefold_inbox" in step.sql and "mailer" in step.values)


def previous_release_handles(address: str, name: str) -> bool:
    """Whether the release before does: its own statement, as recorded, decides."""
    with closing(sync_database(address)) as database:
        claim = previous_claim(database.dialect)
        executor = ThreadExecutor(database)
        executor.acquire()
        done = executor.batch((Statement(claim.sql, ("mailer", name)),))
        executor.release()
        return done > 0


def test_what_the_previous_release_has_handled_is_known_whatever_its_source(once: Onefold, address: str) -> None:
    for name in ("message-True", "message-False"):
        assert not any(handles(once, name, source) for source in (None, EU, US))
        assert not previous_release_handles(address, name), "the control: its own statement finds its own row"


def test_neither_release_handles_again_what_the_other_has_handled(once: Onefold, address: str) -> None:
    assert handles(once, "1001", EU)
    assert not previous_release_handles(address, "1001")
    assert previous_release_handles(address, "1002")
    assert not any(handles(once, "1002", source) for source in (None, EU, US))
    assert [handles(once, "1001", source) for source in (US, EU, US)] == [True, False, False]
    assert not previous_release_handles(address, "1001")


def test_a_letter_that_is_named_apart_is_handled_once_though_the_previous_release_runs_it(
    once: Onefold, address: str
) -> None:
    """To that release the name of the row is the message's id: under it, it writes its ledger row."""
    for source in (EU, US):
        assert handles(once, "1001", source)
    [apart] = [name for (name,) in rows(address, "SELECT message_id FROM onefold_inbox") if name.startswith("1001@")]
    rows(address, "DELETE FROM onefold_inbox WHERE message_id LIKE '1001%'")
    assert previous_release_handles(address, apart)
    assert [handles(once, "1001", source) for source in (US, EU)] == [False, True]


async def test_a_connection_of_the_previous_release_goes_on_across_the_migration(postgres_dsn: str) -> None:
    """It has prepared its statement before there was a source."""
    restore(postgres_dsn)
    connection = await asyncpg.connect(postgres_dsn)
    claim = await connection.prepare(previous_claim("postgres").sql)
    assert await claim.fetch("mailer", "before") == []
    once = Onefold(postgres_dsn)
    assert once.migrate() != []
    await claim.fetch("mailer", "after")
    assert not handles(once, "after", EU)
    assert not handles(once, "before", EU)
    once.close()
    await connection.close()
