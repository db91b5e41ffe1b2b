"""Values by dialect, each made when it is first asked for: a process speaks one, and need not make the other's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

T = TypeVar("T")


class PerDialect(Mapping[str, T]):
    """`PerDialect(postgres=..., sqlite=...)`, of functions that make the value."""

    def __init__(self, **make: Callable[[], T]) -> None:
        self._make = make
        self._made: dict[str, T] = {}

    def __getitem__(self, dialect: str) -> T:
        if dialect not in self._made:
            self._made[dialect] = self._make[dialect]()  # two threads may both make it: the same
        return self._made[dialect]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make)

    def __len__(self) -> int:
        return len(self._make)
