"""What is kept of batches: they come again and again with the same texts and other values.

A driver that has written a batch keeps what it wrote as a plan, by the batch's shape. The next batch of that shape is
the plan and its own values: none of its items is looked at by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
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

    def of(self, values: Iterable[Any]) -> Iterator[T]:
        """What there is for each of the values."""
        return map(self.__getitem__, map(type, values))


def apply(functions: PerKind[Callable[[Any], T]], values: Sequence[Any]) -> Iterator[T]:
    """What the functions make of the values, each by the one for its kind."""
    return map(call, map(functions.__getitem__, map(type, values)), values)


#: What stays the same of an item from batch to batch.
_TEXTS: Final[PerKind[Callable[[Any], Hashable]]] = PerKind(
    {Statement: itemgetter(0), Boundary: attrgetter("_value_"), Nested: tuple}
)


def shape_of(items: Sequence[BatchItem]) -> Shape:
    """What all batches have in common that differ by their values only."""
    return tuple(map(call, map(_TEXTS.__getitem__, map(type, items)), items))  # `apply`, without the call


def places_of_values(items: Sequence[BatchItem]) -> tuple[int, ...]:
    """Where in a batch of this shape the statements with values stand."""
    return tuple([n for n, item in enumerate(items) if isinstance(item, Statement) and item.values])


class Plans(dict[Shape, P], Generic[P]):
    """What is kept, by the shape of the batch and whatever else it depends on."""

    __slots__ = ()

    def keep(self, shape: Shape, plan: P) -> P:
        if len(self) >= _PLANS_MAX:
            self.clear()
        self[shape] = plan
        return plan
