"""onefold's migrations inside of a revision of Alembic's, in its connection and its transaction.

Invariant: what a revision applies is noted in `onefold_migration`, as `onefold migrate` does it. Whichever of the two
comes first, the other finds nothing to do.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Protocol

from onefold._app.migrations import MIGRATIONS
from onefold.db._migrations import lock_statements, missing_statements, read_applied
from onefold.errors import ConfigurationError

_DIALECTS: Final = {"postgresql": "postgres", "sqlite": "sqlite"}


class Operations(Protocol):
    """`from alembic import op`, as far as it is needed."""

    def get_bind(self) -> Any: ...
    def get_context(self) -> Any: ...
    def execute(self, sqltext: Any) -> None: ...


def upgrade(op: Operations, *, after: int = 0) -> list[int]:
    """Create or upgrade onefold's tables, in the connection and the transaction of the revision that calls it.

    Args:
        op: Alembic's own, as in `from alembic import op`.
        after: For `alembic upgrade --sql`, which cannot look: the last version that an earlier revision has applied.

    Returns:
        The versions that were applied: none where `onefold migrate`, or an earlier revision, was first.

    Raises:
        ConfigurationError: The database is neither PostgreSQL nor SQLite, or the tables belong to another role.
    """
    context = op.get_context()
    name = context.dialect.name
    if name not in _DIALECTS:
        raise ConfigurationError(f"onefold has no tables for {name!r}: the database is PostgreSQL or SQLite")
    dialect = _DIALECTS[name]
    known = MIGRATIONS[dialect]
    # Python's sqlite3 commits each DDL by itself outside of a transaction: a crash would leave half of them.
    is_sqlite = dialect == "sqlite"
    for text in ["SAVEPOINT onefold_upgrade"] if is_sqlite else lock_statements(dialect):
        op.execute(_escape(text))
    if context.as_sql:
        applied: set[int] | None = {version for version in known if version <= after} or None
    else:
        bind = op.get_bind()
        applied = read_applied(dialect, known, lambda text: bind.exec_driver_sql(text).all())
    versions = sorted(known.keys() - (applied or set()))
    for text in missing_statements(dialect, known, applied):
        op.execute(_escape(text))
    if is_sqlite:
        op.execute("RELEASE onefold_upgrade")
    return versions


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """For `context.configure(include_name=...)` in `env.py`: autogenerate leaves onefold's tables alone.

    Args:
        name: Of a schema, a table, a column, an index or a constraint that was found in the database.
        type_: Which of them it is.
        parent_names: Its table and its schema.

    Returns:
        False for a table of onefold's.
    """
    return not (type_ == "table" and name is not None and name.startswith("onefold_"))


def _escape(text: str) -> str:
    """SQLAlchemy takes `:word` for a parameter."""
    return re.sub(r"(?<!:):(?=\w)", r"\\:", text)
