"""Reading Retry-After: how many seconds the server asks for.

A date is measured against the Date of the same response: both were read off the server's clock, so a client whose
clock is wrong still waits as long as it was asked to. Only a response without a readable Date is measured against the
client's own wall clock.

Invariant: the answer is what the server asked for, or None when that cannot be known; no text raises. What is beyond
ten years is ten years: too long to wait for either way, and still a date.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

ABSURD_S = 10 * 366 * 86_400
"""Ten years. What asks for more is a mistake, such as a timestamp in place of a number of seconds. It is not
waited for, nor is it taken for leave to come back at once."""

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")

_MONTH = f"(?P<month>{'|'.join(MONTHS)})"
_DAY = "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_LONG_DAY = "(?:Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday)"
_TIME = "(?P<hour>[0-9]{2}):(?P<minute>[0-9]{2}):(?P<second>[0-9]{2})"

# RFC 9110, section 5.6.7: the form of today, and the two that recipients still have to read.
_FORMS = (
    re.compile(f"{_DAY}, (?P<day>[0-9]{{2}}) {_MONTH} (?P<year>[0-9]{{4}}) {_TIME} GMT"),
    re.compile(f"{_LONG_DAY}, (?P<day>[0-9]{{2}})-{_MONTH}-(?P<year>[0-9]{{2}}) {_TIME} GMT"),
    re.compile(f"{_DAY} {_MONTH} (?P<day>[ 0-9][0-9]) {_TIME} (?P<year>[0-9]{{4}})"),
)
_OPTIONAL_SPACE = " \t"
_NUMBER = re.compile(r"0*([0-9]*)(?:\.[0-9]*)?")


def retry_after_s(value: str | None, *, date: str | None, wall_s: float) -> float | None:
    """The seconds a Retry-After header asks for; None when it is absent, malformed or in the past.

    `date` is the Date header of the same response; `wall_s` is the client's wall clock, in seconds since 1970.
    """
    text = (value or "").strip(_OPTIONAL_SPACE)
    wait_s = _until(text, date, wall_s) if (number := _number(text)) is None else number
    return min(wait_s, ABSURD_S) if wait_s is not None and wait_s >= 0 else None


def retry_after_ms_s(value: str | None) -> float | None:
    """The seconds that a retry-after-ms header asks for, as OpenAI and Azure send it."""
    number = _number((value or "").strip(_OPTIONAL_SPACE))
    return None if number is None else min(number / 1000, ABSURD_S)


def _number(text: str) -> float | None:
    """A number with or without decimals, which HTTP does not know and servers send."""
    if not text[:1].isdigit() or not text.isascii() or (found := _NUMBER.fullmatch(text)) is None:
        return None
    # Measured before it is read: it may have thousands of digits.
    return float(text) if len(found[1]) <= 2 * len(str(ABSURD_S)) else float("inf")


def _until(text: str, date: str | None, wall_s: float) -> float | None:
    try:
        clock = datetime.fromtimestamp(wall_s, UTC)
    except (ValueError, OverflowError, OSError):
        return None
    server = http_date((date or "").strip(_OPTIONAL_SPACE), near=clock) or clock
    moment = http_date(text, near=server)
    return None if moment is None else (moment - server).total_seconds()


def http_date(text: str, *, near: datetime) -> datetime | None:
    """The moment an HTTP-date names, in any of its three forms. A year of two digits is the one closest to `near`."""
    for form in _FORMS:
        if found := form.fullmatch(text):
            break
    else:
        return None
    year = int(found["year"])
    if len(found["year"]) == 2:
        earliest = near.year - 49
        year = earliest + (year - earliest) % 100
    second = int(found["second"])
    leap = 1 if second == 60 else 0
    try:
        moment = datetime(
            year,
            MONTHS.index(found["month"]) + 1,
            int(found["day"]),
            int(found["hour"]),
            int(found["minute"]),
            second - leap,
            tzinfo=UTC,
        )
        return moment + timedelta(seconds=leap)
    except (ValueError, OverflowError):
        return None
