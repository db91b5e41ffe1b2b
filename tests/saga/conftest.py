"""Fixtures of the engines."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.saga.quick_engines import hurry


@pytest.fixture(scope="session", autouse=True)
def quick_engines() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        hurry(patch)
        yield
