"""kill -9 of a real process at every boundary it crosses: a retry from another process is answered by what was
committed, or runs cleanly; never twice, never locked out for longer than the lease."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from onefold.testing.servers import PrivatePostgres
from tests.crash.harness import Harness, insist
from tests.crash.request_processes import Order, RequestProcesses
from tests.crash.shop import DECLINED, PAY, new_key
from tests.crash.wsgi_harness import WsgiPsycopg, WsgiSqlite
from tests.support.crash import never_struck
from tests.support.invariants import violations


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Harness, Order]]:
    """Where the survivors ask, and the order for those who do not survive."""
    blank = Order(route=PAY, key="", payload="10 EUR")
    if request.param == "sqlite":
        path = tmp_path / "shop.db"
        harness, order = WsgiSqlite(path), replace(blank, sqlite=str(path), settings={"lease_s": 0.2})
        with closing(harness):
            yield harness, order
    else:
        server: PrivatePostgres = request.getfixturevalue("postgres")
        dsn = server.fresh_database()
        with closing(WsgiPsycopg(dsn)) as other:
            yield other, replace(blank, postgres=dsn)


def killing(processes: RequestProcesses, harness: Harness, blank: Order) -> list[str]:
    """Count the crossings of a request, then kill a process at each of them."""
    wrong: list[str] = []
    counting = processes.ask(replace(blank, key=new_key()))
    assert counting.state == "ended"
    assert counting.crossings
    struck = []
    for crossing in counting.crossings:
        order = replace(blank, key=new_key(), act="kill", at=crossing.number)
        fate = processes.ask(order)
        struck += [crossing] if fate.state == "killed" else []
        history = insist(harness, order.route, order.key, order.payload, fate.attempt)
        found = violations(history, harness.books.rows(order.key), lease_s=harness.lease_s)
        wrong += [f"killed at {crossing}: {sentence}" for sentence in found]
    return wrong + [f"never killed at {crossing}" for crossing in never_struck(counting.crossings, struck)]


def test_a_process_killed_at_any_boundary_leaves_a_request_that_can_be_retried(
    processes: RequestProcesses, shop: tuple[Harness, Order]
) -> None:
    assert not killing(processes, *shop)


def test_a_process_killed_while_its_statements_are_under_way_leaves_a_request_that_can_be_retried(
    processes: RequestProcesses, shop: tuple[Harness, Order]
) -> None:
    harness, order = shop
    assert not killing(processes, harness, replace(order, edges=("suspended",)))


def test_a_process_killed_while_it_declines_leaves_a_request_that_can_be_retried(
    processes: RequestProcesses, shop: tuple[Harness, Order]
) -> None:
    harness, order = shop
    assert not killing(processes, harness, replace(order, payload=DECLINED))


def test_a_process_killed_while_its_handler_breaks_leaves_a_request_that_can_be_retried(
    processes: RequestProcesses, shop: tuple[Harness, Order]
) -> None:
    harness, order = shop
    assert not killing(processes, harness, replace(order, breaks=True))


def test_the_kills_find_a_row_that_commits_apart_from_its_key(
    processes: RequestProcesses, shop: tuple[Harness, Order]
) -> None:
    harness, order = shop
    assert any("has 2 rows" in found for found in killing(processes, harness, replace(order, splits=True)))


@pytest.mark.soak
def test_a_retry_that_is_killed_too_leaves_a_request_that_can_be_retried(
    processes: RequestProcesses, shop: tuple[Harness, Order]
) -> None:
    """All pairs: killed at one boundary, and the retry, which meets what is left, at any of its own."""
    harness, blank = shop
    crossings = processes.ask(replace(blank, key=new_key())).crossings
    wrong = []
    for first in crossings:
        for second in range(1, len(crossings) + 10):
            order = replace(blank, key=new_key(), act="kill", at=first.number)
            history = [processes.ask(order).attempt]
            retry = processes.ask(replace(order, at=second))
            history.append(retry.attempt)
            history += insist(harness, order.route, order.key, order.payload, history.pop())
            found = violations(history, harness.books.rows(order.key), lease_s=harness.lease_s)
            wrong += [f"killed at {first} and then at {second}: {sentence}" for sentence in found]
            if retry.state == "ended":
                break
    assert not wrong


@pytest.mark.soak
def test_a_process_killed_at_any_time_leaves_a_request_that_can_be_retried(
    processes: RequestProcesses, shop: tuple[Harness, Order]
) -> None:
    """By the clock: also in the middle of a write to the disk."""
    harness, blank = shop
    chance = random.Random(0)
    wrong, acknowledged = [], 0
    for _ in range(1_000):
        after_s = chance.uniform(0.0, 0.04)
        order = replace(blank, key=new_key(), after_s=after_s)
        fate = processes.ask(order)
        acknowledged += fate.attempt.reply is not None
        history = insist(harness, order.route, order.key, order.payload, fate.attempt)
        found = violations(history, harness.books.rows(order.key), lease_s=harness.lease_s)
        wrong += [f"killed after {after_s * 1000:.1f} ms: {sentence}" for sentence in found]
    assert not wrong
    assert 50 < acknowledged < 950, "the kills came all too early, or all too late"
