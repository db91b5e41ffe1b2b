"""Every interleaving of two requests with the same key, effect by effect; and a sample of those of three."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from onefold._idempotency.locked_store import LockedStore
from onefold._kernel.effects import Effect
from onefold.testing.servers import PrivatePostgres
from tests.crash import mutants
from tests.crash.interleaving import Arena, Fighter, PostgresArena, sqlite_arena
from tests.support.schedules import every_schedule, some_schedules

FIRST = Fighter(name="first")
SECOND = Fighter(name="second")
THIRD = Fighter(name="third")

INTERLEAVINGS: dict[str, tuple[Fighter, Fighter]] = {
    "the same request twice": (FIRST, SECOND),
    "two payloads under one key": (FIRST, Fighter(name="second", payload="99 EUR")),
    "the first one's handler breaks": (Fighter(name="first", handler="breaks"), SECOND),
    "the first one is declined": (Fighter(name="first", handler="declines"), SECOND),
}

#: More than any interleaving has: a protocol that needs more steps should be noticed.
LIMIT = 200_000


@pytest.fixture(params=["sqlite", "postgres"])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    if request.param == "sqlite":
        arena = sqlite_arena(tmp_path / "shop.db")
    else:
        server: PrivatePostgres = request.getfixturevalue("postgres")
        arena = PostgresArena(server.fresh_database())
    with closing(arena):
        yield arena


@pytest.mark.parametrize("interleaving", INTERLEAVINGS)
def test_two_requests_with_one_key_end_well_in_every_order(arena: Arena, interleaving: str) -> None:
    fought = 0
    for choices in every_schedule(limit=LIMIT):
        assert not arena.fight(INTERLEAVINGS[interleaving], choices)
        fought += 1
    assert fought >= 20


@pytest.mark.parametrize("interleaving", ["the same request twice", "the first one's handler breaks"])
def test_a_lease_that_ends_in_the_middle_of_a_duel_lets_nobody_win_twice(arena: Arena, interleaving: str) -> None:
    fought = 0
    for choices in every_schedule(limit=LIMIT):
        assert not arena.fight(INTERLEAVINGS[interleaving], choices, lease_ends=True, preemptions=2)
        fought += 1
    assert fought >= 70


def test_three_requests_with_one_key_end_well_in_any_order(arena: Arena) -> None:
    other = Fighter(name="third", payload="99 EUR")
    for choices in some_schedules(range(60)):
        assert not arena.fight((FIRST, SECOND, THIRD), choices)
    for choices in some_schedules(range(60)):
        assert not arena.fight((FIRST, SECOND, other), choices, lease_ends=True)


# --- controls: planted bugs -----------------------------------------------------------------------------------


def found(arena: Arena, interleaving: str, **how: Any) -> list[str]:
    """What all schedules of an interleaving bring to light."""
    return [
        sentence
        for choices in every_schedule(limit=LIMIT)
        for sentence in arena.fight(INTERLEAVINGS[interleaving], choices, **how)
    ]


@pytest.fixture(params=["sqlite", "postgres"])
def split_arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    if request.param == "sqlite":
        arena = sqlite_arena(tmp_path / "shop.db", splits=True)
    else:
        server: PrivatePostgres = request.getfixturevalue("postgres")
        arena = PostgresArena(server.fresh_database(), splits=True)
    with closing(arena):
        yield arena


def test_the_schedules_find_a_row_that_commits_apart_from_its_key(split_arena: Arena) -> None:
    assert any("and has a row" in sentence for sentence in found(split_arena, "the first one is declined"))
    ended = found(split_arena, "the same request twice", lease_ends=True, preemptions=1)
    assert any("has 2 rows" in sentence for sentence in ended)


def test_the_schedules_find_a_late_holder_that_overwrites_its_successor(tmp_path: Path) -> None:
    with closing(sqlite_arena(tmp_path / "shop.db", store=LockedStore(mutants.OVERWRITING))) as arena:
        wrong = found(arena, "the same request twice", lease_ends=True, preemptions=2)
    assert any("has 2 rows" in sentence for sentence in wrong)


@pytest.fixture(params=["sqlite", "postgres"])
def mutated(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[dict[str, Any]], Arena]]:
    """An arena on one of the databases, with a planted bug."""
    with ExitStack() as closing_them:

        def made(planted: dict[str, Any]) -> Arena:
            store = LockedStore(planted[request.param])
            if request.param == "sqlite":
                arena = sqlite_arena(tmp_path / "shop.db", store=store)
            else:
                server: PrivatePostgres = request.getfixturevalue("postgres")
                arena = PostgresArena(server.fresh_database(), store=store)
            return closing_them.enter_context(closing(arena))

        yield made


def test_the_schedules_find_a_store_without_locks_and_without_a_unique_record(
    mutated: Callable[[dict[str, Any]], Arena],
) -> None:
    wrong = found(mutated(mutants.UNGUARDED), "the same request twice")
    assert any("has 2 rows" in sentence for sentence in wrong)


def test_without_locks_the_record_alone_prevents_a_second_execution(
    mutated: Callable[[dict[str, Any]], Arena],
) -> None:
    """Not a control: the locks are courtesy, the primary key is the guarantee. What shows is the missing courtesy."""
    wrong = found(mutated(mutants.UNLOCKED), "the same request twice")
    assert wrong
    assert all("had taken it over" in sentence for sentence in wrong)


# --- the large sizes ------------------------------------------------------------------------------------------


def _nothing_is_private(effect: Effect[Any]) -> bool:
    return False


@pytest.mark.soak
@pytest.mark.parametrize("interleaving", INTERLEAVINGS)
def test_two_requests_end_well_in_every_order_of_every_effect(arena: Arena, interleaving: str) -> None:
    assert not found(arena, interleaving, private=_nothing_is_private)


@pytest.mark.soak
@pytest.mark.parametrize("interleaving", INTERLEAVINGS)
def test_a_lease_that_ends_at_any_moment_of_a_duel_lets_nobody_win_twice(arena: Arena, interleaving: str) -> None:
    assert not found(arena, interleaving, lease_ends=True, preemptions=4)


@pytest.mark.soak
def test_three_requests_end_well_in_many_orders(arena: Arena) -> None:
    fighters = (FIRST, Fighter(name="second", handler="breaks"), Fighter(name="third", payload="99 EUR"))
    for choices in some_schedules(range(3_000)):
        assert not arena.fight(fighters, choices, lease_ends=True)
