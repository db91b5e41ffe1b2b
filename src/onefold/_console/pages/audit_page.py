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
    lines = await visit.ask(functools.partial(list_audit, after=int(after) if after else None, limit=_LINES + 1))
    shown = [(line, line.details.get("why", ""), list(read_facts(line.details))) for line in lines[:_LINES]]
    more = shown[-1][0].id if len(lines) > _LINES else None
    return visit.render("audit.html", lines=shown, more=more)


def read_facts(details: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Details of a line that say something, each as a name and a text."""
    for name, value in details.items():
        if name == "filter":  # what was chosen; the consumer is told beside it
            yield "which", say(_read_filter(value)) or "all"
        elif name != "why" and (text := say(value)):
            yield name, text


def _read_filter(written: Any) -> Any:
    try:
        chosen = json.loads(written)
    except (TypeError, ValueError):  # of a release that writes it another way
        return written
    return {name: value for name, value in chosen.items() if name != "consumer"} if isinstance(chosen, dict) else chosen


def say(value: Any) -> str:
    """JSON in words, without what is not set."""
    if value is None or value is False:
        return ""
    if isinstance(value, dict):
        return ", ".join(f"{name} {text}" for name, each in value.items() if (text := say(each)))
    if isinstance(value, list):
        return "; ".join(text for each in value if (text := say(each)))
    return "yes" if value is True else str(value)


SECTION = Section(title="Audit", path="/audit", pages=(Page(path="/audit", answer=show),))
