"""What operators did: to what, when and why."""

from __future__ import annotations

from starlette.responses import Response

from onefold._console.sections import Page, Section, Visit


async def show(visit: Visit) -> Response:
    return visit.render("audit.html")


SECTION = Section(title="Audit", path="/audit", pages=(Page(path="/audit", answer=show),))
