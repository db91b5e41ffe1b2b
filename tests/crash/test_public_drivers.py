"""Drivers by their public API: a request that is cancelled, or loses its connection, anywhere."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.crash.asgi_harness import AsgiAsyncpg, AsgiPsycopg
from tests.crash.harness import Harness
from tests.crash.paths import PATHS, campaign
from tests.crash.wsgi_harness import WsgiPsycopg
from tests.db.drivers import public_only
from tests.support.crash import cancel_task, lose_connection

AT_VERBS: Any = {"edges": ("before", "during", "after")}
AT_WAITS: Any = {"edges": ("suspended",)}

#: The kind of application, the edges that are crossed, and what happens there.
CASES: dict[str, tuple[Any, Any, Any]] = {
    "asyncpg, cancelled at verbs": (AsgiAsyncpg, AT_VERBS, cancel_task),
    "asyncpg, cancelled at waits": (AsgiAsyncpg, AT_WAITS, cancel_task),
    "asyncpg, lost": (AsgiAsyncpg, {}, lose_connection),
    "psycopg, cancelled at verbs": (AsgiPsycopg, AT_VERBS, cancel_task),
    "psycopg, cancelled at waits": (AsgiPsycopg, AT_WAITS, cancel_task),
    "psycopg on threads, lost": (WsgiPsycopg, {}, lose_connection),
}

#: What each driver does in the others it does in these.
CHOSEN = ("first success", "stored refusal", "replay of another process")


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, postgres: PrivatePostgres) -> Iterator[tuple[Harness, Any]]:
    kind, options, strike = CASES[request.param]
    with public_only():
        harness: Harness = kind(postgres.fresh_database(), **options)
    yield harness, strike
    harness.close()


@pytest.mark.parametrize("path", CHOSEN)
def test_nothing_is_half_done_and_a_retry_is_clean(case: tuple[Harness, Any], path: str) -> None:
    harness, strike = case
    assert not campaign(harness, PATHS[path], strike)
    assert harness.leaks() == []


@pytest.mark.soak
@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_half_done_on_any_path(case: tuple[Harness, Any], path: str) -> None:
    harness, strike = case
    assert not campaign(harness, PATHS[path], strike)
