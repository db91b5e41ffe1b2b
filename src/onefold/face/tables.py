"""Every feature's tables, and a SQLite file that has them."""

from __future__ import annotations

from pathlib import Path

from onefold._kernel.lanes import ThreadLane
from onefold._kernel.runners import run
from onefold.brokers.local import schema as local_schema
from onefold.client.journal import schema as journal_schema
from onefold.db.connect import dialect_of, sync_database
from onefold.db.migrate import migrate
from onefold.idempotency import schema as idempotency_schema
from onefold.inbox import schema as inbox_schema
from onefold.outbox import schema as outbox_schema

#: Every feature's tables, per dialect. The numbers run through all of them.
MIGRATIONS = {
    dialect: {
        **idempotency_schema.MIGRATIONS[dialect],
        **outbox_schema.MIGRATIONS[dialect],
        **inbox_schema.MIGRATIONS[dialect],
        **local_schema.MIGRATIONS[dialect],
        **journal_schema.MIGRATIONS[dialect],
    }
    for dialect in ("postgres", "sqlite")
}


def migrate_embedded(database: object) -> None:
    """A SQLite file given by its path is ours to prepare. Servers are migrated on purpose: `onefold migrate`."""
    if isinstance(database, str | Path) and dialect_of(database) == "sqlite":
        own = sync_database(database)
        try:
            run(migrate(own.dialect, MIGRATIONS[own.dialect]), ThreadLane(own))
        finally:
            own.close()
