"""`onefold migrate`: create or upgrade onefold's tables, or print the SQL for people who run their own."""

from __future__ import annotations

from typing import Annotated

import typer

from onefold._kernel.lanes import ThreadLane
from onefold._kernel.runners import run
from onefold.cli.options import DATABASE
from onefold.db.connect import dialect_of, sync_database
from onefold.db.migrate import migrate, script
from onefold.face import MIGRATIONS


def command(
    database: Annotated[str, DATABASE],
    show: Annotated[
        bool, typer.Option("--print", help="Print the SQL and change nothing; the database is not opened.")
    ] = False,
) -> None:
    """Create or upgrade onefold's tables. Safe to run again, and from several processes at once."""
    if show:
        dialect = dialect_of(database)
        typer.echo(script(dialect, MIGRATIONS[dialect]))
        return
    opened = sync_database(database)
    try:
        applied = run(migrate(opened.dialect, MIGRATIONS[opened.dialect]), ThreadLane(opened))
    finally:
        opened.close()
    typer.echo(f"applied: {', '.join(map(str, applied))}" if applied else "up to date")
