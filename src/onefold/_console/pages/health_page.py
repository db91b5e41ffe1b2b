"""Health and settings: the findings of `onefold doctor`, and the settings of this console."""

from __future__ import annotations

from typing import Final

from starlette.responses import Response

import onefold
from onefold._app.diagnosis import diagnose, diagnose_application
from onefold._console.sections import Page, Section, Visit

#: A person waits for the page.
_BROKER_S: Final = 2.0


async def show(visit: Visit) -> Response:
    if visit.parts.knows_application:
        findings = await diagnose_application(visit.once, broker_s=_BROKER_S)
    else:
        findings = await visit.run(diagnose)
    settings = {
        "onefold": onefold.__version__,
        "Application": repr(visit.once),
        "Dialect": await visit.run(_name_dialect),
        "Consumers declared": ", ".join(each.name for each in visit.once.consumers) or "none",
        "Engines of sagas": str(len(visit.parts.sagas)),
    }
    return visit.render("health.html", findings=findings, settings=settings)


async def _name_dialect(dialect: str) -> str:
    return dialect


SECTION = Section(title="Health", path="/health", pages=(Page(path="/health", answer=show),))
