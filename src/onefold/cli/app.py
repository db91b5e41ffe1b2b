"""The commands, put together."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from onefold.cli import consume, dlq, intents, migrate, outbox, reap, relay, storm

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.command("migrate")(migrate.command)
app.command("reap")(reap.command)
app.command("relay")(relay.command)
app.command("consume")(consume.command)
app.command("storm")(storm.command)
app.add_typer(outbox.app, name="outbox")
app.add_typer(dlq.app, name="dlq")
app.add_typer(intents.app, name="intents")


@app.callback(invoke_without_command=True)
def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Retry it as often as you like. It happens once."""
    if show_version:
        typer.echo(f"onefold {version('onefold')}")
        raise typer.Exit
