"""The backends of the inbox."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.inbox.backends import Backend, postgres_world, world_of


@pytest.fixture(params=["sqlite", "postgres"])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    async with world_of(request) as backend:
        yield backend


@pytest.fixture
async def on_postgres(postgres_dsn: str) -> AsyncIterator[Backend]:
    async with postgres_world(postgres_dsn) as backend:
        yield backend
