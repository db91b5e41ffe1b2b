"""Ctrl-C on the thread of a request, before and after everything it asks for: rolled back or completed, and gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.crash.paths import PATHS, campaign
from tests.crash.wsgi_harness import WsgiHarness, WsgiPsycopg, WsgiSqlite
from tests.support.crash import interrupt_thread

HARNESSES: dict[str, Any] = {"sqlite": WsgiSqlite, "psycopg": WsgiPsycopg}


@pytest.fixture(scope="module", params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[WsgiHarness]:
    where: Any
    if request.param == "sqlite":
        where = tmp_path_factory.mktemp("interruption") / "shop.db"
    else:
        server: PrivatePostgres = request.getfixturevalue("postgres")
        where = server.fresh_database()
    harness: WsgiHarness = HARNESSES[request.param](where)
    yield harness
    harness.close()


@pytest.mark.parametrize("path", PATHS)
def test_an_interrupted_request_leaves_nothing_half_done_and_no_connection_behind(
    harness: WsgiHarness, path: str
) -> None:
    assert not campaign(harness, PATHS[path], interrupt_thread)
