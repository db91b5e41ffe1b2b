"""The `backend` fixture: each contract test runs in every backend its marker names, all four by default."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.contract.backends import AsgiWorld, Backend, WsgiWorld
from tests.contract.completeness import claims_of
from tests.contract.rows import ASGI, POSTGRES
from tests.contract.wire import looping


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "backend" in metafunc.fixturenames:
        metafunc.parametrize("backend", claims_of(metafunc.function).backends, indirect=True)


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    with looping() as loop:
        yield loop


@pytest.fixture(scope="session")
def contract_dsn(postgres: PrivatePostgres) -> str:
    """One database for all the backends of a worker: making one takes longer than most of these tests."""
    return postgres.fresh_database()


@pytest.fixture
def backend(
    request: pytest.FixtureRequest, tmp_path: Path, loop_thread: asyncio.AbstractEventLoop
) -> Iterator[Backend]:
    name: Any = request.param
    address = request.getfixturevalue("contract_dsn") if name in POSTGRES else str(tmp_path / "orders.db")
    found: Backend = AsgiWorld(name, address, loop_thread) if name in ASGI else WsgiWorld(name, address)
    try:
        yield found
    finally:
        found.close()
        if found.is_postgres:
            # Waits for nobody: a transaction that is still open now was leaked by the test.
            found.sql("SET lock_timeout = '5s'; DROP SCHEMA public CASCADE; CREATE SCHEMA public")
