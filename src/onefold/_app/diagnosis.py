"""The findings of `onefold doctor` and the console's health page, in this order: what happens in the tables, how the
database is set up, and how the application is."""

from __future__ import annotations

from typing import Any

from onefold._app.application_findings import BROKER_S, check_application
from onefold._app.base_app import BaseOnefold, run_flow
from onefold._app.health_findings import HealthFinding, check_health
from onefold._app.setup_findings import check_setup
from onefold._kernel.clock import wall_ms


async def diagnose(dialect: str) -> list[HealthFinding]:
    """All findings about a database."""
    findings = await check_health(dialect)
    if findings[0].level == "bad":  # tables are missing: no other check can run
        return findings
    return findings + await check_setup(dialect, now_s=wall_ms() / 1000)


async def diagnose_application(once: BaseOnefold[Any], *, broker_s: float = BROKER_S) -> list[HealthFinding]:
    """All findings about an application: of its database and of its own settings."""
    return [*await run_flow(once, diagnose), *await check_application(once, broker_s=broker_s)]
