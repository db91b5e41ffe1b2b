"""Times as people write them on the command line."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

import typer

_AGE: Final = re.compile(r"(\d{1,6})([smhd])")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


def moment_of(text: str, option: str) -> datetime | None:
    """A time, or how long ago it was."""
    if not text:
        return None
    if found := _AGE.fullmatch(text):
        return datetime.now(UTC) - timedelta(**{_UNITS[found[2]]: int(found[1])})
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise typer.BadParameter(
            f"{option} {text!r} is not a time with a zone; write 2026-07-01T12:00Z, or an age such as 90m, 2h, 7d"
        )
    return moment


def seconds_of(text: str, option: str) -> float:
    """How long an age is."""
    if not (found := _AGE.fullmatch(text)):
        raise typer.BadParameter(f"{option} {text!r} is not an age; write 90m, 2h or 7d")
    return timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds()
