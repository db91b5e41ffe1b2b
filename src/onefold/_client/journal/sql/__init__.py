"""The journal's statements: one set, and what each dialect says differently."""

from __future__ import annotations

from onefold._client.journal.sql.postgres import Postgres
from onefold._client.journal.sql.sqlite import Sqlite
from onefold._client.journal.sql.statements import Statements

STATEMENTS: dict[str, Statements] = {"postgres": Statements(Postgres()), "sqlite": Statements(Sqlite())}
