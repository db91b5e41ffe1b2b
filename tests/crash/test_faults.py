"""The n-th crossing fails, for n = 1, 2, 3 ... until the request gets through: on every path, adapter and database."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.crash.asgi_harness import AsgiAsyncpg, AsgiSqlite
from tests.crash.harness import Harness
from tests.crash.paths import PATHS, campaign, travel
from tests.crash.shop import PAY_UNKEYED, new_key
from tests.crash.wsgi_harness import WsgiPsycopg, WsgiSqlite
from tests.support.crash import Crossing, Strike, lose_connection, strikes

HARNESSES: dict[str, Any] = {
    "asgi-sqlite": AsgiSqlite,
    "asgi-asyncpg": AsgiAsyncpg,
    "wsgi-sqlite": WsgiSqlite,
    "wsgi-psycopg": WsgiPsycopg,
}


@pytest.fixture(scope="module", params=HARNESSES)
def harness(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    where: Any
    if "sqlite" in request.param:
        where = tmp_path_factory.mktemp("faults") / "shop.db"
    else:
        server: PrivatePostgres = request.getfixturevalue("postgres")
        where = server.fresh_database()
    harness: Harness = HARNESSES[request.param](where)
    yield harness
    harness.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_connection_lost_at_any_crossing_leaves_a_request_that_can_be_retried(harness: Harness, path: str) -> None:
    assert not campaign(harness, PATHS[path], lose_connection)


def test_a_request_without_a_key_is_told_to_retry_only_if_nothing_happened(harness: Harness) -> None:
    """Nobody can look it up, so "retry" must mean: it did not happen."""
    for strike in strikes(lose_connection):
        payload = new_key()
        attempt = harness.ask(PAY_UNKEYED, None, payload, act=strike)
        rows = [row for row in harness.books.rows("none") if row.payload == payload]
        assert attempt.reply is not None
        retryable = attempt.verdict == "again" and b'"retryable": false' not in attempt.reply.body
        assert not (retryable and rows), f"told {attempt.reply} after a strike at {strike.struck}, and it is done"
        assert attempt.verdict != "done" or rows
        assert harness.leaks() == []


@pytest.mark.soak
@pytest.mark.parametrize("path", PATHS)
def test_two_connections_lost_in_one_request_leave_a_request_that_can_be_retried(harness: Harness, path: str) -> None:
    wrong: list[str] = []
    for first in strikes(lose_connection):
        for further in strikes(lose_connection):

            def both(crossing: Crossing, first: Strike = first, further: Strike = further) -> None:
                first(crossing)
                if crossing.number > first.number:
                    further(replace(crossing, number=crossing.number - first.number))

            journey = travel(harness, PATHS[path], both)
            wrong += [f"struck at {first.struck} and {further.struck}: {found}" for found in journey.wrong]
    assert not wrong


@pytest.mark.soak
@pytest.mark.parametrize("path", PATHS)
def test_a_retry_that_loses_its_connection_too_leaves_a_request_that_can_be_retried(
    harness: Harness, path: str
) -> None:
    """All pairs: struck at one crossing, and the retry at any of its own."""
    wrong: list[str] = []
    for first in strikes(lose_connection):
        for second in strikes(lose_connection):
            journey = travel(harness, PATHS[path], first, then=second)
            wrong += [f"struck at {first.struck}, then at {second.struck}: {found}" for found in journey.wrong]
    assert not wrong
