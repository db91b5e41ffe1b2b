"""Sessions in recorded steps: each phase has its own, and what it holds is written with the phase's record."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from fastapi import FastAPI
from sqlalchemy import text

from onefold import Steps
from tests.http.stages import calling
from tests.sessions.stages import KINDS, Order, Stage, staged


@pytest.fixture(params=[*KINDS, "async-psycopg"])
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


class Ordering:
    """An order in steps, in both colours. `breaks` is raised once, behind the call."""

    def __init__(self, once: Any, asynchronous: bool) -> None:
        self.breaks: list[Exception] = []
        self.sessions: list[Any] = []
        self.keys: list[str] = []
        self.app = FastAPI()
        handler: Any = self.order_async if asynchronous else self.order
        self.app.post("/orders/{item}", status_code=201)(once.idempotent(required=True)(handler))
        once.install(self.app)

    def add(self, tx: Any, item: str) -> str:
        self.sessions.append(session := tx.session())
        session.add(Order(item=item))
        tx.publish("order.placed", {"item": item})
        return item

    def charge(self, key: str) -> str:
        self.keys.append(key)
        return key

    def order(self, item: str, work: Steps) -> str:
        placed = work.phase("place", self.add, item)
        work.call("charge", self.charge, work.derive("charge"))
        if self.breaks:
            raise self.breaks.pop()
        work.finish(self.add, f"{placed} paid")
        return placed

    async def add_async(self, tx: Any, item: str) -> str:
        return self.add(tx, item)

    async def charge_async(self, key: str) -> str:
        return self.charge(key)

    async def order_async(self, item: str, work: Steps) -> str:
        placed = await work.phase("place", self.add_async, item)
        await work.call("charge", self.charge_async, work.derive("charge"))
        if self.breaks:
            raise self.breaks.pop()
        await work.finish(self.add_async, f"{placed} paid")
        return placed


async def test_what_a_phase_adds_to_its_session_commits_with_its_record_and_is_not_added_again(stage: Stage) -> None:
    once = await stage.migrated(session_factory=stage.factory())
    ordering = Ordering(once, stage.asynchronous)
    ordering.breaks.append(LookupError("the process dies here"))
    async with calling(ordering.app) as client:
        broken = await client.post("/orders/tea", key='"k"')
        assert (broken.status_code, stage.items(), stage.events()) == (500, ["tea"], 1)
        answer = await client.post("/orders/tea", key='"k"')
        again = await client.post("/orders/tea", key='"k"')
    assert (answer.status_code, again.status_code, again.text) == (201, 201, answer.text)
    assert (stage.items(), stage.events()) == (["tea", "tea paid"], 2)
    assert len(ordering.keys) == 1
    assert len({id(each) for each in ordering.sessions}) == 2


async def test_a_row_that_is_refused_when_a_phase_ends_leaves_the_phase_unrecorded(stage: Stage) -> None:
    """The session holds it until then: the function of the phase has returned."""
    once = await stage.migrated(session_factory=stage.factory())
    ordering = Ordering(once, stage.asynchronous)
    async with calling(ordering.app) as client:
        assert (await client.post("/orders/tea", key='"k"')).status_code == 201
        for _ in range(2):
            assert (await client.post("/orders/tea", key='"other"')).status_code == 500
    with stage.outside.connect() as outside:
        assert outside.execute(text("SELECT count(*) FROM onefold_step")).scalar_one() == 0
    assert (stage.items(), stage.events(), len(ordering.keys)) == (["tea", "tea paid"], 2, 1)
