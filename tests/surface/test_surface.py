"""The public names and their signatures are those of `surface.txt`, so that a change of them is a decision; and what
the reference shows of them has a text."""

from __future__ import annotations

import ast
import importlib.util
import pkgutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

import onefold
from tests.surface.documented import find_silent
from tests.surface.listing import LIST, MODULES, listing, public_modules

REWRITE = "If the change is meant, `python -m tests.surface.listing` rewrites the list; tell users in CHANGELOG.md"


def test_the_public_names_and_signatures_are_those_of_the_list() -> None:
    assert listing(public_modules()).splitlines() == LIST.read_text().splitlines(), REWRITE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("def pay(amount: int) -> str: ...", "def pay(amount: int, *, currency: str) -> str: ..."),
        ("def pay(amount: int) -> str: ...", "def pay(amount: int = 1) -> str: ..."),
        ("def pay(amount: int) -> str: ...", "async def pay(amount: int) -> str: ..."),
        ("class pay:\n    def now(self) -> None: ...", "class pay:\n    def now(self) -> int: ..."),
        ("class pay:\n    def __init__(self): self.amount = 1", "class pay:\n    def __init__(self): self._amount = 1"),
        ("class pay: status = 400", "class pay: status = 401"),
        ("pay = int | str", "pay = int | str | None"),
    ],
)
def test_a_planted_change_is_found(before: str, after: str, tmp_path: Path) -> None:
    def listed(source: str, place: Path) -> str:
        module = ModuleType("shop")
        place.write_text(source)
        exec(compile(source, str(place), "exec"), vars(module))
        vars(module)["__all__"] = ["pay"]
        return listing([module])

    assert listed(before, tmp_path / "a.py") == listed(before, tmp_path / "b.py")
    assert listed(before, tmp_path / "a.py") != listed(after, tmp_path / "c.py")


def test_a_module_is_public_unless_an_underscore_says_otherwise() -> None:
    [root] = onefold.__path__
    found = {"onefold"}
    for module in pkgutil.walk_packages([root], "onefold.", onerror=lambda name: None):
        if "._" not in module.name:
            found.add(module.name)
    assert found == set(MODULES)


def test_the_three_lists_of_the_root_agree() -> None:
    """Type checkers read the imports, `from onefold import *` reads `__all__`, and the interpreter `_MODULE_OF`."""
    tree = ast.parse(Path(onefold.__file__).read_text())
    [checked] = [node for node in tree.body if isinstance(node, ast.If)]
    imported = {
        alias.asname or alias.name: node.module
        for node in checked.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    modules = {name for name, module in imported.items() if module == "onefold"}
    assert set(onefold._MODULES) == modules
    for name in modules:
        del imported[name]
    assert {name: f"onefold.{module}" for name, module in onefold._MODULE_OF.items()} == imported
    assert onefold.__all__ == sorted(imported)
    assert set(onefold.__all__) <= set(dir(onefold))


def test_what_the_reference_shows_has_a_text() -> None:
    assert list(find_silent(public_modules())) == []


def test_what_has_no_text_is_found(tmp_path: Path) -> None:
    source = '''
class Basket:
    """Holds `items`."""

    def __init__(self, items: list[str], owner: str, *, size: int = 1) -> None:
        self.size = size
        """How many it takes."""

    @property
    def full(self) -> bool: ...

    def add(self, item: str, *, twice: bool = False) -> None:
        """Put an item into it."""

@dataclass
class Told:
    """Has a `label`."""

    label: str
    weight: int
    """In grams."""
    colour: str = ""

def pay(amount: int, *, currency: str, tip: int = 0) -> None:
    """In this `currency`."""

def ship() -> None: ...
'''
    place = tmp_path / "shop.py"
    place.write_text("from dataclasses import dataclass\n" + source)
    spec = importlib.util.spec_from_file_location("shop", place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["shop"] = module
    try:
        spec.loader.exec_module(module)
        vars(module)["__all__"] = ["Basket", "Told", "pay", "ship"]
        found = list(find_silent([module]))
    finally:
        del sys.modules["shop"]
    assert found == [
        "shop.Basket.owner",
        "shop.Basket.full",
        "shop.Basket.add(twice)",
        "shop.Told.colour",
        "shop.pay(tip)",
        "shop.ship",
    ]
