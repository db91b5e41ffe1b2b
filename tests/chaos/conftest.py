"""Where the campaigns fork processes, and a database on the worker's Postgres that holds a schema for each place."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.chaos.job_processes import JobProcesses
from tests.chaos.stages import Stage, stage_of


@pytest.fixture(scope="session")
def processes() -> Iterator[JobProcesses]:
    with closing(JobProcesses()) as found:
        yield found


@pytest.fixture(scope="session")
def campaigns_dsn(postgres: PrivatePostgres) -> str:
    return postgres.fresh_database()


@pytest.fixture
def stage(request: pytest.FixtureRequest, tmp_path: Path) -> Stage:
    """By the name of a store and a broker, which the test is parametrized with."""
    return stage_of(request.param, request, tmp_path)
