"""`onefold migrate`: create or upgrade onefold's tables, or print the SQL for people who run their own."""

from __future__ import annotations

from contextlib import suppress
from typing import Annotated, Final

import typer

from onefold._app.migrations import MIGRATIONS
from onefold._cli.options import DATABASE, JSON
from onefold._cli.output import print_json, show_progress
from onefold._cli.session import open_session
from onefold._kernel.redaction import redact
from onefold.db._drivers import dialect_of, file_of
from onefold.db._migrations import migrate, newer, script
from onefold.errors import ConfigurationError

#: Typer must let positional arguments through: `_check` refuses them, and says how the database is named.
CONTEXT: Final = {"allow_extra_args": True}


def command(
    context: typer.Context,
    database: Annotated[str, DATABASE] = "",
    show: Annotated[
        bool, typer.Option("--print", help="Print the SQL and change nothing; the database is not opened.")
    ] = False,
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Create or upgrade onefold's tables. Safe to run again, and from several processes at once. A SQLite file that is
    not there is made."""
    _check(context.args, database)
    if show:
        dialect = dialect_of(database)
        typer.echo(script(dialect, MIGRATIONS[dialect]))
        return
    file = file_of(database)
    is_new = file is not None and not file.exists()
    with show_progress("migrating"), open_session(database) as db:
        migrations = MIGRATIONS[db.dialect]
        applied = db.run(migrate(db.dialect, migrations))
        ahead = db.run(newer(db.dialect, migrations))
    if as_json:
        print_json({"applied": applied, "newer": ahead, "created": is_new})
        return
    if is_new and file is not None:
        typer.echo(f"created the SQLite file {str(file.absolute())!r}, which was not there")
    if applied:
        typer.echo(f"applied to {redact(database)}: {', '.join(map(str, applied))}")
    elif ahead:
        typer.echo(f"newer, fine: a newer onefold has applied {', '.join(map(str, ahead))}; this one works beside it")
    else:
        typer.echo("up to date")


def _check(unnamed: list[str], database: str) -> None:
    """Refuse a positional argument, which other commands take: here the database is an option."""
    if unnamed:
        shown = "app.db"
        with suppress(ConfigurationError):  # a target, or something else that may be secret
            dialect_of(unnamed[0])
            shown = redact(unnamed[0])
        raise typer.BadParameter(
            f"migrate takes no argument; it takes the database as an option: --database {shown}, or ONEFOLD_DATABASE"
        )
    if not database:
        raise typer.BadParameter("give --database, or set ONEFOLD_DATABASE")
