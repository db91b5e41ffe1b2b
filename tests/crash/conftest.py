"""One zygote for the campaigns that kill processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.crash.zygote import Zygote


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote
