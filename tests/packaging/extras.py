"""What each extra brings: the installed distributions that it needs, directly and by way of others."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

from tests.support.versions import EXTRAS

#: For those who work on onefold, not for those who use it.
NOT_FOR_USERS = {"test", "dev", "docs", "demo"}
FOR_USERS = [extra for extra in EXTRAS if extra not in NOT_FOR_USERS]


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def closure(extra: str) -> frozenset[str]:
    """The names of all distributions that an extra brings, where they are installed."""
    found: dict[str, set[str]] = {}
    waiting = _of_this_machine(EXTRAS[extra])
    while waiting:
        requirement = waiting.pop()
        name = canonical(requirement.name)
        if name == "onefold":
            waiting += [needed for each in requirement.extras for needed in _of_this_machine(EXTRAS[each])]
            continue
        dist = _find(name)
        if dist is None or (name in found and requirement.extras <= found[name]):
            continue
        found.setdefault(name, set()).update(requirement.extras)
        waiting += _needs(dist, found[name])
    return frozenset(found)


def _of_this_machine(texts: Iterable[str]) -> list[Requirement]:
    asked = [Requirement(text) for text in texts]
    return [each for each in asked if each.marker is None or each.marker.evaluate({"extra": ""})]


def _find(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _needs(dist: Distribution, extras: Iterable[str]) -> list[Requirement]:
    asked = [Requirement(text) for text in dist.requires or ()]
    return [
        each
        for each in asked
        if each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in ("", *extras))
    ]


@dataclass(frozen=True, slots=True)
class Component:
    """A distribution that extras bring."""

    name: str
    version: str
    licence: str
    extras: tuple[str, ...]


def components() -> list[Component]:
    """Of all extras for users, by name."""
    brought: dict[str, list[str]] = {}
    for extra in FOR_USERS:
        for name in closure(extra):
            brought.setdefault(name, []).append(extra)
    return [
        Component(name, distribution(name).version, licence_of(distribution(name)), tuple(extras))
        for name, extras in sorted(brought.items())
    ]


def licence_of(dist: Distribution) -> str:
    """As its metadata says it: an expression, a classifier, or the first line of a text or of its file."""
    metadata = dist.metadata
    if expressions := metadata.get_all("License-Expression"):
        return str(expressions[0])
    classified = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier") or ()
        if line.startswith("License :: ") and not line.endswith("OSI Approved")
    ]
    if classified:
        return ", ".join(sorted(classified))
    files = [file for file in dist.files or () if "LICEN" in file.name.upper()]
    [named, *_] = metadata.get_all("License") or [""]
    text = str(named) or (files[0].read_text() if files else "")
    return text.strip().partition("\n")[0][:60] or "not named"
