"""`onefold init`: an application to begin with, that runs at once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from onefold._cli.options import JSON
from onefold._cli.output import answer
from onefold._cli.starter import Starter, StarterBroker, StarterDatabase, StarterFramework
from onefold.errors import ConfigurationError


def command(
    folder: Annotated[Path, typer.Argument(help="Where to write it; made where it is not there.")] = Path(),
    framework: Annotated[StarterFramework, typer.Option("--framework", "-f", help="What answers requests.")] = (
        StarterFramework.FASTAPI
    ),
    database: Annotated[StarterDatabase, typer.Option("--database", "-d", help="Where the rows are.")] = (
        StarterDatabase.SQLITE
    ),
    broker: Annotated[
        StarterBroker, typer.Option("--broker", "-b", help="What carries events; local: the database itself.")
    ] = StarterBroker.NONE,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Write an application to begin with, its tests and its README. A file that is there is never overwritten."""
    starter = Starter(framework=framework, database=database, broker=broker)
    texts = starter.write()
    if folder.exists() and not folder.is_dir():
        raise ConfigurationError(f"{str(folder)!r} is a file, and a folder is wanted: onefold init orders")
    there = [name for name in texts if (folder / name).exists()]
    if there:
        raise ConfigurationError(
            f"{', '.join(there)} in {str(folder)!r} would be overwritten, so nothing was written; name another folder: "
            "onefold init orders"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        with (folder / name).open("x", encoding="utf-8") as file:
            file.write(text)
    enter = () if folder == Path() else (f"cd {folder}",)
    if as_json:
        answer({"folder": str(folder), "files": list(texts), "commands": [*enter, *starter.commands]})
        return
    typer.echo(f"written to {str(folder)!r}: {', '.join(texts)}")
    typer.echo("next:")
    for line in (*enter, *starter.commands):
        typer.echo(f"  {line}")
