"""Options several commands share. The environment is read here and nowhere below."""

from __future__ import annotations

import typer

from onefold.db.connect import file_of

DATABASE = typer.Option(
    "--database",
    "-d",
    envvar="ONEFOLD_DATABASE",
    help="postgresql://user@host/name, or the path of a SQLite file.",
    show_default=False,
)


def refuse_missing_file(database: str) -> None:
    """A command that finds nothing to do in a file it has just created by mistake would look healthy for ever."""
    file = file_of(database)
    if file is not None and not file.exists():
        raise typer.BadParameter(f"there is no SQLite file {str(file)!r}; check the path")
