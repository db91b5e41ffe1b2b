"""The database in which DBOS keeps its journal: which there are, and how SQLite is opened."""

from __future__ import annotations

from typing import Any

from onefold._kernel.extras import missing_extra
from onefold._kernel.redaction import redact
from onefold.errors import ConfigurationError

try:
    import sqlalchemy as sa
except ModuleNotFoundError as error:
    raise missing_extra(error, "dbos") from None

_POSTGRES = ("postgresql", "postgresql+psycopg", "postgres")


class SagaDatabase:
    """Where sagas are kept. `engine` is ours on SQLite, and None where DBOS makes its own."""

    def __init__(self, url: str) -> None:
        try:
            parsed = sa.make_url(url)
        except (sa.exc.ArgumentError, AttributeError, TypeError):
            raise ConfigurationError(f"Dbos({redact(str(url))!r}): {_FORMS}") from None
        self.is_sqlite = parsed.drivername in ("sqlite", "sqlite+pysqlite")
        if not self.is_sqlite and parsed.drivername not in _POSTGRES:
            raise ConfigurationError(f"Dbos({redact(url)!r}): {parsed.drivername} keeps no sagas; {_FORMS}")
        if self.is_sqlite and parsed.database in (None, "", ":memory:"):
            raise ConfigurationError(f"Dbos({url!r}): sagas have to survive the process, so they need a file; {_FORMS}")
        self.url = url
        self.path: str = parsed.database or ""
        self.engine: sa.Engine | None = open_sqlite(url) if self.is_sqlite else None

    def connect(self) -> sa.Engine:
        """An engine of one connection, for the locks of processes on PostgreSQL."""
        url = sa.make_url(self.url).set(drivername="postgresql+psycopg")
        return sa.create_engine(url, poolclass=sa.NullPool, isolation_level="AUTOCOMMIT")

    def close(self) -> None:
        if self.engine is not None:
            self.engine.dispose()


_FORMS = "write sqlite:///sagas.db, or postgresql://user@host/database for several processes"


def open_sqlite(url: str) -> sa.Engine:
    """SQLite as DBOS opens it, but with a write-ahead log, which is faster, and with each commit on the disk."""
    engine = sa.create_engine(url)

    @sa.event.listens_for(engine, "connect")
    def prepare(connection: Any, _: object) -> None:
        connection.isolation_level = "IMMEDIATE"
        for pragma in ("busy_timeout=30000", "foreign_keys=ON", "journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}").close()

    return engine
