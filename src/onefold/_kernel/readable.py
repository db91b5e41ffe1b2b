"""Texts, times and spans as people read them: in commands, in the console and in what is stored for them."""

from __future__ import annotations

from datetime import UTC, datetime


def harmless(text: str) -> str:
    """The text without what would move the cursor or turn the reading direction: messages come from strangers."""
    return "".join(char if char.isprintable() or char in "\n\t" else ascii(char)[1:-1] for char in text)


def one_line(text: str, chars_max: int) -> str:
    """For people to read, and for any database to take: errors quote what strangers sent."""
    return "".join(char if char.isprintable() else " " for char in text[:chars_max])


def age(seconds: float | None) -> str:
    """A span as people say it."""
    if seconds is None:
        return "-"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.1f} s"


def write_count(count: int, thing: str, things: str = "") -> str:
    """How many of something, in words: "1 event", "2,000 events"."""
    return f"{count:,} {thing if count == 1 else things or f'{thing}s'}"


def moment(ms: int | None) -> str | None:
    """A time as it is written in JSON and in tables."""
    return None if ms is None else datetime.fromtimestamp(ms / 1000, tz=UTC).isoformat(timespec="milliseconds")
