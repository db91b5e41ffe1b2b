"""`onefold saga list|show|retry|cancel MODULE:engine`: shows sagas, and retries or cancels them.

A command runs no saga: the processes that run them do what it requests.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Annotated, Any, TypeVar

import typer

from onefold._cli.options import ACTOR, JSON, actor_name
from onefold._cli.output import print_done, print_json, print_table
from onefold._cli.targets import load_target
from onefold._kernel.arguments import name_type
from onefold._kernel.readable import harmless
from onefold._saga.engine import SagaEngine
from onefold._saga.person_actions import cancel_saga, retry_saga
from onefold._saga.saga_status import STATES, SagaStatus, State
from onefold.errors import ConfigurationError

T = TypeVar("T")

app = typer.Typer(no_args_is_help=True, help="Sagas: how they stand, retry, cancel.")

_TARGET = typer.Argument(
    metavar="TARGET", help="module:attribute of an engine, or of a function that returns one.", show_default=False
)
_ID = typer.Argument(metavar="ID", help="The id of the saga.", show_default=False)


@app.command("list")
def list_command(
    target: Annotated[str, _TARGET],
    state: Annotated[str, typer.Option("--state", "-s", help=f"Only these: {', '.join(STATES)}.")] = "",
    limit: Annotated[int, typer.Option("--limit", "-n", help="At most this many, the newest first.")] = 100,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """List the newest sagas, of one state or of all."""
    if state and state not in STATES:
        raise ConfigurationError(f"--state {state!r} is not one of {', '.join(STATES)}")
    chosen_state: State | None = next((each for each in STATES if each == state), None)
    sagas = _run_on_engine(target, lambda engine: engine.list(state=chosen_state, limit=limit))
    if as_json:
        print_json([asdict(each) for each in sagas])
    else:
        print_table(
            "Sagas",
            ("id", "saga", "version", "state", "started", "error"),
            [
                (each.saga_id, each.saga, each.version, _state(each), _time(each.started_at), each.error)
                for each in sagas
            ],
        )


@app.command("show")
def show_command(
    target: Annotated[str, _TARGET], saga_id: Annotated[str, _ID], as_json: Annotated[bool, JSON] = False
) -> None:
    """Show one saga and its history."""

    async def look(engine: SagaEngine) -> tuple[SagaStatus, Any]:
        return await engine.status(saga_id), await engine.history(saga_id)

    status, history = _run_on_engine(target, look)
    if as_json:
        print_json({**asdict(status), "history": [asdict(each) for each in history]})
        return
    started = f"started {_time(status.started_at)}"
    typer.echo(f"{status.saga_id}: {status.saga} version {status.version}, {_state(status)}, {started}")
    if status.error:
        typer.echo(f"  {harmless(status.error)}")
    print_table(
        "\nHistory",
        ("what", "name", "attempts", "ended", "result or error"),
        [
            (each.kind, each.name, str(each.attempts), _time(each.ended_at), each.error or repr(each.result))
            for each in history
        ],
    )


@app.command("retry")
def retry_command(
    target: Annotated[str, _TARGET],
    saga_id: Annotated[str, _ID],
    actor: Annotated[str, ACTOR] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Retry a stopped saga: it goes on with the code that its processes have now."""

    if not _run_on_engine(target, lambda engine: retry_saga(engine, saga_id, actor=actor_name(actor))):
        raise ConfigurationError(f"saga {saga_id!r} has ended: there is nothing to retry")
    print_done("resumed", saga_id, "; a process that runs its saga goes on with it", as_json=as_json)


@app.command("cancel")
def cancel_command(
    target: Annotated[str, _TARGET],
    saga_id: Annotated[str, _ID],
    actor: Annotated[str, ACTOR] = "",
    reason: Annotated[str, typer.Option("--reason", help="Why, for its history.")] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Cancel a saga: its next step is not run, its pauses and waits end, and what it has done is undone."""
    if not _run_on_engine(target, lambda engine: cancel_saga(engine, saga_id, actor=actor_name(actor), why=reason)):
        raise ConfigurationError(f"saga {saga_id!r} has ended: there is nothing to cancel")
    hint = "; `onefold saga show` says how far its compensations are"
    print_done("asked to cancel", saga_id, hint, as_json=as_json)


async def open_engine(target: str, value: object) -> SagaEngine:
    """The engine in what was loaded. A function is called on the loop that it will be used on."""
    engine = value() if inspect.isroutine(value) else value
    if inspect.isawaitable(engine):
        engine = await engine
    if not isinstance(engine, SagaEngine):
        raise ConfigurationError(
            f"{target!r} is {name_type(engine)}; give an engine, such as Dbos(..., sagas=[order]), "
            "or a function that returns one"
        )
    return engine


def _run_on_engine(target: str, use: Callable[[SagaEngine], Awaitable[T]]) -> T:
    value = load_target(target)

    async def run() -> T:
        engine = await open_engine(target, value)
        async with engine.as_operator():
            return await use(engine)

    return asyncio.run(run())


def _state(status: SagaStatus) -> str:
    return f"{status.state} (cancelled)" if status.cancelled else status.state


def _time(moment: Any) -> str:
    return "" if moment is None else moment.isoformat(timespec="seconds")
