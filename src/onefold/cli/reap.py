"""`onefold reap`: forget what has expired."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from onefold.cli.options import DATABASE, existing
from onefold.face import Onefold
from onefold.idempotency.retention import pg_cron_job


def command(
    database: Annotated[str, DATABASE] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Rows per batch.")] = 1000,
    batches: Annotated[int, typer.Option(min=1, help="Batches at the most.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    print_cron: Annotated[
        bool, typer.Option("--print-cron", help="Print a pg_cron job that does the same inside Postgres.")
    ] = False,
) -> None:
    """Delete expired records and abandoned claims, in batches small enough to disturb nobody."""
    if print_cron:
        typer.echo(pg_cron_job())
        return
    once = Onefold(existing(database))
    try:
        reaped = once.reap(limit=limit, batches_max=batches)
    finally:
        once.close()
    if as_json:
        typer.echo(json.dumps({"records": reaped.records, "claims": reaped.claims}))
    else:
        typer.echo(f"forgotten: {reaped.records} records, {reaped.claims} abandoned claims")
