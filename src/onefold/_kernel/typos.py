"""A setting that does not exist is refused by its name, with the one that may have been meant."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

from onefold.errors import ConfigurationError


class Elsewhere(NamedTuple):
    """Settings of something else, and where to write them."""

    known: Collection[str] = ()
    advice: str = ""
    """With `{}` for the name."""


NOWHERE_ELSE: Final = Elsewhere()


def refuse_unknown(given: Iterable[str], known: Collection[str], of: str, elsewhere: Elsewhere = NOWHERE_ELSE) -> None:
    """Raises ConfigurationError for the first name that is not known: `of` is what has the settings."""
    for name in given:
        if name in elsewhere.known and name not in known:
            raise ConfigurationError(f"{name!r} is not a setting of {of}; {elsewhere.advice.format(name)}")
        if name not in known:
            from difflib import get_close_matches

            close = sorted(each for each in known if each.startswith(name)) or get_close_matches(name, known, 1)
            meant = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(sorted(known))}"
            raise ConfigurationError(f"{name!r} is not a setting of {of}; {meant}")
