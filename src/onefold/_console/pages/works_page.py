"""Unfinished works in recorded steps: the list, the records of one, and the actions on it."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from starlette.responses import Response

from onefold._app.operator_actions import read_result, resume_work, show_result, store_result
from onefold._console.roles import Role
from onefold._console.sections import ASK_WHY, Page, Section, Visit, missing
from onefold._kernel.audit import write_audit
from onefold._steps.sealing import Sealing
from onefold._steps.unfinished_works import (
    StepView,
    WorkNotFit,
    WorkPlace,
    WorkView,
    find_call_to_decide,
    list_works,
    release,
    show_work,
)
from onefold.errors import ConfigurationError

PAGE: Final = 50


async def show_list(visit: Visit) -> Response:
    """Unfinished works, the oldest first: stuck ones are among these."""
    parked_only = visit.query("parked") == "1"
    place = _read_place(visit.query("after"))
    found = await visit.run(partial(list_works, parked_only=parked_only, after=place, limit=PAGE + 1))
    works = found[:PAGE]
    following = f"{works[-1].place.created}-{works[-1].id}" if len(found) > PAGE else None
    return visit.render("works.html", works=works, parked_only=parked_only, following=following)


async def show_one(visit: Visit) -> Response:
    return await _render_work(visit)


async def reveal(visit: Visit) -> Response:
    """The same, with the results of its steps. The access is audited."""
    work, _ = await _find(visit)
    details = {"work": work.id, "operation": work.operation}
    await visit.run(partial(write_audit, actor=visit.operator.name, action="show results", details=details))
    return await _render_work(visit, revealed=True)


async def resume(visit: Visit) -> Response:
    """Resume the work, with the outcome that the operator enters."""
    why, outcome = visit.reason(), visit.form.get("outcome", "")
    if why is None:
        return await _render_work(visit, problem=ASK_WHY)
    work, steps = await _find(visit)
    call = find_call_to_decide(steps) if outcome else None
    if call is not None and visit.form.get("seen") not in (None, stamp_of(call)):
        problem = f"What is recorded of the call {call.name} was changed meanwhile, and nothing was done now."
        return await _render_work(visit, problem=problem)
    try:
        stored = None
        if outcome == "made":
            value = read_result(visit.form.get("result", ""), what="The result")
            stored = store_result(work, steps, value, _sealing_of(visit), what="The result")
        named: dict[str, Any] = {"actor": visit.operator.name, "why": why, "result": stored, "seen": call}
        resumed = await visit.run(partial(resume_work, work_id=work.id, again=outcome == "again", **named))
    except (ConfigurationError, WorkNotFit) as error:
        return await _render_work(visit, problem=str(error))
    return visit.render("work_resumed.html", resumed=resumed)


async def confirm_release(visit: Visit) -> Response:
    return await _render_release(visit)


async def do_release(visit: Visit) -> Response:
    why = visit.reason()
    if why is None:
        return await _render_release(visit, problem=ASK_WHY)
    await visit.run(partial(release, work_id=visit.param("id"), actor=visit.operator.name, why=why))
    return visit.redirect("/works")


async def _render_work(visit: Visit, *, revealed: bool = False, problem: str = "") -> Response:
    work, steps = await _find(visit)
    return visit.render(
        "work.html",
        work=work,
        steps=steps,
        results={step.position: show_result(step) for step in steps} if revealed else None,
        to_decide=(call := find_call_to_decide(steps)),
        seen="" if call is None else stamp_of(call),
        problem=problem,
    )


async def _render_release(visit: Visit, problem: str = "") -> Response:
    work, steps = await _find(visit)
    return visit.render("work_release.html", work=work, steps=steps, problem=problem)


async def _find(visit: Visit) -> tuple[WorkView, list[StepView]]:
    try:
        return await visit.run(partial(show_work, work_id=visit.param("id")))
    except WorkNotFit as error:
        raise missing(f"{error}.") from None


def stamp_of(call: StepView) -> str:
    """A stamp that changes when an outcome of the call is entered after the page was shown."""
    return f"{call.position} {call.state} {call.recorded_ms}"


def _sealing_of(visit: Visit) -> Sealing | None:
    """The sealing of the application's records; None where the console was made from an address and does not know
    it."""
    return visit.once._layer.stepped().sealing if visit.parts.knows_application else None


def _read_place(after: str) -> WorkPlace | None:
    created, _, work_id = after.partition("-")
    if not created.isdecimal() or len(created) > 18:
        return None
    try:
        return WorkPlace(int(created), bytes.fromhex(work_id))
    except ValueError:
        return None


SECTION = Section(
    title="Works",
    path="/works",
    pages=(
        Page(path="/works", answer=show_list),
        Page(path="/works/{id}", answer=show_one),
        Page(path="/works/{id}", answer=reveal, method="POST", role=Role.ACT),
        Page(path="/works/{id}/resume", answer=resume, method="POST", role=Role.ACT),
        Page(path="/works/{id}/release", answer=confirm_release),
        Page(path="/works/{id}/release", answer=do_release, method="POST", role=Role.ACT),
    ),
)
