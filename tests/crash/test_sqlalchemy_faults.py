"""The same campaigns over SQLAlchemy's engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.crash.asgi_harness import AsgiHarness
from tests.crash.harness import Harness
from tests.crash.paths import PATHS, campaign
from tests.crash.sqlalchemy_harness import (
    AsgiSqlalchemyPostgres,
    AsgiSqlalchemySqlite,
    WsgiSqlalchemyPostgres,
    WsgiSqlalchemySqlite,
)
from tests.support.crash import cancel_task, lose_connection

ASGI: dict[str, Any] = {"asgi-postgres": AsgiSqlalchemyPostgres, "asgi-sqlite": AsgiSqlalchemySqlite}
HARNESSES: dict[str, Any] = {**ASGI, "wsgi-postgres": WsgiSqlalchemyPostgres, "wsgi-sqlite": WsgiSqlalchemySqlite}


def standing(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, **options: Any
) -> Iterator[Harness]:
    where: Any
    if "sqlite" in request.param:
        where = tmp_path_factory.mktemp("engines") / "shop.db"
    else:
        server: PrivatePostgres = request.getfixturevalue("postgres")
        where = server.fresh_database()
    harness: Harness = HARNESSES[request.param](where, **options)
    yield harness
    harness.close()


@pytest.fixture(scope="module", params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    yield from standing(request, tmp_path_factory)


@pytest.fixture(scope="module", params=ASGI)
def suspended(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    yield from standing(request, tmp_path_factory, edges=("suspended",))


@pytest.mark.parametrize("path", PATHS)
def test_a_connection_lost_at_any_crossing_leaves_a_request_that_can_be_retried(harness: Harness, path: str) -> None:
    assert not campaign(harness, PATHS[path], lose_connection)


@pytest.mark.parametrize("path", PATHS)
def test_a_request_cancelled_wherever_it_waits_leaves_nothing_half_done(suspended: AsgiHarness, path: str) -> None:
    assert not campaign(suspended, PATHS[path], cancel_task)
