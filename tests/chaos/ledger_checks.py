"""What was committed and what arrived, and what must hold between the two whatever was killed in between.

It is given the books of both sides and nothing else: it knows no store, no broker and no relay. It answers with
sentences, one per violation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Event:
    """An event by its id, and its place in its key's order."""

    id: str
    key: str
    version: int


@dataclass(slots=True)
class Written:
    """What the writers know: the ids of what they committed, and of what they took back."""

    committed: set[str] = field(default_factory=set)
    undone: set[str] = field(default_factory=set)


def violations(written: Written, arrived: Sequence[Event], *, strict: bool = True) -> list[str]:
    """Empty: each committed event arrived once, nothing else did, and each key's versions came as 1, 2, 3 ..."""
    times = Counter(event.id for event in arrived)
    found = [f"event {name} was committed and never arrived" for name in sorted(written.committed - times.keys())]
    found += [f"event {name} arrived {count} times" for name, count in times.items() if count > 1]
    found += [f"event {name} was rolled back and arrived" for name in sorted(written.undone & times.keys())]
    strangers = times.keys() - written.committed - written.undone
    found += [f"event {name} arrived, and nobody committed it" for name in sorted(strangers)]
    if strict:
        for key, versions in by_key(arrived).items():
            if versions != list(range(1, len(versions) + 1)):
                found.append(f"key {key!r} was handled in the order {versions}")
    return found


def inversions(arrived: Iterable[Event]) -> int:
    """How many events came right after a later one of their key."""
    return sum(earlier > later for versions in by_key(arrived).values() for earlier, later in pairwise(versions))


def by_key(arrived: Iterable[Event]) -> dict[str, list[int]]:
    """The versions of each key, in the order they came."""
    found: dict[str, list[int]] = {}
    for event in arrived:
        found.setdefault(event.key, []).append(event.version)
    return found
