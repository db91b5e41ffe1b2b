"""Settings are checked when they are made: what is out of range is refused by name, value and range."""

from __future__ import annotations

from math import inf

from onefold.errors import ConfigurationError


def require(field: str, value: float, *, least: float = 0.0, most: float = inf) -> None:
    """Refuse a setting outside `least` to `most`, both included. NaN is outside of every range."""
    if not least <= value <= most:
        raise ConfigurationError(f"{field}={value!r} is out of range: choose {least:g} to {most:g}")
