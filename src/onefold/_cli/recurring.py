"""`onefold recurring`: which events are published again and again, and when next."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold._cli.options import DATABASE, JSON
from onefold._cli.output import answer, print_table
from onefold._cli.session import ask
from onefold._kernel.readable import moment
from onefold._outbox.schedules import schedules

app = typer.Typer(no_args_is_help=True, help="Recurring events: what is published again and again, and when next.")


@app.command("list")
def list_command(database: Annotated[str, DATABASE] = "", as_json: Annotated[bool, JSON] = False) -> None:
    """List the recurring events: their rule, when each is due, and for when it was published last."""
    found = [
        {"name": each.name, "rule": each.rule, "due": moment(each.due_ms), "fired": moment(each.fired_ms)}
        for each in ask(database, schedules)
    ]
    if as_json:
        answer(found)
    elif found:
        print_table("", tuple(found[0]), [tuple(each.values()) for each in found])
    else:
        typer.echo("there are no recurring events")


@app.callback()
def _several() -> None:
    """So that `list` is a word of its own."""
