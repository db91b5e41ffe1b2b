"""The n-th crossing fails, for n = 1, 2, 3 ... until the request gets through: on every path, rim and database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeAlias

import pytest

from onefold.testing.crash import Crossing, lose_connection, never_struck, strikes
from onefold.testing.servers import PrivatePostgres
from tests.crash.asgi_stands import AsgiAsyncpg, AsgiSqlite
from tests.crash.paths import PATHS, travel
from tests.crash.shop import PAY_UNKEYED, new_key
from tests.crash.stands import Stand
from tests.crash.wsgi_stands import WsgiPsycopg, WsgiSqlite

STANDS = {
    "asgi-sqlite": AsgiSqlite,
    "asgi-asyncpg": AsgiAsyncpg,
    "wsgi-sqlite": WsgiSqlite,
    "wsgi-psycopg": WsgiPsycopg,
}

NewStand: TypeAlias = Callable[..., Stand]


@pytest.fixture(scope="module", params=STANDS)
def stand(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    if "sqlite" in request.param:
        stand = STANDS[request.param](tmp_path_factory.mktemp("faults") / "shop.db")
    else:
        server: PrivatePostgres = request.getfixturevalue("crash_server")
        stand = STANDS[request.param](server.fresh_database())
    yield stand
    stand.close()


@pytest.mark.parametrize("path", PATHS)
def test_a_connection_lost_at_any_crossing_leaves_a_request_that_can_be_retried(stand: Stand, path: str) -> None:
    assert travel(stand, PATHS[path], None) == []
    struck: list[Crossing] = []
    for strike in strikes(lose_connection):
        assert travel(stand, PATHS[path], strike) == [], f"after a strike at {strike.struck}"
        struck += [strike.struck] if strike.struck else []
    print(path, len(struck), *struck, sep="\n")


def test_a_request_without_a_key_is_told_to_retry_only_if_nothing_happened(stand: Stand) -> None:
    """Nobody can look it up, so "retry" must mean: it did not happen."""
    for strike in strikes(lose_connection):
        payload = new_key()
        attempt = stand.ask(PAY_UNKEYED, None, payload, act=strike)
        rows = [row for row in stand.books.rows("none") if row.payload == payload]
        assert attempt.reply is not None
        retryable = attempt.verdict == "again" and b'"retryable": false' not in attempt.reply.body
        assert not (retryable and rows), f"told {attempt.reply} after a strike at {strike.struck}, and it is done"
        assert attempt.verdict != "done" or rows
        assert stand.leaks() == []
