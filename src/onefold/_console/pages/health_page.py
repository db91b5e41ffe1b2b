"""Health and settings: what is well, what is not, and what this console was made with."""

from __future__ import annotations

from starlette.responses import Response

import onefold
from onefold._app.health_findings import check_health
from onefold._console.sections import Page, Section, Visit


async def show(visit: Visit) -> Response:
    findings = await visit.ask(check_health)
    settings = {
        "onefold": onefold.__version__,
        "Application": repr(visit.once),
        "Dialect": await visit.ask(_name_dialect),
        "Consumers declared": ", ".join(each.name for each in visit.once.consumers) or "none",
        "Engines of sagas": str(len(visit.parts.sagas)),
    }
    return visit.render("health.html", findings=findings, settings=settings)


async def _name_dialect(dialect: str) -> str:
    return dialect


SECTION = Section(title="Health", path="/health", pages=(Page(path="/health", answer=show),))
