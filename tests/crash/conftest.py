"""One private Postgres for the campaigns that only lose connections (those that kill servers start their own), and
one zygote for those that kill processes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.crash.zygote import Zygote


@pytest.fixture(scope="session")
def crash_server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        yield server


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    with Zygote() as zygote:
        yield zygote
