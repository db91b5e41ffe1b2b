"""The backends of the inbox, for the workers around it."""

from __future__ import annotations

from tests.inbox.conftest import backend, on_postgres

__all__ = ["backend", "on_postgres"]
