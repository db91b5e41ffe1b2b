"""The `backend` fixture: each contract test runs in every backend its marker names, all four by default."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.contract.backends import AsgiBackend, Backend, WsgiBackend, create_tables
from tests.contract.commit_proxy import proxy
from tests.contract.completeness import claims_of
from tests.contract.rows import ASGI, POSTGRES
from tests.contract.wire import looping
from tests.support.reused_database import ReusedDatabase

__all__ = ["proxy"]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", claims_of(metafunc.function).backends, indirect=True)


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    with looping() as loop:
        yield loop


@pytest.fixture(scope="session")
def reused_database(postgres: PrivatePostgres) -> ReusedDatabase:
    """One for all the backends of a worker."""
    return ReusedDatabase(postgres, create_tables)


@pytest.fixture(scope="session")
def prepared_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables, to be copied."""
    path = tmp_path_factory.mktemp("contract") / "orders.db"
    create_tables(str(path))
    return path


@pytest.fixture
def reused_dsn(reused_database: ReusedDatabase) -> Iterator[str]:
    with reused_database.ready() as dsn:
        yield dsn


@pytest.fixture
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, loop_thread: asyncio.AbstractEventLoop
) -> Iterator[Backend]:
    name: Any = request.param
    if name in POSTGRES:
        address = request.getfixturevalue("reused_dsn")
    else:
        address = shutil.copyfile(request.getfixturevalue("prepared_file"), str(tmp_path / "orders.db"))
    found: Backend = AsgiBackend(name, address, loop_thread) if name in ASGI else WsgiBackend(name, address)
    found.prepared = address
    try:
        yield found
    finally:
        found.close()
