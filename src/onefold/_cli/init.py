"""`onefold init`: an application to begin with, that runs at once."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from onefold._cli.options import JSON
from onefold._cli.output import print_json
from onefold._cli.starter import Starter, StarterBroker, StarterDatabase, StarterFramework
from onefold.errors import ConfigurationError


def command(
    folder: Annotated[Path, typer.Argument(help="The folder to write to; it is made if need be.")] = Path(),
    framework: Annotated[StarterFramework, typer.Option("--framework", "-f", help="The web framework.")] = (
        StarterFramework.FASTAPI
    ),
    database: Annotated[StarterDatabase, typer.Option("--database", "-d", help="The database of the application.")] = (
        StarterDatabase.SQLITE
    ),
    broker: Annotated[
        StarterBroker, typer.Option("--broker", "-b", help="The broker of its events; local: the database itself.")
    ] = StarterBroker.NONE,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write a starter application, its tests and its README. Existing files are never overwritten."""
    title = folder.resolve().name.capitalize() or "Orders"
    starter = Starter(framework=framework, database=database, broker=broker, title=title)
    texts = starter.write()
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{str(folder)!r} is a file; give a folder: onefold init orders")
    taken = [name for name in texts if (folder / name).exists()]
    if taken:
        raise ConfigurationError(
            f"{', '.join(taken)} in {str(folder)!r} would be overwritten, so nothing was written; name another folder: "
            "onefold init orders"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)
    enter = () if folder == Path() else (f"cd {shlex.quote(str(folder))}",)
    if as_json:
        print_json({"folder": str(folder), "files": list(texts), "commands": [*enter, *starter.commands]})
        return
    typer.echo(f"written to {str(folder)!r}: {', '.join(texts)}")
    typer.echo("next:")
    for line in (*enter, *starter.commands):
        typer.echo(f"  {line}")
