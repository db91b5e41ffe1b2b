"""Options several commands share. The environment is read here and nowhere below."""

from __future__ import annotations

import typer

DATABASE = typer.Option(
    "--database",
    "-d",
    envvar="ONEFOLD_DATABASE",
    help="postgresql://user@host/name, or the path of a SQLite file.",
    show_default=False,
)
