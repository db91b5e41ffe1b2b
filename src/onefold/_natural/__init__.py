"""Writes that are single by nature: a row under its business key, a change of state, an entry that moves a balance, and
a lock where there is no row to lock yet."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onefold._kernel.ports import NaturalWrites


def natural_writes() -> Callable[[], NaturalWrites]:
    """What the transactions of one application ask for them. Imported by the first that does: most never do."""
    return cache(_make)


def _make() -> NaturalWrites:
    from onefold._natural.writes import TableWriter

    return TableWriter()
