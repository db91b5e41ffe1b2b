"""What the tests of the console share: a browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser

from onefold.testing.servers import ServerUnavailable
from tests.support.chromium import find_chromium, open_chromium


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """For the tests of one module, none of which is async: see `tests/support/chromium.py`."""
    try:
        find_chromium()
    except ServerUnavailable as reason:
        pytest.skip(str(reason))
    with open_chromium() as browser:
        yield browser
