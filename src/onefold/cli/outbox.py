"""`onefold outbox`: what waits and why; and what to do with what is stopped."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated

import typer

from onefold._kernel.effects import Flow
from onefold.cli.asking import asked, desk
from onefold.cli.options import DATABASE, DATABASE_AFTER, JSON, YES, confirmed
from onefold.cli.speaking import address, age, answer, printed
from onefold.outbox.report import Report, discard, report, retry

app = typer.Typer(help="What waits in the outbox and why; and what to do with what is stopped.")

_IDS = typer.Argument(help="Ids of stopped events, as `onefold outbox` shows them.", show_default=False)


@app.callback(invoke_without_command=True)
def look(
    context: typer.Context,
    database: Annotated[str, DATABASE] = "",
    stopped_max: Annotated[int, typer.Option("--limit", min=1, max=10_000, help="Stopped events to list.")] = 100,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Look at the outbox: what waits, what is stopped and why, which relays are at work."""
    context.obj = database
    if context.invoked_subcommand is not None:
        return
    found = asked(database, lambda dialect: report(dialect, stopped_max=stopped_max))
    if as_json:
        answer({**asdict(found), "waiting": _waiting(found)})
    else:
        _print(address(database), found)


@app.command("retry")
def retry_command(
    context: typer.Context,
    ids: Annotated[list[str], _IDS],
    database: Annotated[str, DATABASE_AFTER] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Try stopped events now, instead of when their time comes."""
    confirmed(f"Try {len(ids)} stopped event(s) now?", yes=yes)
    _act(database or context.obj, retry, ids, "retried", as_json=as_json)


@app.command("discard")
def discard_command(
    context: typer.Context,
    ids: Annotated[list[str], _IDS],
    database: Annotated[str, DATABASE_AFTER] = "",
    yes: Annotated[bool, YES] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Delete stopped events: they are never published, and their keys go on with a gap."""
    confirmed(f"Delete {len(ids)} stopped event(s), never to be published?", yes=yes)
    _act(database or context.obj, discard, ids, "discarded", as_json=as_json)


def _act(
    database: str, verb: Callable[[str, list[str]], Flow[int]], ids: list[str], done: str, *, as_json: bool
) -> None:
    with desk(database) as place:
        count = place.ask(verb(place.dialect, ids))
    if as_json:
        answer({done: count, "asked": len(ids)})
    else:
        typer.echo(f"{done}: {count} of {len(ids)}" + ("" if count == len(ids) else "; the others are not stopped"))
    if count == 0:
        raise typer.Exit(1)


def _waiting(found: Report) -> int:
    return sum(topic.waiting for topic in found.pending)


def _print(whose: str, found: Report) -> None:
    more = "at least " if found.pending_cut else ""
    typer.echo(f"outbox of {whose}")
    typer.echo(f"waiting: {more}{_waiting(found)}, the oldest for {age(found.oldest_s)}; delayed: {found.delayed}")
    if found.pending:
        printed("\nWaiting", ("topic", "events"), [(topic.topic, topic.waiting) for topic in found.pending])
    if found.stopped:
        rows = [
            (each.id, each.topic, each.key, each.attempts, _next(each.next_try_s), each.error) for each in found.stopped
        ]
        printed("\nStopped", ("id", "topic", "key", "attempts", "next try", "error"), rows)
    relays = [
        (each.relay, each.buckets, f"{each.lease_left_s:.0f} s" if each.lease_left_s > 0 else "dead")
        for each in found.relays
    ]
    if relays:
        printed("\nRelays", ("relay", "buckets", "lease"), relays)
    else:
        typer.echo("no relay is at work")


def _next(seconds: float | None) -> str:
    return "set aside" if seconds is None else f"in {age(seconds)}"
