"""Two releases on one database: each goes on with the schema the other made."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from onefold import Onefold, single_principal
from onefold._app import migrations
from onefold._app.migrations import MIGRATIONS
from onefold._client.journal import schema as journal
from onefold._idempotency import schema as idempotency
from onefold._inbox import schema as inbox
from onefold._kernel.effects import Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold._observe.activity import schema as activity
from onefold._outbox import schema as outbox
from onefold._saga import schema as saga
from onefold._steps import schema as steps
from onefold.brokers import _endpoint_schema as endpoints
from onefold.brokers import _local_schema as local
from onefold.db._drivers import sync_database
from onefold.db._migrations import migrate
from onefold.errors import ProgrammerError, SchemaMissing, StatementRefused
from tests.upgrade.places import dialect_of, restore, rows, sent
from tests.upgrade.scenes import SCENES

#: A migration of a release to come: it adds what may be left out, and removes nothing.
ADDITION = {1000: ("ALTER TABLE onefold_record ADD COLUMN note text",)}
#: One that breaks a rolling upgrade: what the release before writes is refused.
BREAKING = {1000: ("ALTER TABLE onefold_record RENAME COLUMN operation TO op",)}


@pytest.fixture(params=["postgres", "sqlite"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> str:
    return str(sqlite_path) if request.param == "sqlite" else str(request.getfixturevalue("postgres_dsn"))


def migrate_to(address: str, migrations: dict[int, tuple[str, ...]]) -> list[int]:
    with closing(sync_database(address)) as database:
        return run(migrate(database.dialect, migrations), ThreadExecutor(database))


def send_all(address: str) -> None:
    """Everything the release before sent when it was recorded."""
    with closing(sync_database(address)) as database:
        executor = ThreadExecutor(database)
        for entry in sent(database.dialect):
            executor.acquire()
            if isinstance(entry, Statement):
                executor.fetch(entry)
            else:
                executor.batch(entry)
        executor.release()


def test_the_previous_release_goes_on_with_todays_schema(address: str) -> None:
    migrate_to(address, MIGRATIONS[dialect_of(address)])
    send_all(address)
    assert rows(address, "SELECT count(*) FROM onefold_record") == [(len(SCENES),)]
    assert rows(address, "SELECT count(*) FROM onefold_inbox") == [(2,)]


def test_a_migration_that_shuts_the_previous_release_out_is_found(address: str) -> None:
    migrate_to(address, MIGRATIONS[dialect_of(address)] | BREAKING)
    with pytest.raises((SchemaMissing, StatementRefused)):
        send_all(address)


def test_the_schema_of_the_previous_release_is_migrated_and_keeps_its_rows(address: str) -> None:
    restore(address)
    before = rows(address, "SELECT digest, fingerprint, body FROM onefold_record ORDER BY digest")
    events = rows(address, "SELECT id FROM onefold_outbox ORDER BY id")
    migrate_to(address, MIGRATIONS[dialect_of(address)])
    assert rows(address, "SELECT digest, fingerprint, body FROM onefold_record ORDER BY digest") == before
    assert rows(address, "SELECT id FROM onefold_outbox ORDER BY id") == events
    assert len(before) == len(SCENES)


def test_an_older_release_finds_a_newer_schema_fine(address: str) -> None:
    migrate_to(address, MIGRATIONS[dialect_of(address)] | ADDITION)
    once = Onefold(address, principal=single_principal, source="upgrade")
    assert once.migrate() == []
    with once.transaction() as tx:
        _ = tx.publish("orders", {})
    with once.handling("mailer", "m") as mine:
        assert mine is not None
    once.close()


@pytest.mark.parametrize("dialect", ["postgres", "sqlite"])
def test_no_two_features_number_their_migrations_alike(dialect: str) -> None:
    """One of them would be left out, and nobody would be told."""
    modules = (idempotency, outbox, inbox, local, journal, endpoints, steps, saga, activity)
    features = [module.MIGRATIONS for module in modules]
    assert sum(len(feature[dialect]) for feature in features) == len(MIGRATIONS[dialect])


def test_two_features_with_one_number_are_found_when_onefold_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrations, "_FEATURES", (inbox, outbox, inbox))
    with pytest.raises(ProgrammerError, match=r"onefold\._inbox\.schema has migrations \[3, 7"):
        migrations._collect_migrations("sqlite")
