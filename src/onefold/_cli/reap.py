"""`onefold reap`: forget what has expired."""

from __future__ import annotations

import asyncio
import json
from typing import Annotated

import typer

from onefold._app import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._cli.options import DATABASE, require_database
from onefold._cli.output import log_to_stderr, show_progress
from onefold._cli.times import seconds_of
from onefold._idempotency.retention import pg_cron_job
from onefold._kernel.telemetry.request_events import Reaped
from onefold._outbox.debezium import forget_captured


def command(
    database: Annotated[str, DATABASE] = "",
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="Rows per batch.")] = 1000,
    batches: Annotated[int, typer.Option(min=1, help="At most this many batches.")] = 1000,
    captured_outbox: Annotated[
        str,
        typer.Option(
            "--captured-outbox",
            metavar="AGE",
            help="Also delete events older than this (90m, 2h, 7d), published or not: for an outbox Debezium reads. "
            "Refused while a relay is at work.",
        ),
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
    print_cron: Annotated[
        bool, typer.Option("--print-cron", help="Print a pg_cron job that does the same inside Postgres.")
    ] = False,
) -> None:
    """Delete expired records, in batches small enough not to disturb other transactions."""
    if print_cron:
        typer.echo(pg_cron_job())
        return
    log_to_stderr()
    keep_s = seconds_of(captured_outbox, "--captured-outbox") if captured_outbox else None
    require_database(database)
    with show_progress("deleting what has expired"):
        reaped, events = asyncio.run(_reap(database, limit, batches, keep_s))
    if as_json:
        typer.echo(json.dumps({"records": reaped.records} | ({} if events is None else {"events": events})))
    else:
        typer.echo(f"forgotten: {reaped.records} records" + ("" if events is None else f", {events} events"))


async def _reap(database: str, limit: int, batches: int, keep_s: float | None) -> tuple[Reaped, int | None]:
    once = AsyncOnefold(database)
    try:
        events = None
        if keep_s is not None:
            events = await run_flow(
                once, lambda dialect: forget_captured(dialect, keep_s=keep_s, limit=limit, batches_max=batches)
            )
        return await once.reap(limit=limit, batches_max=batches), events
    finally:
        await once.close()
