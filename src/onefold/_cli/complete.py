"""`onefold complete`: finish requests that were begun in steps and left by their client."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Annotated

import typer

from onefold._app.completer_methods import CompleterSettings
from onefold._app.completion import check_every, completion_of
from onefold._cli.options import TARGET_HELP
from onefold._cli.output import LOG_FORMAT, LogFormat, echo_stderr, log_to_stderr, print_json
from onefold._cli.signals import stop_on_signals
from onefold._cli.targets import AnyOnefold, close_onefold, load_target, open_target, refuse_missing_tables
from onefold._http.lifespan_block import run_lifespan
from onefold._steps.completer import COMPLETING_EVERY_S, CompletedWorks, CompleterConfig
from onefold._steps.unfinished_works import list_works

_ROUND = 1000

_DEFAULTS = CompleterConfig()


def command(
    target: Annotated[str, typer.Argument(help=TARGET_HELP, show_default=False)],
    one_round: Annotated[bool, typer.Option("--once", help="Try what is due now, and stop.")] = False,
    every_s: Annotated[
        float, typer.Option("--every", metavar="S", help="Seconds between two rounds, about.")
    ] = COMPLETING_EVERY_S,
    abandoned_after_s: Annotated[
        float,
        typer.Option(
            "--abandoned-after",
            metavar="S",
            help="Seconds after the end of its lease that a request is left to its client's own retry.",
        ),
    ] = _DEFAULTS.abandoned_after_s,
    attempts_max: Annotated[
        int,
        typer.Option(
            "--attempts",
            help="Attempts, those of the client included, after which a request is parked and waits for a person.",
        ),
    ] = _DEFAULTS.attempts_max,
    attempt_s: Annotated[
        float, typer.Option("--timeout", metavar="S", help="Seconds that one attempt may take.")
    ] = _DEFAULTS.attempt_s,
    as_json: Annotated[bool, typer.Option("--json", help="With --once: print one JSON object.")] = False,
    log_format: Annotated[LogFormat, LOG_FORMAT] = LogFormat.TEXT,
) -> None:
    """Complete requests with recorded steps that were begun and then abandoned, until SIGTERM or SIGINT. The
    application is started in this process, without a port: its handlers are called as its server would."""
    check_every(every_s)
    log_to_stderr(log_format)
    value = load_target(target)
    log_to_stderr(log_format)
    settings: CompleterSettings = {
        "abandoned_after_s": abandoned_after_s,
        "attempts_max": attempts_max,
        "attempt_s": attempt_s,
    }
    ended = asyncio.run(_main(target, value, settings, every_s, one_round=one_round))
    if ended is None:
        return
    if as_json:
        print_json({"completed": ended.completed, "failed": ended.failed, "parked": ended.parked})
    else:
        typer.echo(f"completed: {ended.completed}, failed: {ended.failed}, parked: {ended.parked}")


async def _main(
    target: str, value: object, settings: CompleterSettings, every_s: float, *, one_round: bool
) -> CompletedWorks | None:
    once = await open_target(target, value)
    try:
        await refuse_missing_tables(once, list_works)
        return await _complete(once, target, settings, every_s, one_round=one_round)
    finally:
        await close_onefold(once)


async def _complete(
    once: AnyOnefold, target: str, settings: CompleterSettings, every_s: float, *, one_round: bool
) -> CompletedWorks | None:
    completion, database = completion_of(once, settings), once._for_workers()
    with stop_on_signals() as stop:
        async with AsyncExitStack() as applications:
            for installed in completion.installed:
                if installed.protocol == "asgi":
                    await applications.enter_async_context(run_lifespan(installed.app, installed.state))
            if one_round:
                return await completion.on_loop(database, _ROUND, stop.is_set)
            echo_stderr(f"completing abandoned requests of {target}")
            await completion.until(stop, database, every_s)
            return None
