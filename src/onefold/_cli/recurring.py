"""`onefold recurring`: lists recurring events, and when each is due next."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold._cli.options import DATABASE, JSON
from onefold._cli.output import print_json, print_table
from onefold._cli.session import run_on_database
from onefold._kernel.readable import moment
from onefold._outbox.schedules import schedules

app = typer.Typer(no_args_is_help=True, help="Recurring events: what is published again and again, and when next.")


@app.command("list")
def list_command(database: Annotated[str, DATABASE] = "", as_json: Annotated[bool, JSON] = False) -> None:
    """List the recurring events: their rule, when each is due, and for when it was published last."""
    schedules_listed = [
        {"name": each.name, "rule": each.rule, "due": moment(each.due_ms), "fired": moment(each.fired_ms)}
        for each in run_on_database(database, schedules)
    ]
    if as_json:
        print_json(schedules_listed)
    elif schedules_listed:
        print_table("", tuple(schedules_listed[0]), [tuple(each.values()) for each in schedules_listed])
    else:
        typer.echo("there are no recurring events")


@app.callback()
def _several() -> None:
    """With a callback typer keeps `list` a subcommand, although it is the only one."""
