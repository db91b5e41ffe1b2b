"""The outbox statements, one set per dialect."""

from onefold._outbox.sql.postgres import Postgres
from onefold._outbox.sql.sqlite import Sqlite
from onefold._outbox.sql.statements import Statements

STATEMENTS: dict[str, Statements] = {"postgres": Postgres(), "sqlite": Sqlite()}
