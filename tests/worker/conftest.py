"""The worlds of the inbox, for the workers around it."""

from __future__ import annotations

from tests.inbox.conftest import on_postgres, world

__all__ = ["on_postgres", "world"]
