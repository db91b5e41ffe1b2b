"""The `world` fixture: each contract test runs in every world its marker names, all four by default."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.completeness import claims_of
from tests.contract.rows import ASGI, POSTGRES
from tests.contract.wire import looping
from tests.contract.worlds import AsgiWorld, World, WsgiWorld


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "world" in metafunc.fixturenames:
        metafunc.parametrize("world", claims_of(metafunc.function).worlds, indirect=True)


@pytest.fixture(scope="session")
def loop_thread() -> Iterator[asyncio.AbstractEventLoop]:
    with looping() as loop:
        yield loop


@pytest.fixture
def world(request: pytest.FixtureRequest, tmp_path: Path, loop_thread: asyncio.AbstractEventLoop) -> Iterator[World]:
    name: Any = request.param
    address = request.getfixturevalue("postgres_dsn") if name in POSTGRES else str(tmp_path / "orders.db")
    found: World
    if name in ASGI:
        found = AsgiWorld(name, address, loop_thread)
    else:
        found = WsgiWorld(name, address)
    try:
        yield found
    finally:
        found.close()
