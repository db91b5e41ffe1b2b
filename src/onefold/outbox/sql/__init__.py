"""The outbox statements, one set per dialect."""

from onefold.outbox.sql.postgres import Postgres
from onefold.outbox.sql.sqlite import Sqlite
from onefold.outbox.sql.statements import Statements

STATEMENTS: dict[str, Statements] = {"postgres": Postgres(), "sqlite": Sqlite()}
