"""The statements of recorded steps, one set per dialect."""

from __future__ import annotations

from onefold._kernel.per_dialect import PerDialect
from onefold._steps.sql.statements import Statements


def _postgres() -> Statements:
    from onefold._steps.sql.postgres import Postgres

    return Statements(Postgres())


def _sqlite() -> Statements:
    from onefold._steps.sql.sqlite import Sqlite

    return Statements(Sqlite())


STATEMENTS = PerDialect(postgres=_postgres, sqlite=_sqlite)
