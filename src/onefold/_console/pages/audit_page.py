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
        raise HTTPException(400, "This is not a position in the audit: take the one that the page before links to.")
    lines = await visit.run(functools.partial(list_audit, after=int(after) if after else None, limit=_LINES + 1))
    rows = [(line, line.details.get("why", ""), list(read_facts(line.details))) for line in lines[:_LINES]]
    more = rows[-1][0].id if len(lines) > _LINES else None
    return visit.render("audit.html", lines=rows, more=more)


def read_facts(details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The details of a line that are set, each as a name and a text."""
    for name, value in details.items():
        if name == "filter":  # the filter; its consumer has a column of its own
            yield "which", write_value(_read_filter(value)) or "all"
        elif name != "why" and (text := write_value(value)):
            yield name, text


def _read_filter(stored: Any) -> Any:
    try:
        chosen = json.loads(stored)
    except (TypeError, ValueError):  # of a release with another format
        return stored
    return {name: value for name, value in chosen.items() if name != "consumer"} if isinstance(chosen, dict) else chosen


def write_value(value: Any) -> str:
    """JSON as text, without unset members."""
    if value is None or value is False:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, each in value.items() if (text := write_value(each)))
    if isinstance(value, list):
        return "; ".join(text for each in value if (text := write_value(each)))
    return "yes" if value is True else str(value)


SECTION = Section(title="Audit", path="/audit", pages=(Page(path="/audit", answer=show),))
