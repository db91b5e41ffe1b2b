"""What the tests share: private servers, one of each for a worker, and a database of its own for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest

from onefold.testing.servers import PrivatePostgres, ServerUnavailable


def _served(version: Literal[16, 18]) -> Iterator[PrivatePostgres]:
    server = PrivatePostgres(version=version)
    try:
        server.start()
    except ServerUnavailable as error:
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """The worker's server. It stays up: whoever wants to kill one takes `mortal_postgres`."""
    yield from _served(18)


@pytest.fixture(scope="session")
def postgres_16() -> Iterator[PrivatePostgres]:
    """The same, of the oldest version that is tested."""
    yield from _served(16)


@pytest.fixture(scope="session")
def mortal_postgres() -> Iterator[PrivatePostgres]:
    """A server to be killed. Whoever kills it restarts it."""
    yield from _served(18)


@pytest.fixture
def postgres_dsn(postgres: PrivatePostgres) -> str:
    """An empty database."""
    return postgres.fresh_database()


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "onefold.db"
