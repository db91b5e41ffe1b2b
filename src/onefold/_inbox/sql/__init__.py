"""The inbox statements: one set, and those that differ by dialect."""

from onefold._inbox.sql.statements import Statements
from onefold._kernel.per_dialect import PerDialect


def _postgres() -> Statements:
    from onefold._inbox.sql.postgres import Postgres

    return Statements(Postgres())


def _sqlite() -> Statements:
    from onefold._inbox.sql.sqlite import Sqlite

    return Statements(Sqlite())


STATEMENTS = PerDialect(postgres=_postgres, sqlite=_sqlite)
