"""`onefold keys`: shows the outcome of a request; lists, resumes or releases what is not finished."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Annotated, Any, Final

import typer

from onefold._app.operator_actions import read_result, read_unsealed, resume_work, show_result, store_result
from onefold._cli.key_lookup import APP, NAME, PRINCIPAL, ROUTE, describe_key, describe_stored, key_place
from onefold._cli.options import ACTOR, DATABASE, JSON, WHY, YES, actor_name, confirm
from onefold._cli.output import print_json, print_table
from onefold._cli.session import CommandSession, session
from onefold._cli.targets import close_onefold, load_target, open_target
from onefold._console.key_search import look_up
from onefold._idempotency.stored_keys import KeyView, erase, find_keys, list_keys
from onefold._kernel.readable import age, harmless, moment
from onefold._steps.sealing import Sealing, is_sealed
from onefold._steps.unfinished_works import (
    StepView,
    WorkPlace,
    WorkView,
    check_idle,
    check_resume,
    list_works,
    release,
    show_work,
)
from onefold.errors import ConfigurationError, WorkUnreadable

app = typer.Typer(
    no_args_is_help=True,
    help="What became of a key: show it, erase its stored answer. Requests and works with recorded steps that are not "
    "finished: list, resume or release them.",
)

_PAGE: Final = 500
_ID = typer.Argument(metavar="ID", help="Its id, as `onefold keys list` shows it.", show_default=False)


@app.command("list")
def list_command(
    database: Annotated[str, DATABASE] = "",
    parked: Annotated[bool, typer.Option("--parked", help="Only those that wait for a person.")] = False,
    stored: Annotated[
        bool, typer.Option("--stored", help="Stored answers instead, those that are kept longest first.")
    ] = False,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most this many.")] = 100,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List what was begun and is not finished, the oldest first; or stored answers."""
    if stored and parked:
        raise typer.BadParameter("either --parked (of what is not finished) or --stored (of what is)")
    if stored:
        _list_stored(database, limit, as_json=as_json)
        return
    with session(database) as db:
        works = list(islice(_all(db, parked_only=parked), limit))
    if as_json:
        print_json([_describe(each) for each in works])
        return
    if works:
        columns = ("id", "operation", "state", "steps", "attempts", "age", "lease ends", "due", "reason")
        rows = [
            (
                each.id, each.operation, each.state, _steps(each), each.attempts, _age(each),
                _until(each, _lease_ends_ms(each)), _until(each, _due_ms(each)), each.reason,
            )
            for each in works
        ]  # fmt: skip
        print_table("", columns, rows)
    _print_count("parked" if parked else "unfinished", len(works), limit)


def _list_stored(database: str, limit: int, *, as_json: bool) -> None:
    with session(database) as db:
        answers = [describe_stored(key) for key in islice(_all_stored(db, limit), limit)]
    if as_json:
        print_json(answers)
        return
    if answers:
        print_table("", tuple(answers[0]), [tuple(each.values()) for each in answers])
    _print_count("stored", len(answers), limit)


def _print_count(label: str, number: int, limit: int) -> None:
    typer.echo(f"{label}: {number}" + (", perhaps more: raise --limit" if number == limit else ""))


@app.command("show")
def show_command(
    name: Annotated[str, NAME],
    principal: Annotated[str, PRINCIPAL] = "",
    route: Annotated[str, ROUTE] = "",
    target: Annotated[str, APP] = "",
    database: Annotated[str, DATABASE] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Show what became of a key: its state and why, attempts, status, when it was stored and expires, what a retry
    gets; of a work its steps and what they returned. Bodies are hidden."""
    with key_place(database, target) as place:
        search = place.search(name, principal, route)
        found = place.run(partial(look_up, names=search.names))
        if search.route == "digest" and found.is_empty:
            raise ConfigurationError(f"there is no unfinished work {name}, and no stored answer")
        description = describe_key(search, found, found.judge(search.route), place.operations)
    if found.work is not None:
        description = {**description, **_describe(found.work), "verdict": description["state"]}
    if as_json:
        steps = {"steps": [_describe_step(step) for step in found.steps]} if found.work is not None else {}
        print_json({**description, **steps})
    else:
        _print_key(description, found.steps)
    if found.is_empty:
        raise typer.Exit(1)


def _print_key(described: Mapping[str, Any], steps: Sequence[StepView]) -> None:
    for what, value in described.items():
        if value is not None:
            text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            typer.echo(f"{what + ':':<14} {harmless(text)}")
    if steps:
        rows = [
            (step.position + 1, step.kind, step.name, step.state, moment(step.recorded_ms), show_result(step))
            for step in steps
        ]
        typer.echo()
        print_table("", ("step", "kind", "name", "state", "recorded", "result"), rows)


@app.command("erase")
def erase_command(
    name: Annotated[str, NAME],
    principal: Annotated[str, PRINCIPAL] = "",
    route: Annotated[str, ROUTE] = "",
    target: Annotated[str, APP] = "",
    database: Annotated[str, DATABASE] = "",
    actor: Annotated[str, ACTOR] = "",
    why: Annotated[str, WHY] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Erase a stored answer, with a reason (--why): a retry with its key is a new request, and runs again."""
    if not why.strip():
        raise typer.BadParameter("erasing a key needs a reason, for the audit: give --why")
    with key_place(database, target) as place:
        search = place.search(name, principal, route)
        keys = place.run(partial(find_keys, digests=search.names))
        if not keys:
            raise ConfigurationError("nothing is stored under this key: there is nothing to erase")
        description = f"{keys[0].operation or 'a request'}, answered {keys[0].status}"
        confirm(harmless(f"{description}. A retry with its key runs again. Erase {keys[0].id}?"), yes=yes)
        stamps = [key.stamp for key in keys]
        erased = place.run(partial(erase, digests=search.names, actor=actor_name(actor), why=why, seen=stamps))
        if not erased:
            raise ConfigurationError("the stored answer changed or is gone; nothing was erased: run it again")
        place.forget(search.names)
    if as_json:
        print_json({"erased": [key.id for key in erased], "operation": keys[0].operation})
    else:
        typer.echo(harmless(f"erased: {keys[0].id}, {description}"))


@app.command("release")
def release_command(
    work_id: Annotated[str, _ID],
    database: Annotated[str, DATABASE] = "",
    actor: Annotated[str, ACTOR] = "",
    why: Annotated[str, WHY] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Release a work: forget all that is recorded of it. A retry, or a message that is redriven, begins from the
    start."""
    with session(database) as db:
        work, steps = db.run(show_work(db.dialect, work_id))
        check_idle(work)
        done = ", ".join(step.name for step in steps) or "nothing"
        confirm(
            harmless(
                f"{work.operation}, begun {_age(work)} ago. Done, or begun, so far: {done}.\nA retry does all of that "
                f"again, its calls under the same keys. Forget {work.id}?"
            ),
            yes=yes,
        )
        db.run(release(db.dialect, work_id, actor=actor_name(actor), why=why))
    if as_json:
        print_json({"released": work.id, "operation": work.operation})
    else:
        typer.echo(harmless(f"released: {work.id}, {work.operation}"))


@app.command("resume")
def resume_command(
    work_id: Annotated[str, _ID],
    database: Annotated[str, DATABASE] = "",
    result: Annotated[
        str | None,
        typer.Option(
            metavar="JSON",
            help="The call whose outcome is unknown was made, and returned this. Until the work goes on, it may be "
            "corrected.",
        ),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="The call whose outcome is unknown was not made, and is to be made.")
    ] = False,
    target: Annotated[
        str,
        typer.Option("--app", metavar="TARGET", help="module:attribute of the Onefold whose keys seal --result."),
    ] = "",
    unsealed: Annotated[
        bool,
        typer.Option(
            "--unsealed", help="With --result: store it unsealed, because the application has no Keyring (sealer=)."
        ),
    ] = False,
    actor: Annotated[str, ACTOR] = "",
    why: Annotated[str, WHY] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Resume a parked work: the next retry, or `onefold complete`, goes on with it; a message that is a dead letter is
    redriven. Its attempts are counted from zero again."""
    if result is not None and again:
        raise typer.BadParameter("either --result (the call was made) or --again (it was not)")
    sealing = _sealing_of(target) if target else Sealing() if unsealed else None
    with session(database) as db:
        work, steps = db.run(show_work(db.dialect, work_id))
        value = None if result is None else _read_result(result)
        check_idle(work)
        call = check_resume(work, steps, says_outcome=again or result is not None)
        stored = None if result is None else store_result(work, steps, value, sealing, what="--result")
        outcome = ""
        if call is not None:
            became = "was not made, and is made" if again else f"returned {json.dumps(value, ensure_ascii=False)}"
            outcome = f"call {call.name!r} {became}"
        records = f" Records that {outcome}." if outcome else ""
        if call is not None and call.state == "told":
            records += " This corrects the outcome recorded before."
        confirm(harmless(f"{work.operation}, begun {_age(work)} ago.{records}\nLet {work.id} go on?"), yes=yes)
        by = actor_name(actor)
        resumed = db.run(resume_work(db.dialect, work_id, actor=by, why=why, result=stored, again=again, seen=call))
    redriven = {} if resumed.redriven is None else {"redriven": resumed.redriven}
    if as_json:
        print_json({"resumed": work.id, "operation": work.operation, "recorded": outcome or None, **redriven})
    else:
        checked = "" if result is None else " (its form is checked when the work goes on)"
        typer.echo(harmless(f"resumed: {work.id}, {work.operation}" + (f": {outcome}{checked}" if outcome else "")))
        for what, count in redriven.items():
            typer.echo(f"{what}: {count}")


def _read_result(result: str) -> Any:
    try:
        return read_result(result, what="--result")
    except ConfigurationError as error:
        raise typer.BadParameter(str(error)) from None


def _sealing_of(target: str) -> Sealing:
    value = load_target(target)

    async def look() -> Sealing:
        once = await open_target(target, value)
        try:
            return once._layer.stepped().sealing
        finally:
            await close_onefold(once)

    return asyncio.run(look())


def _all(db: CommandSession, *, parked_only: bool) -> Iterator[WorkView]:
    last: WorkPlace | None = None
    while page := db.run(list_works(db.dialect, parked_only=parked_only, after=last, limit=_PAGE)):
        yield from page
        last = page[-1].place


def _all_stored(db: CommandSession, limit: int) -> Iterator[KeyView]:
    after: str | None = None
    while True:
        page = db.run(list_keys(db.dialect, after=after, limit=min(limit, _PAGE)))
        yield from page.keys
        if (after := page.after) is None:
            return


def _age(work: WorkView) -> str:
    return age(max(0, work.now_ms - work.created_ms) / 1000)


def _steps(work: WorkView) -> str:
    return f"{work.steps}, {work.started} started" if work.started else str(work.steps)


def _lease_ends_ms(work: WorkView) -> int | None:
    return work.lease_ends_ms if work.state == "running" else None


def _due_ms(work: WorkView) -> int | None:
    """When a completer may take over the work."""
    return work.due_ms if work.state == "left" and work.kind == "request" else None


def _until(work: WorkView, moment_ms: int | None) -> str | None:
    if moment_ms is None:
        return None
    return f"in {age((moment_ms - work.now_ms) / 1000)}" if moment_ms > work.now_ms else "now"


def _describe(work: WorkView) -> dict[str, Any]:
    return {
        "id": work.id,
        "kind": work.kind,
        "operation": work.operation,
        "state": work.state,
        "reason": work.reason,
        "steps": work.steps,
        "started": work.started,
        "attempts": work.attempts,
        "begun": moment(work.created_ms),
        "lease_ends": moment(_lease_ends_ms(work)),
        "due": moment(_due_ms(work)),
    }


def _describe_step(step: StepView) -> dict[str, Any]:
    return {
        "position": step.position,
        "name": step.name,
        "kind": step.kind,
        "state": step.state,
        "recorded": moment(step.recorded_ms),
        "sealed": step.result is not None and is_sealed(step.result),
        "result": _plain(step),
    }


def _plain(step: StepView) -> Any:
    if step.result is None or is_sealed(step.result):
        return None
    try:
        return read_unsealed(step.result)
    except (ValueError, WorkUnreadable):
        return None
