"""The migrations of all features together, and their application to a SQLite file."""

from __future__ import annotations

import logging
from pathlib import Path

from onefold._client.journal import schema as journal_schema
from onefold._idempotency import schema as idempotency_schema
from onefold._inbox import schema as inbox_schema
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold._observe.activity import schema as activity_schema
from onefold._outbox import schema as outbox_schema
from onefold._saga import schema as saga_schema
from onefold._steps import schema as steps_schema
from onefold.brokers import _endpoint_schema as endpoint_schema
from onefold.brokers import _local_schema as local_schema
from onefold.db._drivers import file_of, sync_database
from onefold.db._migrations import migrate
from onefold.errors import ProgrammerError

_log = logging.getLogger("onefold.database")

_FEATURES = (
    idempotency_schema,
    outbox_schema,
    inbox_schema,
    local_schema,
    journal_schema,
    endpoint_schema,
    steps_schema,
    saga_schema,
    activity_schema,
)


def _collect_migrations(dialect: str) -> dict[int, tuple[str, ...]]:
    """The migrations of all features. Of two with one number, one would be lost and its tables missing."""
    migrations: dict[int, tuple[str, ...]] = {}
    for feature in _FEATURES:
        if twice := migrations.keys() & feature.MIGRATIONS[dialect].keys():
            raise ProgrammerError(f"{feature.__name__} has migrations {sorted(twice)}, which another feature has too")
        migrations |= feature.MIGRATIONS[dialect]
    return migrations


#: Every feature's tables, per dialect. The numbers run through all of them.
MIGRATIONS = {dialect: _collect_migrations(dialect) for dialect in ("postgres", "sqlite")}


def migrate_embedded(database: str | Path) -> None:
    """Create or upgrade the tables of a SQLite file."""
    own = sync_database(database)
    try:
        applied = run(migrate(own.dialect, MIGRATIONS[own.dialect]), ThreadExecutor(own))
    finally:
        own.close()
    if applied:
        change = "created" if min(applied) == min(MIGRATIONS[own.dialect]) else "upgraded"
        _log.info(
            "SQLite file %r: onefold's tables were %s (versions %s)",
            str(file_of(database)), change, ", ".join(map(str, applied)),
        )  # fmt: skip
