"""What is made of a call once, for all calls that look alike: its arguments are checked, its statements written.

A plan is found by the shape of a call: its columns and settings, never its values. Those are checked each time. Names
come from the code, so that there are few shapes; where there are many after all (columns that depend on a request),
what is kept is bounded, and made anew.

Invariant: what is not checked stands in no plan, and a shape that is found was checked as it was written. So shapes are
made of texts, and of values that equal no others: `1` and `True` are one key of a dict, and two conditions in SQL.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from onefold._kernel.table_writes import AddTo, FindRow, MoveState, Prepared

P = TypeVar("P")

#: So many shapes are kept for a table, and so many tables for a database.
PLANS_MAX: Final = 128
TABLES_MAX: Final = 512


@dataclass(frozen=True, slots=True)
class Comparison:
    """What is compared with a row that is there."""

    columns: tuple[str, ...]
    tells: bool
    """Whether other values are told as an outcome; else they are RowDiffers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InsertPlan:
    """For `insert_once`."""

    columns: tuple[str, ...]
    on: tuple[str, ...]
    among: Mapping[str, Any]
    comparison: Comparison | None
    insert: Prepared
    look: FindRow
    """For a row that is there."""
    find: Prepared
    """The same."""

    def key(self, values: tuple[Any, ...]) -> dict[str, Any]:
        """The key, of the values of a call."""
        given = dict(zip(self.columns, values, strict=True))
        return {column: given[column] for column in self.on}


@dataclass(frozen=True, slots=True, kw_only=True)
class MovePlan:
    """For `transition`."""

    shape: MoveState
    move: Prepared
    find: Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class AddPlan:
    """For the balance of a `ledger_entry`."""

    shape: AddTo
    add: Prepared


@dataclass(frozen=True, slots=True, kw_only=True)
class LockPlan:
    """For `lock_row`."""

    key: tuple[str, ...]
    find: Prepared
    hash: Prepared


def keep(kept: dict[Any, P], shape: Any, made: P, most: int = PLANS_MAX) -> P:
    """Remember it. Two threads may both have made it: they are alike."""
    if len(kept) >= most:
        kept.clear()
    kept[shape] = made
    return made
