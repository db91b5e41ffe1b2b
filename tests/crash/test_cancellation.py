"""The task of a request is cancelled before, during and after everything it asks for, and wherever it waits: it
rolled back or completed, its connection is back, and a retry is clean."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.crash.asgi_harness import AsgiAsyncpg, AsgiHarness, AsgiPsycopg, AsgiSqlite
from tests.crash.paths import PATHS, campaign
from tests.support.crash import cancel_task

HARNESSES: dict[str, Any] = {"sqlite": AsgiSqlite, "asyncpg": AsgiAsyncpg, "psycopg": AsgiPsycopg}

EDGES: dict[str, Any] = {"at verbs": ("before", "during", "after"), "at waits": ("suspended",)}


@pytest.fixture(scope="module", params=EDGES)
def edges(request: pytest.FixtureRequest) -> Any:
    return EDGES[request.param]


@pytest.fixture(scope="module", params=HARNESSES)
def harness(
    request: pytest.FixtureRequest, edges: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AsgiHarness]:
    where: Any
    if request.param == "sqlite":
        where = tmp_path_factory.mktemp("cancellation") / "shop.db"
    else:
        server: PrivatePostgres = request.getfixturevalue("postgres")
        where = server.fresh_database()
    harness: AsgiHarness = HARNESSES[request.param](where, edges=edges)
    yield harness
    harness.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_cancelled_request_leaves_nothing_half_done_and_no_connection_behind(harness: AsgiHarness, path: str) -> None:
    assert not campaign(harness, PATHS[path], cancel_task)
