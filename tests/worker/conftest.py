"""The backends of the inbox, for the workers around it; and workers that do not poll."""

from __future__ import annotations

import pytest

from onefold._worker import relay_loop
from onefold.brokers import local
from tests.inbox.conftest import backend, inbox_database, inbox_dsn, on_postgres

__all__ = ["backend", "inbox_database", "inbox_dsn", "on_postgres"]


@pytest.fixture
def no_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay polls after a minute, and a consumer never: what waits has to be woken."""
    monkeypatch.setattr(relay_loop, "POLL_S_MIN", 60.0)
    for name in ("PAUSE_S_MIN", "PAUSE_S_MAX", "PAUSE_NOTIFIED_S"):
        monkeypatch.setattr(local, name, 100_000.0)
