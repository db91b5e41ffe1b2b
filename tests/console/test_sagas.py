"""Sagas in the console: how they stand, and what a person does about one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._kernel.audit import list_audit
from onefold.console import console
from onefold.errors import ConfigurationError
from onefold.sagas import Saga, saga
from tests.console.browsing import ACT, VIEW, Visitor, text_of
from tests.saga.memory_engine import MemoryEngine
from tests.worker.consuming import until


async def take_place(order: str) -> dict[str, str]:
    return {"place": "shelf 7"}


async def give_back(order: str) -> None: ...


@saga("parcel")
async def parcel(s: Saga, order: str) -> str:
    await s.step("reserve", take_place, order, undo=give_back)
    await s.wait("carrier")
    return "sent"


@pytest.fixture
async def engine() -> AsyncIterator[MemoryEngine]:
    made = MemoryEngine([parcel])
    yield made
    await made.close()


@pytest.fixture
async def desk(once: AsyncOnefold, engine: MemoryEngine) -> Visitor:
    found = Visitor(console(once, view_token=VIEW, act_token=ACT, sagas=[engine]))
    await found.sign_in(ACT, name="Anna")
    await engine.start(parcel, "o/1", "o-1")
    await until(lambda: bool(engine.kept["o/1"].journal))
    return found


async def test_without_an_engine_the_page_says_how_to_give_one(viewer: Visitor) -> None:
    assert "console(once, sagas=[engine])" in text_of(await viewer.get("/sagas"))


async def test_what_is_no_engine_is_refused(once: AsyncOnefold) -> None:
    wrong: Any = ["sqlite:///sagas.db"]
    with pytest.raises(ConfigurationError, match="must be a list of engines"):
        console(once, act_token=ACT, sagas=wrong)


async def test_sagas_are_listed_by_state_and_shown_with_their_history(desk: Visitor) -> None:
    assert "o/1 parcel 1 running" in text_of(await desk.get("/sagas"))
    assert "None is stuck." in text_of(await desk.get("/sagas?state=stuck"))
    page = await desk.get("/sagas/saga?id=o/1&engine=0")
    assert "step reserve 1 done" in text_of(page)
    assert "shelf 7" not in page.text
    assert "shelf 7" in (await desk.submit("/sagas/saga?id=o/1", "/sagas/saga", id="o/1", engine="0")).text


async def test_one_is_cancelled_with_a_reason(desk: Visitor, engine: MemoryEngine, once: AsyncOnefold) -> None:
    at = "/sagas/saga?id=o/1&engine=0"
    fields = {"id": "o/1", "engine": "0", "verb": "cancel"}
    assert (await desk.submit(at, "/sagas/act", **fields)).status_code == 400
    assert (await desk.submit(at, "/sagas/act", **fields, reason="the customer gave it up")).status_code == 303
    with pytest.raises(Exception, match="cancelled by Anna: the customer gave it up"):
        await engine.result("o/1", timeout_s=60)
    assert "compensated (cancelled)" in text_of(await desk.get(at))
    [line] = await run_flow(once, list_audit)
    assert (line.actor, line.action, line.details) == (
        "Anna", "saga cancel", {"saga": "o/1", "why": "the customer gave it up"},
    )  # fmt: skip


async def test_one_that_runs_is_not_retried(desk: Visitor) -> None:
    fields = {"id": "o/1", "engine": "0", "verb": "retry"}
    refused = await desk.submit("/sagas/saga?id=o/1", "/sagas/act", **fields, reason="now")
    assert (refused.status_code, "goes on by itself" in text_of(refused)) == (400, True)


@pytest.mark.parametrize("path", ["/sagas/saga?id=nothing", "/sagas/saga?id=o/1&engine=7", "/sagas/saga"])
async def test_what_is_not_there_is_said_to_be_missing(desk: Visitor, path: str) -> None:
    assert (await desk.get(path)).status_code == 404
