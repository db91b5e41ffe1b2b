"""The databases of works."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold import Onefold, single_principal
from onefold.testing.servers import PrivatePostgres
from tests.steps.places import Place, create_tables, place_at
from tests.support.reused_database import ReusedDatabase


@pytest.fixture(scope="session")
def works_database(postgres: PrivatePostgres) -> ReusedDatabase:
    return ReusedDatabase(postgres, create_tables, may_leave_sessions=True)


@pytest.fixture(scope="session")
def works_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite file with the tables, to be copied."""
    path = tmp_path_factory.mktemp("steps") / "works.db"
    create_tables(str(path))
    return path


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with onefold's tables and one for effects: a file, or a DSN."""
    if request.param == "sqlite":
        yield str(shutil.copyfile(request.getfixturevalue("works_file"), tmp_path / "works.db"))
    else:
        with request.getfixturevalue("works_database").ready() as dsn:
            yield dsn


@pytest.fixture
def place(address: str) -> Iterator[Place]:
    with place_at(address) as place:
        yield place


@pytest.fixture
def once(address: str) -> Iterator[Onefold]:
    once = Onefold(address, principal=single_principal, source="tests")
    yield once
    once.close()
