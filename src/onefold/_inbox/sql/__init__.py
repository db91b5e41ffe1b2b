"""The inbox statements: one set, and what each dialect says differently."""

from __future__ import annotations

from onefold._inbox.sql.postgres import Postgres
from onefold._inbox.sql.sqlite import Sqlite
from onefold._inbox.sql.statements import Statements

STATEMENTS: dict[str, Statements] = {"postgres": Statements(Postgres()), "sqlite": Statements(Sqlite())}
