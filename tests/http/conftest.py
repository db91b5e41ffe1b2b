"""What most tests of the HTTP edge stand on: a table of orders in SQLite, and an application over it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from onefold import AsyncOnefold
from tests.http.stages import Orders, account_of


@pytest.fixture
def orders(sqlite_path: Path) -> Orders:
    return Orders(sqlite_path)


@pytest.fixture
async def once(orders: Orders) -> AsyncIterator[AsyncOnefold]:
    found = AsyncOnefold(orders.path, principal=account_of)
    yield found
    await found.close()
