"""`onefold doctor`: what is well in a database, what is not, and the way out."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from onefold._app.health_findings import check_health
from onefold._cli.options import DATABASE, JSON
from onefold._cli.output import answer, print_table
from onefold._cli.session import ask
from onefold._kernel.redaction import redact

_STATES = {"good": "well", "warn": "look", "bad": "act"}


def command(database: Annotated[str, DATABASE] = "", as_json: Annotated[bool, JSON] = False) -> None:
    """Check tables, relays, consumers, dead letters and works. Exits with 1 where something needs a look."""
    findings = ask(database, check_health)
    unwell = [each for each in findings if each.level != "good"]
    if as_json:
        answer({"well": not unwell, "findings": [asdict(each) for each in findings]})
    else:
        rows = [(each.what, _STATES[each.level], each.said, each.way_out or None) for each in findings]
        print_table(f"health of {redact(database)}", ("what", "state", "finding", "way out"), rows)
        typer.echo(f"need a look: {len(unwell)} of {len(findings)}" if unwell else "all is well")
    if unwell:
        raise typer.Exit(1)
