"""What operators did: to what, when and why."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.responses import Response

from onefold._console.sections import Page, Section, Visit
from onefold._kernel.audit import list_audit

_LINES: Final = 50


async def show(visit: Visit) -> Response:
    after = visit.query("after")
    if after and not (after.isascii() and after.isdecimal() and len(after) <= 18):
        raise HTTPException(400, "This is no place in the audit: take what a page gave.")
    lines = await visit.ask(functools.partial(list_audit, after=int(after) if after else None, limit=_LINES + 1))
    shown = [(line, line.details.get("why", ""), list(_facts(line.details))) for line in lines[:_LINES]]
    more = shown[-1][0].id if len(lines) > _LINES else None
    return visit.render("audit.html", lines=shown, more=more)


def _facts(details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Details of a line, each as a name and a text."""
    for name, value in details.items():
        if name != "why" and value not in (None, "", []):
            yield name, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


SECTION = Section(title="Audit", path="/audit", pages=(Page(path="/audit", answer=show),))
