"""The journal over every driver: its statements are theirs too."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onefold.client.journal import Named, counts, forget, prepare
from onefold.errors import IntentReused
from tests.client.journal.worlds import DAY_S, PAY, World
from tests.db.drivers import POSTGRES_ASYNC, SQLITE_ASYNC


@pytest.fixture(params=[*SQLITE_ASYNC, *POSTGRES_ASYNC])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    if request.param in SQLITE_ASYNC:
        driver, address = SQLITE_ASYNC[request.param], str(request.getfixturevalue("sqlite_path"))
    else:
        driver, address = POSTGRES_ASYNC[request.param], request.getfixturevalue("postgres_dsn")
    async with driver(address, 5.0) as subject:
        database: Any = subject.database
        world = World(database)
        await world.flow(prepare(world.dialect))
        yield world


async def test_intents_are_claimed_left_answered_listed_swept_and_forgotten(world: World) -> None:
    journal = world.journal()
    assert await world.claim(journal) == Named("key-1", known=False)
    assert await world.claim(journal) == Named("key-1", known=True)
    with pytest.raises(IntentReused):
        await world.claim(journal, fingerprint=b"o" * 20)
    await world.flow(journal.leave(PAY, "timeout"))
    [row] = await world.listed()
    assert (row.intent, row.key, row.reason, row.tries) == (PAY, "key-1", "timeout", 2)
    await world.flow(journal.resolve(PAY, 201))
    found = await world.flow(counts(world.dialect))
    assert (found.unresolved, found.resolved, found.oldest_s) == (0, 1, None)
    await world.age(PAY, 2 * DAY_S)
    assert await world.flow(journal.sweep()) == 1
    await world.claim(journal)
    assert await world.flow(forget(world.dialect, PAY)) is True
    assert await world.listed(unresolved_only=False) == []
