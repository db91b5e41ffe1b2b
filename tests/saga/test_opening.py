"""Engines are used while they are open: before and after, each call says how to open one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from onefold.errors import ConfigurationError
from onefold.sagas import SagaEngine
from onefold.sagas.dbos import Dbos
from onefold.sagas.restate import Restate
from onefold.sagas.temporal import Temporal
from tests.saga.conformance.sagas import order

CALLS: dict[str, Callable[[SagaEngine], Awaitable[Any]]] = {
    "start": lambda engine: engine.start(order, "unopened", {"item": "book"}),
    "result": lambda engine: engine.result("unopened", timeout_s=1),
    "status": lambda engine: engine.status("unopened"),
    "history": lambda engine: engine.history("unopened"),
    "list": lambda engine: engine.list(),
    "signal": lambda engine: engine.signal("unopened", "paid"),
    "cancel": lambda engine: engine.cancel("unopened"),
    "retry": lambda engine: engine.retry("unopened"),
    "audit": lambda engine: engine.audit("unopened", action="retry", actor="ann"),
}


@pytest.fixture(params=["Dbos", "Restate", "Temporal"])
def unopened(request: pytest.FixtureRequest, tmp_path: Path) -> SagaEngine:
    match request.param:
        case "Dbos":
            return Dbos(f"sqlite:///{tmp_path / 'sagas.db'}", sagas=[order])
        case "Restate":
            return Restate(ingress="http://localhost:8080", admin="http://localhost:9070", sagas=[order])
        case _:
            return Temporal("localhost:7233", sagas=[order])


@pytest.mark.parametrize("call", CALLS)
async def test_an_engine_that_is_not_open_says_how_to_open_it(unopened: SagaEngine, call: str) -> None:
    told = rf"this {type(unopened).__name__} is not open: .*`async with {type(unopened).__name__}\(...\) as engine`"
    with pytest.raises(ConfigurationError, match=told):
        await CALLS[call](unopened)


async def test_an_engine_that_is_closed_says_so_and_can_be_opened_again(tmp_path: Path) -> None:
    engine = Dbos(f"sqlite:///{tmp_path / 'sagas.db'}", sagas=[order])
    for number in range(2):
        async with engine:
            assert await engine.start(order, f"opened-{number}", {"item": "book"})
            with pytest.raises(ConfigurationError, match="this Dbos is open already"):
                await engine.__aenter__()
            await engine.status(f"opened-{number}")
        with pytest.raises(ConfigurationError, match="this Dbos is not open"):
            await engine.start(order, f"closed-{number}", {"item": "book"})
