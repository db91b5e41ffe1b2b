"""Names of sagas and steps, and the keys that are made of them.

Invariant: two steps have the same key only if they are the same step of the same saga. A key is `ID:STEP`, that of its
compensation `ID:STEP:undo`. A step's name has no colon and is never `undo`, so a key reads in one way from its end,
also where the saga's id has colons. Keys are made of names and never of positions: a step that is put in front of
others changes no key but its own.
"""

from __future__ import annotations

import re
from typing import Final

from onefold.errors import ConfigurationError

UNDO: Final = "undo"

#: With a step's name and `:undo` it stays below the 255 characters that servers take as a key.
ID_CHARACTERS_MAX: Final = 128
NAME_CHARACTERS_MAX: Final = 100

# What an Idempotency-Key header may have in every spelling: visible ASCII without quotes, commas and what escapes.
_ID: Final = re.compile(rf"[!#-+\--:<-\[\]-~]{{1,{ID_CHARACTERS_MAX}}}")
_NAME: Final = re.compile(rf"[!#-+\--9<-\[\]-~]{{1,{NAME_CHARACTERS_MAX}}}")

#: Path segments that clients and servers remove from addresses. Engines have addresses with the id in them.
_DIRECTORIES: Final = (".", "..")


def check_saga_id(saga_id: object) -> str:
    """The id, unchanged, if keys can be made of it."""
    if not isinstance(saga_id, str) or not _ID.fullmatch(saga_id) or saga_id in _DIRECTORIES:
        raise ConfigurationError(
            f"saga id {saga_id!r:.150} must be 1 to {ID_CHARACTERS_MAX} visible ASCII characters without quotes, "
            "commas, semicolons, backslashes and spaces, and not '.' or '..', as 'order-42' is: its steps' idempotency "
            "keys begin with it"
        )
    return saga_id


def check_signal_id(signal_id: object) -> None:
    """Refuse an id that engines could not send as part of a key."""
    if not isinstance(signal_id, str) or not _ID.fullmatch(signal_id):
        raise ConfigurationError(
            f"signal_id {signal_id!r:.150} must be 1 to {ID_CHARACTERS_MAX} visible ASCII characters without quotes, "
            "commas, semicolons, backslashes and spaces, as 'evt_42' is"
        )


def check_name(name: object, what: str) -> str:
    """The name of a saga, step or signal, unchanged, if it can be part of a key."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name == UNDO:
        raise ConfigurationError(
            f"{what} {name!r:.150} must be 1 to {NAME_CHARACTERS_MAX} visible ASCII characters without colons, quotes, "
            f"commas, semicolons, backslashes and spaces, and not {UNDO!r}, as 'charge' is"
        )
    return name


def check_saga_name(name: object) -> str:
    """The name of a saga, unchanged. Engines know a saga as NAME@VERSION, which must be unambiguous."""
    if isinstance(name, str) and "@" in name:
        raise ConfigurationError(
            f"saga name {name!r:.150} must be without '@', for engines know a saga as NAME@VERSION: write '-', or "
            'version="..."'
        )
    return check_name(name, "saga name")


def step_key(saga_id: str, step: str) -> str:
    """The idempotency key of a step."""
    return f"{saga_id}:{step}"


def undo_key(saga_id: str, step: str) -> str:
    """The idempotency key of a step's compensation."""
    return f"{saga_id}:{step}:{UNDO}"
