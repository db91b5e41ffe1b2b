"""Sagas: their states, the history of one, and the actions on it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from starlette.responses import Response

from onefold._console.roles import Role
from onefold._console.sections import ASK_WHY, Page, Section, Visit, missing
from onefold._kernel.audit import write_audit
from onefold._saga.engine import SagaEngine
from onefold._saga.person_actions import cancel_saga, retry_saga
from onefold._saga.saga_errors import SagaNotStopped, SagaUnknown
from onefold._saga.saga_status import STATES, HistoryEntry, SagaStatus
from onefold.errors import ConfigurationError

T = TypeVar("T")

PAGE: Final = 100
ENDED: Final = ("completed", "compensated")


async def show_list(visit: Visit) -> Response:
    """The newest of each engine."""
    state = next((each for each in STATES if each == visit.query("state")), None)
    found: list[tuple[int, SagaStatus]] = []
    for number, engine in enumerate(visit.parts.sagas):
        found += [
            (number, status) for status in await _run_on_engine(engine, lambda e: e.list(state=state, limit=PAGE))
        ]
    return visit.render("sagas.html", found=found, state=state, states=STATES, engines=visit.parts.sagas, page=PAGE)


async def show_one(visit: Visit) -> Response:
    return await _render_saga(visit, visit.query("id"), visit.query("engine"))


async def reveal(visit: Visit) -> Response:
    """The same, with the results of its steps. The access is audited."""
    saga_id = visit.form.get("id", "")
    await visit.run(partial(write_audit, actor=visit.operator.name, action="show results", details={"saga": saga_id}))
    return await _render_saga(visit, saga_id, visit.form.get("engine", ""), revealed=True)


async def act(visit: Visit) -> Response:
    """Retry or cancel the saga."""
    saga_id, number, verb = (visit.form.get(name, "") for name in ("id", "engine", "verb"))
    why = visit.reason()
    if why is None:
        return await _render_saga(visit, saga_id, number, problem=ASK_WHY)
    if verb not in ("retry", "cancel"):
        raise missing(f"There is no action {verb!r} for sagas.")
    engine, who = _engine_of(visit, number), visit.operator.name
    try:
        await _run_on_engine(engine, lambda e: e.status(saga_id))
        await visit.run(partial(write_audit, actor=who, action=f"saga {verb}", details={"saga": saga_id}, why=why))
        if verb == "retry":
            done = await _run_on_engine(engine, lambda e: retry_saga(e, saga_id, actor=who))
        else:
            done = await _run_on_engine(engine, lambda e: cancel_saga(e, saga_id, actor=who, why=why))
    except SagaUnknown as error:
        raise missing(f"{error}.") from None
    except SagaNotStopped as error:
        return await _render_saga(visit, saga_id, number, problem=f"{error}.")
    if not done:
        return await _render_saga(visit, saga_id, number, problem=f"It has ended: there is nothing to {verb}.")
    return visit.redirect("/sagas/saga", id=saga_id, engine=number)


async def _render_saga(
    visit: Visit, saga_id: str, number: str, *, revealed: bool = False, problem: str = ""
) -> Response:
    engine = _engine_of(visit, number)

    async def look(opened: SagaEngine) -> tuple[SagaStatus, Any]:
        return await opened.status(saga_id), await opened.history(saga_id)

    try:
        status, history = await _run_on_engine(engine, look)
    except (SagaUnknown, ConfigurationError) as error:
        raise missing(f"{error}.") from None
    return visit.render(
        "saga.html",
        saga=status,
        history=history,
        results=[write_result(entry) for entry in history] if revealed else None,
        number=number or "0",
        ended=status.state in ENDED,
        problem=problem,
    )


def write_result(entry: HistoryEntry) -> str:
    return "-" if entry.result is None else json.dumps(entry.result, ensure_ascii=False, default=str)


def _engine_of(visit: Visit, number: str) -> SagaEngine:
    place = int(number) if number.isascii() and number.isdecimal() and len(number) < 4 else 0
    if place >= len(visit.parts.sagas):
        raise missing("This console has no such engine of sagas.")
    return visit.parts.sagas[place]


async def _run_on_engine(engine: SagaEngine, question: Callable[[SagaEngine], Awaitable[T]]) -> T:
    """Through the engine that the application has open, or, where it has none, through one that is opened to look."""
    if engine.is_open:
        return await question(engine)
    async with engine.as_operator():
        return await question(engine)


SECTION = Section(
    title="Sagas",
    path="/sagas",
    pages=(
        Page(path="/sagas", answer=show_list),
        Page(path="/sagas/saga", answer=show_one),
        Page(path="/sagas/saga", answer=reveal, method="POST", role=Role.ACT),
        Page(path="/sagas/act", answer=act, method="POST", role=Role.ACT),
    ),
)
