"""`onefold metrics`: the alert rules and the dashboard that come with onefold, for Prometheus and Grafana."""

from __future__ import annotations

from importlib.resources import files
from typing import Annotated

import typer


def command(
    alerts: Annotated[bool, typer.Option("--alerts", help="Alert rules, for `rule_files` of Prometheus.")] = False,
    dashboard: Annotated[bool, typer.Option("--dashboard", help="A dashboard, for Grafana's import.")] = False,
) -> None:
    """Print alert rules for Prometheus, or a dashboard for Grafana."""
    if alerts == dashboard:
        raise typer.BadParameter("give one of --alerts and --dashboard")
    name = "alerts.yml" if alerts else "dashboard.json"
    typer.echo((files("onefold._observe") / name).read_text(encoding="utf-8"), nl=False)
