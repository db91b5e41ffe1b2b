"""Every interleaving of two requests with the same key, effect by effect; and a sample of those of three."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onefold.testing.schedules import every_schedule, some_schedules
from onefold.testing.servers import PrivatePostgres
from tests.crash.duels import Arena, Fighter, PostgresArena, sqlite_arena

FIRST = Fighter(name="first")
SECOND = Fighter(name="second")
THIRD = Fighter(name="third")

DUELS: dict[str, tuple[Fighter, Fighter]] = {
    "the same request twice": (FIRST, SECOND),
    "two payloads under one key": (FIRST, Fighter(name="second", payload="99 EUR")),
    "the first one's handler breaks": (Fighter(name="first", handler="breaks"), SECOND),
    "the first one is declined": (Fighter(name="first", handler="declines"), SECOND),
}


@pytest.fixture(params=["sqlite", "postgres"])
def arena(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Arena]:
    if request.param == "sqlite":
        arena = sqlite_arena(tmp_path / "shop.db")
    else:
        server: PrivatePostgres = request.getfixturevalue("crash_server")
        arena = PostgresArena(server.fresh_database())
    with closing(arena):
        yield arena


@pytest.mark.parametrize("duel", DUELS)
def test_two_requests_with_one_key_end_well_in_every_order(arena: Arena, duel: str) -> None:
    fought = 0
    for choices in every_schedule(limit=20_000):
        assert not arena.fight(DUELS[duel], choices)
        fought += 1
    print(duel, fought)
    assert fought > 50


@pytest.mark.parametrize("duel", DUELS)
def test_a_lease_that_ends_at_any_moment_of_a_duel_lets_nobody_win_twice(arena: Arena, duel: str) -> None:
    fought = 0
    for choices in every_schedule(limit=20_000):
        assert not arena.fight(DUELS[duel], choices, lease_ends=True, preemptions=3)
        fought += 1
    print(duel, fought)
    assert fought > 100


def test_three_requests_with_one_key_end_well_in_any_order(arena: Arena) -> None:
    other = Fighter(name="third", payload="99 EUR")
    for choices in some_schedules(range(150)):
        assert not arena.fight((FIRST, SECOND, THIRD), choices)
    for choices in some_schedules(range(150)):
        assert not arena.fight((FIRST, SECOND, other), choices, lease_ends=True)
