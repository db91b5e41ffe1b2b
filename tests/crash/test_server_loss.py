"""The other end dies: Postgres is killed -9 at every boundary, and COMMIT's answer is cut off at every byte.

The client gets the stored answer, or is told to retry, or that the outcome is unknown; and the retry is right.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any

import pytest
from psycopg_pool import ConnectionPool

from onefold.testing.fault_proxy import HOST, Direction, FaultProxy
from onefold.testing.servers import PrivatePostgres
from tests.crash.asgi_harness import AsgiAsyncpg, AsgiPsycopg
from tests.crash.harness import Harness, insist
from tests.crash.paths import PATHS, campaign
from tests.crash.shop import PAY, new_key
from tests.crash.sqlalchemy_harness import AsgiSqlalchemyPostgres, WsgiSqlalchemyPostgres
from tests.crash.wsgi_harness import WsgiPsycopg
from tests.support.crash import Crossing, lose_connection
from tests.support.invariants import Attempt, violations
from tests.support.patience import PATIENCE_S

HARNESSES: dict[str, Any] = {"asgi-asyncpg": AsgiAsyncpg, "wsgi-psycopg": WsgiPsycopg}

#: The last message of a settle, a Sync. Postgres executes a COMMIT before it reads that.
LAST_BYTES = 5


@pytest.mark.parametrize("name", HARNESSES)
def test_a_server_killed_at_any_boundary_leaves_a_request_that_can_be_retried(
    mortal_postgres: PrivatePostgres, name: str
) -> None:
    def kill_and_restart(crossing: Crossing) -> None:
        mortal_postgres.kill()
        mortal_postgres.restart()

    with closing(HARNESSES[name](mortal_postgres.fresh_database())) as harness:
        assert not campaign(harness, PATHS["first success"], kill_and_restart)


def test_while_the_server_is_gone_after_commit_the_outcome_is_said_to_be_unknown(
    mortal_postgres: PrivatePostgres,
) -> None:
    def kill(crossing: Crossing) -> None:
        if crossing.edge == "after" and "commit" in crossing.verb:
            mortal_postgres.kill()
            lose_connection(crossing)

    with closing(AsgiAsyncpg(mortal_postgres.fresh_database())) as harness:
        key = new_key()
        try:
            attempt = harness.ask(PAY, key, "10 EUR", act=kill)
        finally:
            mortal_postgres.restart()
        assert attempt.reply is not None
        assert attempt.reply.status == 503
        assert b"outcome-unknown" in attempt.reply.body
        history = insist(harness, PAY, key, "10 EUR", attempt)
        assert not violations(history, harness.books.rows(key))
        assert history[-1].verdict == "done"


class Scissors:
    """Cuts the connection some bytes into the settle; without a plan it measures how many there are."""

    def __init__(self, proxy: FaultProxy) -> None:
        self.proxy = proxy
        self.plan: tuple[Direction, int] | None = None
        self.bytes: dict[Direction, int] = {}

    def __call__(self, crossing: Crossing) -> None:
        if "commit" not in crossing.verb:
            return
        traffic = self.proxy.traffic
        if self.plan is None:
            before = self.bytes if crossing.edge == "after" else {}
            self.bytes = {
                "up": traffic.bytes_up - before.get("up", 0),
                "down": traffic.bytes_down - before.get("down", 0),
            }
        elif crossing.edge == "before":
            self.proxy.cut_after(*self.plan)


def cut(harness: Harness, scissors: Scissors, direction: Direction, offset: int) -> tuple[Attempt, list[str]]:
    key, cuts = new_key(), scissors.proxy.traffic.cuts
    scissors.plan = (direction, offset)
    attempt = harness.ask(PAY, key, "10 EUR", act=scissors)
    history = insist(harness, PAY, key, "10 EUR", attempt)
    wrong = violations(history, harness.books.rows(key)) + harness.leaks()
    if scissors.proxy.traffic.cuts != cuts + 1:
        wrong.append("nothing was cut")
    return attempt, [f"cut after {offset} bytes {direction}: {sentence}" for sentence in wrong]


def use_connections(harness: Harness) -> None:
    """Have every connection of the pool used once: psycopg's has several, and takes them in turn."""
    pool, open_ = getattr(getattr(harness, "database", None), "_pool", None), 1
    if isinstance(pool, ConnectionPool):
        until = time.monotonic() + PATIENCE_S
        while (stats := pool.get_stats())["pool_size"] != stats["pool_available"]:  # one is on its way
            assert time.monotonic() < until
            time.sleep(0.01)
        open_ = stats["pool_size"]
    for _ in range(open_):
        assert harness.ask(PAY, new_key(), "10 EUR").verdict == "done"


def cuts(harness: Harness, scissors: Scissors, direction: Direction, offsets: Iterable[int]) -> list[str]:
    """Cut the settle after so many bytes: what its client was told each time."""
    told: list[str] = []
    wrong: list[str] = []
    for offset in offsets:
        if (
            direction == "up"
        ):  # on a connection that is new, in place of one that was cut, more is sent than was measured
            use_connections(harness)
        attempt, found = cut(harness, scissors, direction, offset)
        wrong += found
        told.append(attempt.verdict)
    assert not wrong
    return told


def proxied(harness: Any, postgres: PrivatePostgres) -> Iterator[tuple[Harness, Scissors]]:
    dsn = postgres.fresh_database()
    with FaultProxy(HOST, postgres.port) as proxy, closing(harness(dsn, through=proxy.dsn(dsn))) as harness:
        scissors = Scissors(proxy)
        for _ in range(2):  # the first one also prepares its statements
            assert harness.ask(PAY, new_key(), "10 EUR", act=scissors).verdict == "done"
        yield harness, scissors


@pytest.fixture(params=HARNESSES)
def behind_a_proxy(request: pytest.FixtureRequest, postgres: PrivatePostgres) -> Iterator[tuple[Harness, Scissors]]:
    yield from proxied(HARNESSES[request.param], postgres)


@pytest.fixture(params=[AsgiPsycopg, AsgiSqlalchemyPostgres, WsgiSqlalchemyPostgres])
def other_behind_a_proxy(
    request: pytest.FixtureRequest, postgres: PrivatePostgres
) -> Iterator[tuple[Harness, Scissors]]:
    yield from proxied(request.param, postgres)


def test_an_answer_to_commit_that_is_cut_off_is_looked_up(behind_a_proxy: tuple[Harness, Scissors]) -> None:
    harness, scissors = behind_a_proxy
    assert scissors.bytes["down"] > 20
    told = cuts(harness, scissors, "down", range(scissors.bytes["down"]))
    assert set(told) == {"done"}, "it was committed each time, and the store could be asked"


def test_a_settle_that_is_cut_off_on_its_way_leaves_nothing_or_all_of_it(
    behind_a_proxy: tuple[Harness, Scissors],
) -> None:
    harness, scissors = behind_a_proxy
    assert scissors.bytes["up"] > 100
    size = scissors.bytes["up"]
    told = cuts(harness, scissors, "up", [*range(0, size, size // 12), *range(size - LAST_BYTES, size)])
    assert set(told) == {"again", "done"}
    assert told == sorted(told), "a COMMIT that never arrived was not executed; one that arrived was, and is found"
    assert told[-LAST_BYTES:] == ["done"] * LAST_BYTES


@pytest.mark.soak
def test_every_byte_of_a_settle_can_be_the_last_one(other_behind_a_proxy: tuple[Harness, Scissors]) -> None:
    harness, scissors = other_behind_a_proxy
    down = cuts(harness, scissors, "down", range(scissors.bytes["down"]))
    assert "done" in down, "it was committed, and the store could be asked"
    up = cuts(harness, scissors, "up", range(scissors.bytes["up"]))
    assert "again" in up, "a COMMIT that never arrived was not executed"
