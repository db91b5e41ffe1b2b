"""Writes that are single by nature: a row under its business key, a change of state, an entry that moves a balance, and
a lock where there is no row to lock yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold._kernel.ports import NaturalWrites


def natural_writes() -> NaturalWrites:
    """What transactions ask for them. Imported by the first that does: most never do."""
    from onefold._natural.writes import NATURAL_WRITES

    return NATURAL_WRITES
