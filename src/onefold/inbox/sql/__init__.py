"""The inbox statements: one set, and what each dialect says differently."""

from __future__ import annotations

from onefold.inbox.sql.postgres import Postgres
from onefold.inbox.sql.sqlite import Sqlite
from onefold.inbox.sql.statements import Statements

STATEMENTS: dict[str, Statements] = {"postgres": Statements(Postgres()), "sqlite": Statements(Sqlite())}
