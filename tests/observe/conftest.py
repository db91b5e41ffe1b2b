"""Both backends at once: what one has counted, the other has, too."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.observe.measured import Measured


@pytest.fixture
def measured() -> Iterator[Measured]:
    seen = Measured()
    yield seen
    assert seen.prometheus() == seen.otel()
    seen.provider.shutdown()
