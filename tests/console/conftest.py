"""What tests of the console share: a console over a SQLite file, visitors without a screen, and a browser."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from onefold import AsyncOnefold
from onefold.console import Console, console
from onefold.testing.servers import ServerUnavailable
from tests.console.browsing import ACT, VIEW, Visitor
from tests.support.chromium import find_chromium, open_chromium


@pytest.fixture
async def once(sqlite_path: Path) -> AsyncIterator[AsyncOnefold]:
    found = AsyncOnefold(sqlite_path)
    yield found
    await found.close()


@pytest.fixture
def app(once: AsyncOnefold) -> Console:
    return console(once, view_token=VIEW, act_token=ACT)


@pytest.fixture
def visitor(app: Console) -> Visitor:
    """Signed in as no one."""
    return Visitor(app)


@pytest.fixture
async def viewer(app: Console) -> Visitor:
    """Signed in with role view."""
    found = Visitor(app)
    await found.sign_in(VIEW, name="Vera")
    return found


@pytest.fixture
async def actor(app: Console) -> Visitor:
    """Signed in with role act."""
    found = Visitor(app)
    await found.sign_in(ACT, name="Anna")
    return found


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """For the tests of one module, none of which is async: see `tests/support/chromium.py`."""
    try:
        find_chromium()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with open_chromium() as browser:
        yield browser
