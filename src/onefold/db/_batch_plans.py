"""What is kept of batches: they come again and again with the same texts and other values.

A driver that has sent a batch keeps for its session how it was written, as a plan, by the batch's shape. The next batch
of that shape is the plan and its own values: none of its items is looked at by itself. A session has the plans of
batches only whose statements it has prepared, all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from operator import attrgetter, call, itemgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

from onefold._kernel.effects import BatchItem, Boundary, Nested, Statement
from onefold.errors import StatementRefused

T = TypeVar("T")
P = TypeVar("P")

Shape: TypeAlias = tuple[Hashable, ...]

#: Batches with many events come in too many shapes to be kept.
ITEMS_MAX: Final = 12
_PLANS_MAX: Final = 100


class PerKind(dict[type[Any], T]):
    """Something for each kind of value. It is looked up for all values of a batch at once, by functions written in C:
    every request has a dozen, and Python would take longer for them than for the rest of its batch."""

    __slots__ = ()

    def __missing__(self, kind: type[Any]) -> T:
        for base in kind.__mro__:  # a bool is an int
            if base in self:
                return self[base]
        raise StatementRefused(f"a batch takes bytes, int, str and None; it was given {kind.__name__}")


#: What stays the same of an item from batch to batch.
_texts_of: Final = PerKind[Callable[[Any], Hashable]](
    {Statement: itemgetter(0), Boundary: attrgetter("_value_"), Nested: tuple}
).__getitem__


def shape_of(items: Sequence[BatchItem]) -> Shape:
    """What all batches have in common that differ by their values only."""
    return tuple(map(call, map(_texts_of, map(type, items)), items))


def places_of_values(items: Sequence[BatchItem]) -> tuple[int, ...]:
    """Where in a batch of this shape the statements with values stand."""
    return tuple([n for n, item in enumerate(items) if isinstance(item, Statement) and item.values])


class Plans(dict[Shape, P], Generic[P]):
    """What is kept for a session, by the shape of the batch and whatever else it depends on."""

    __slots__ = ()

    def keep(self, shape: Shape, plan: P) -> None:
        """From now on batches of this shape are sent by the plan."""
        if len(self) >= _PLANS_MAX:
            self.clear()
        self[shape] = plan
