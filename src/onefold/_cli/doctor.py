"""`onefold doctor`: checks a database and its set-up, and says what to change."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Annotated

import typer

from onefold._app.diagnosis import diagnose, diagnose_application
from onefold._app.health_findings import HealthFinding
from onefold._cli.options import DATABASE, JSON, TARGET_HELP
from onefold._cli.output import print_json, print_table
from onefold._cli.session import run_on_database
from onefold._cli.targets import close_onefold, load_target, open_target
from onefold._kernel.redaction import redact

_STATES = {"good": "well", "warn": "look", "bad": "act"}


def command(
    target: Annotated[
        str, typer.Argument(help=f"{TARGET_HELP} Its routes, pool, broker and console are checked, too.")
    ] = "",
    database: Annotated[str, DATABASE] = "",
    as_json: Annotated[bool, JSON] = False,
) -> None:
    """Check tables, indexes, vacuum, clock, connections, reaping, relays, consumers, dead letters and works. Exits with
    1 where something needs a look."""
    if not target and not database:
        raise typer.BadParameter("give a target, as shop:once, or --database (or set ONEFOLD_DATABASE)")
    findings = _check_target(target) if target else run_on_database(database, diagnose)
    unwell = [each for each in findings if each.level != "good"]
    if as_json:
        print_json({"well": not unwell, "findings": [asdict(each) for each in findings]})
    else:
        rows = [(each.what, _STATES[each.level], each.said, each.way_out or None) for each in findings]
        print_table(f"health of {target or redact(database)}", ("what", "state", "finding", "way out"), rows)
        typer.echo(f"need a look: {len(unwell)} of {len(findings)}" if unwell else "all is well")
    if unwell:
        raise typer.Exit(1)


def _check_target(target: str) -> list[HealthFinding]:
    value = load_target(target)

    async def check() -> list[HealthFinding]:
        once = await open_target(target, value)
        try:
            return await diagnose_application(once)
        finally:
            await close_onefold(once)

    return asyncio.run(check())
