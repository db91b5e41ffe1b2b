"""The backends of the inbox, for the workers around it."""

from __future__ import annotations

from tests.inbox.conftest import backend, inbox_database, inbox_dsn, on_postgres

__all__ = ["backend", "inbox_database", "inbox_dsn", "on_postgres"]
