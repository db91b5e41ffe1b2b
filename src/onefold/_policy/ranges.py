"""Settings are checked when they are made: what is out of range is refused by name, value and range."""

from __future__ import annotations

from math import inf
from numbers import Integral, Real

from onefold.errors import ConfigurationError


def require(field: str, value: float, *, least: float = 0.0, most: float = inf, whole: bool = False) -> None:
    """Refuse a setting that is not a number (`whole`: a whole one), or outside `least` to `most`, both included. NaN is
    outside of every range."""
    given: object = value
    if isinstance(given, bool) or not isinstance(given, Integral if whole else Real):
        raise ConfigurationError(
            f"{field}={given!r} is not a {'whole number' if whole else 'number'}: choose {least:g} to {most:g}"
        )
    if not least <= value <= most:
        raise ConfigurationError(f"{field}={value!r} is out of range: choose {least:g} to {most:g}")
