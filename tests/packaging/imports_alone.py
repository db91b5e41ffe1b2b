"""Imports the modules of each extra where nothing is to be had but what that extra brings: one fork for each.

python -m tests.packaging.imports_alone EXTRA=MODULE,MODULE EXTRA=MODULE ...

The parent imports no library, so that each child begins without any; whatever belongs to a distribution that the extra
does not bring cannot be found in it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.metadata import packages_distributions
from types import ModuleType
from typing import Any

from tests.packaging.extras import canonical, closure


class FilteringFinder:
    """A finder of the interpreter's that does not find these modules."""

    def __init__(self, finder: Any, modules: set[str]) -> None:
        self.finder, self.modules = finder, modules
        if hasattr(finder, "find_distributions"):  # what packages ask for their own versions
            self.find_distributions = finder.find_distributions

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] in self.modules:
            return None
        found: ModuleSpec | None = self.finder.find_spec(name, path, target)
        return found


owners = cache(packages_distributions)


def blocked_modules(extra: str) -> set[str]:
    brought = closure(extra) | {"onefold"}
    return {module for module, names in owners().items() if not brought & {canonical(name) for name in names}}


def import_alone(extra: str, modules: Sequence[str]) -> str:
    """What went wrong, in a child of its own; nothing, if all is well."""
    blocked = blocked_modules(extra)
    reading, writing = os.pipe()
    if os.fork() == 0:
        said = ""
        try:
            for name in [name for name in sys.modules if name.partition(".")[0] in blocked]:
                del sys.modules[name]
            sys.meta_path[:] = [FilteringFinder(finder, blocked) for finder in sys.meta_path]
            for module in modules:
                import_module(module)
        except BaseException as error:
            said = f"{extra}: {module}: {error!r}"
        os.write(writing, said.encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.wait()
    return said


if __name__ == "__main__":
    for word in sys.argv[1:]:
        given_extra, _, given_modules = word.partition("=")
        if wrong := import_alone(given_extra, given_modules.split(",")):
            print(wrong)
