"""Options several commands share, and how they are checked. The environment is read here and nowhere below."""

from __future__ import annotations

import getpass
import os
import sys

import typer

from onefold.db._drivers import file_of

_DATABASE = "postgresql://user@host/name, or the path of a SQLite file."

DATABASE = typer.Option("--database", "-d", envvar="ONEFOLD_DATABASE", help=_DATABASE, show_default=False)

BROKER = typer.Option(
    "--broker",
    "-b",
    envvar="ONEFOLD_BROKER",
    help="nats://..., redis://..., amqp://..., kafka://host:port, or 'local' for the database itself.",
    show_default=False,
)

TARGET_HELP = "module:attribute of a Onefold, of an application it is installed in, or of a function that returns one."

NAME = typer.Argument(metavar="NAME", show_default=False)

TOPIC = typer.Option("--topic", "-t", help="Only this topic.")

JSON = typer.Option("--json", help="Print JSON.")

AS_JSON_LINES = typer.Option("--json", help="Print what happens, one JSON object per line.")

YES = typer.Option("--yes", "-y", help="Do not ask for confirmation.")

ACTOR = typer.Option("--actor", help="The name for the audit; by default the user that runs the command.")

WHY = typer.Option("--why", help="The reason, for the audit.")


def require_database(database: str) -> str:
    """The database, refused if its SQLite file is not there: a mistyped path would create an empty file, in which every
    command finds nothing to do."""
    if not database:
        raise typer.BadParameter("give --database or set ONEFOLD_DATABASE")
    file = file_of(database)
    if file is not None and not file.exists():
        raise typer.BadParameter(f"there is no SQLite file {str(file)!r}; check the path")
    return database


def actor_name(given: str) -> str:
    """The name of --actor, or the user that runs the command."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # in a container, a number without a name
        return f"uid {os.getuid()}"


def confirm(question: str, *, yes: bool) -> None:
    """Ask for confirmation on stderr, unless `yes`. Raises Abort where the reply is not yes."""
    if yes:
        return
    typer.echo(f"{question} [y/N]: ", nl=False, err=True)  # not by typer.confirm, which writes to stdout as well
    reply = sys.stdin.readline()
    if not reply:  # end of file: no terminal, and nothing piped in
        typer.echo(err=True)
        raise typer.BadParameter("not done: the question was not answered (there is no terminal); give --yes")
    if reply.strip().lower() not in ("y", "yes"):
        raise typer.Abort
