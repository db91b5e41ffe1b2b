"""The outbox statements, one set per dialect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold._kernel.per_dialect import PerDialect

if TYPE_CHECKING:
    from onefold._outbox.sql.statements import Statements


def _postgres() -> Statements:
    from onefold._outbox.sql.postgres import Postgres

    return Postgres()


def _sqlite() -> Statements:
    from onefold._outbox.sql.sqlite import Sqlite

    return Sqlite()


STATEMENTS = PerDialect(postgres=_postgres, sqlite=_sqlite)
