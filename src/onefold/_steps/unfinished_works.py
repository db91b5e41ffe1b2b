"""Operator actions on works that are parked or left unfinished: show, resume, release. The latter two are audited.

A work waits for a person where the outcome of a call is not known, or where it failed too often. An operator finds out
what happened: `resume` lets the work go on (with the outcome entered, or with the call made again), `release` forgets
it, so that a retry begins from the start. Neither touches a work that is running.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from onefold._kernel.audit import audit_values, with_why
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement
from onefold._steps.model import StepKind, StepState
from onefold._steps.sealing import is_sealed
from onefold._steps.sql.unfinished_works import STATEMENTS, UnfinishedStatements
from onefold.errors import OnefoldError

WORKS_MAX: Final = 1000
_ID_HEX: Final = 32

#: The changes, and their details for the audit beside the work's.
_Changes: TypeAlias = tuple[tuple[Statement, ...], dict[str, Any]]

WorkState: TypeAlias = Literal["parked", "running", "left"]


class WorkNotFit(OnefoldError):
    """The requested action does not fit this work, and nothing was changed."""


class WorkPlace(NamedTuple):
    """The position of a work in the list."""

    created: int
    """To the microsecond where the database keeps it so."""
    digest: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkView:
    """An unfinished work as operators see it."""

    id: str
    """Its digest: neither the key nor the principal can be read from it."""
    kind: str
    operation: str
    state: WorkState
    """`left`: its lease has expired, and the next attempt goes on with it."""
    reason: str | None
    """Why it is parked."""
    attempts: int
    steps: int
    started: int
    """How many of the steps are calls whose outcome is unknown."""
    lease_ends_ms: int
    created_ms: int
    due_ms: int
    """From then on a completer may take it."""
    now_ms: int
    is_sealed: bool
    """Whether its request is."""
    place: WorkPlace

    @property
    def waits_for_person(self) -> bool:
        """It is parked, or its next attempt parks it: that may not make a call again whose outcome is unknown."""
        return self.state == "parked" or (self.state == "left" and self.started > 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepView:
    """A step as operators see it."""

    position: int
    name: str
    kind: StepKind
    state: StepState
    result: bytes | None
    """As it is stored."""
    recorded_ms: int


async def list_works(
    dialect: str, *, parked_only: bool = False, after: WorkPlace | None = None, limit: int = 100
) -> list[WorkView]:
    """Unfinished works after `after`, the oldest first."""
    place = WorkPlace(0, b"") if after is None else after
    statement = STATEMENTS[dialect].page(parked_only=parked_only, after=place, limit=min(limit, WORKS_MAX))

    async def work() -> list[WorkView]:
        return [_view(*row) for row in await Fetch(statement)]

    return await with_connection(work)


async def show_work(dialect: str, work_id: str) -> tuple[WorkView, list[StepView]]:
    """One work and its steps, without waiting for a process that has it. Raises WorkNotFit."""
    sql, digest = STATEMENTS[dialect], read_id(work_id)
    shown = await with_connection(functools.partial(_find, sql, digest, sql.look(digest)))
    if shown is None:
        raise _unknown(work_id)
    return shown


async def release(dialect: str, work_id: str, *, actor: str, why: str = "") -> WorkView:
    """Forget the work and its records: effects that happened stay, and a retry begins from the start. Raises
    WorkNotFit."""
    sql, digest = STATEMENTS[dialect], read_id(work_id)
    return await _change(
        sql, digest, actor, "keys release", lambda work, steps: (sql.forget(digest), with_why({}, why))
    )


async def resume(
    dialect: str,
    work_id: str,
    *,
    actor: str,
    why: str = "",
    result: bytes | None = None,
    again: bool = False,
    seen: StepView | None = None,
) -> WorkView:
    """Let the work go on. Where the outcome of a call is unknown: `result` is its result, encoded for the record;
    `again` says that it was not made. An entered outcome may be corrected until the work has gone on with it: an
    attempt that cannot read it parks the work again. `seen` is the call as the operator saw it: if another operator has
    changed it since, nothing is changed. Raises WorkNotFit."""
    sql, digest = STATEMENTS[dialect], read_id(work_id)

    def plan(work: WorkView, steps: list[StepView]) -> _Changes:
        call = check_resume(work, steps, says_outcome=again or result is not None)
        # The count of attempts is reset, which showed that one has gone on with the entered outcome: settle it first.
        before = (sql.settle_told(digest),) if work.attempts > 0 else ()
        if call is None:
            return (*before, sql.resume(digest)), with_why({}, why)
        if seen is not None and seen != call:
            raise WorkNotFit(
                f"the record of call {seen.name!r} of work {work.id} was changed meanwhile, and nothing was done now: "
                "see it with `onefold keys show`"
            )
        if again or result is None:
            changes = (*before, sql.unmark(digest, call.position), sql.resume(digest))
            return changes, with_why({"step": call.name, "outcome": "not made"}, why)
        outcome = "recorded" if call.result is None else "corrected"
        changes = (*before, sql.outcome(digest, call.position, result), sql.resume(digest))
        return changes, with_why({"step": call.name, "outcome": outcome}, why)

    return await _change(sql, digest, actor, "keys resume", plan)


def check_idle(work: WorkView) -> None:
    """Raise WorkNotFit if a process is running the work."""
    if work.state == "running":
        raise WorkNotFit(f"work {work.id} ({work.operation}) is running at this moment: wait until that has ended")


def check_resume(work: WorkView, steps: Sequence[StepView], *, says_outcome: bool) -> StepView | None:
    """The call whose outcome is entered. Raises WorkNotFit where one is needed and not given, or given and not
    fitting."""
    call = find_call_to_decide(steps)
    if not says_outcome:
        if call is not None and call.state == "started":
            raise WorkNotFit(
                f"the outcome of call {call.name!r} of work {work.id} is unknown: find out whether it was made, and "
                "say so, either with what it returned (--result JSON) or that it was not made (--again)"
            )
        return None
    if call is None:
        raise WorkNotFit(f"work {work.id} has no call whose outcome is unknown: resume it without an outcome")
    if call.state == "told" and work.attempts > 0:
        raise WorkNotFit(
            f"work {work.id} has gone on with what was recorded for call {call.name!r}, which cannot be corrected any "
            "more: see what it did with `onefold keys show`, and put that right by hand"
        )
    return call


def find_call_to_decide(steps: Sequence[StepView]) -> StepView | None:
    """The call whose outcome an operator may enter: the one that is unknown, or else the last one that was entered,
    which may be corrected (see `check_resume`)."""
    started = [step for step in steps if step.state == "started"]
    entered = [step for step in steps if step.state == "told"]
    return started[0] if started else entered[-1] if entered else None


def read_id(work_id: str) -> bytes:
    """The digest. Raises WorkNotFit."""
    try:
        digest = bytes.fromhex(work_id)
    except ValueError:
        digest = b""
    if len(work_id) != _ID_HEX or not digest:
        raise WorkNotFit(
            f"{work_id!r} is not an id of a work: {_ID_HEX} digits of 0-9 and a-f, as `onefold keys list` has"
        )
    return digest


async def _change(
    sql: UnfinishedStatements,
    digest: bytes,
    actor: str,
    action: str,
    plan: Callable[[WorkView, list[StepView]], _Changes],
) -> WorkView:
    audit_values(actor, action, {})  # an invalid name is refused before anything is read

    async def work() -> WorkView | None:
        await Batch((Boundary.BEGIN,))
        found = await _find(sql, digest, sql.one(digest))
        if found is None or found[0].state == "running":
            await Batch((Boundary.ROLLBACK,))
            return None if found is None else found[0]
        view, steps = found
        changes, details = plan(view, steps)
        audited = {
            "work": view.id,
            "operation": view.operation,
            "reason": view.reason,
            "attempts": view.attempts,
            "steps": [step.name for step in steps],
            **details,
        }
        await Batch((*changes, sql.audit(audit_values(actor, action, audited)), Boundary.COMMIT))
        return view

    view = await with_connection(work)
    if view is None:
        raise _unknown(digest.hex())
    check_idle(view)
    return view


async def _find(
    sql: UnfinishedStatements, digest: bytes, statement: Statement
) -> tuple[WorkView, list[StepView]] | None:
    rows = await Fetch(statement)
    if not rows:
        return None
    steps = await Fetch(sql.steps(digest))
    return _view(*rows[0]), [
        StepView(
            position=position,
            name=name,
            kind=kind,
            state=state,
            result=None if result is None else bytes(result),
            recorded_ms=recorded_ms,
        )
        for position, name, kind, state, result, recorded_ms in steps
    ]


def _view(*row: Any) -> WorkView:
    digest, kind, operation, attempts, parked, live, *moments, steps, started, head, created = row
    lease_ends_ms, created_ms, due_ms, now_ms = moments
    state: WorkState = "parked" if parked is not None else "running" if live else "left"
    return WorkView(
        id=bytes(digest).hex(),
        kind=kind,
        operation=operation,
        state=state,
        reason=parked,
        attempts=attempts,
        steps=steps,
        started=started,
        lease_ends_ms=lease_ends_ms,
        created_ms=created_ms,
        due_ms=due_ms,
        now_ms=now_ms,
        is_sealed=head is not None and is_sealed(bytes(head)),
        place=WorkPlace(created, bytes(digest)),
    )


def _unknown(work_id: str) -> WorkNotFit:
    return WorkNotFit(f"there is no unfinished work {work_id}; `onefold keys list` lists them")
