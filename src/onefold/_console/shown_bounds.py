"""Bounds a form to what its confirmation page has shown: it has a time of the database's clock, and later dead letters
are left alone."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Final

from starlette.exceptions import HTTPException

from onefold._console.sections import Visit
from onefold._kernel.checkout import fetch_rows, with_connection
from onefold._kernel.dialects import SQLITE_NOW_MS
from onefold._kernel.effects import Statement

FIELD: Final = "until"

_CLOCK: Final = {
    "postgres": "SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint",
    "sqlite": f"SELECT {SQLITE_NOW_MS}",
}


async def read_clock(dialect: str) -> datetime:
    """A moment after all deaths so far, by the clock that records them."""
    [[now_ms]] = await with_connection(partial(fetch_rows, Statement(_CLOCK[dialect])))
    return datetime.fromtimestamp((now_ms + 1) / 1000, tz=UTC)


def read_bound(form: Mapping[str, str]) -> datetime | None:
    """The bound in a form; None: it has none, or an invalid one."""
    text = form.get(FIELD, "")
    if not text.isascii() or not text.isdecimal() or len(text) > 14:
        return None
    return datetime.fromtimestamp(int(text) / 1000, tz=UTC)


def write_bound(until: datetime | None) -> str:
    return "" if until is None else str(round(until.timestamp() * 1000))


async def bind(visit: Visit, until: datetime | None) -> datetime:
    """The bound of a form that is shown again, or of one that is shown now."""
    return await visit.run(read_clock) if until is None else until


def require_bound(until: datetime | None) -> None:
    """Refuse a form without a bound that acts on all matches."""
    if until is None:
        raise HTTPException(400, "The form does not say what it has shown, and nothing was done. Open its page again.")
