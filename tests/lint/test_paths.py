"""The pages that show the way around the tree are true: what they name is there, and what is there is named."""

from __future__ import annotations

import importlib
import re
import sqlite3
import tomllib
from contextlib import closing
from pathlib import Path

import pytest

from onefold._app.migrations import migrate_embedded

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "onefold"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
STABILITY = (ROOT / "docs" / "stability.md").read_text()
TESTS = ROOT / "tests" / "README.md"

#: Where the paths of a page count from, beside the root of the project.
PLACES = {
    ARCHITECTURE: PACKAGE,
    ROOT / "docs" / "glossary.md": PACKAGE,
    TESTS: ROOT / "tests",
    **dict.fromkeys(sorted((ROOT / "docs" / "why").glob("*.md")), PACKAGE),
}

#: A file, or a folder with a slash at its end.
_PATH = re.compile(r"(?<![\w/.*:])(?<!\]\()[\w.]*\w/(?:[\w.-]+/)*(?:[\w.-]+\.(?:py|md|toml))?(?![\w*])")


def missing(text: str, *places: Path) -> list[str]:
    return [path for path in _PATH.findall(text) if not any((place / path).exists() for place in places)]


@pytest.mark.parametrize("page", PLACES, ids=lambda page: page.stem)
def test_every_path_of_a_page_exists(page: Path) -> None:
    assert not missing(page.read_text(), ROOT, PLACES[page])


def test_a_path_that_is_not_there_is_found() -> None:
    text = "`_http/asgi.py`, `_http/nothing.py`, tests/nowhere/, `tests/lint/`, https://example.org/a/path.py, and/or"
    assert missing(text, ROOT, PACKAGE) == ["_http/nothing.py", "tests/nowhere/"]


def test_the_walks_name_enough_to_be_walked() -> None:
    assert len(set(_PATH.findall(ARCHITECTURE.read_text()))) > 60


@pytest.mark.parametrize(
    ("path", "name"), re.findall(r"^\|[^|]+\| `([\w/]+\.py)` \| `(\w+)` \|$", ARCHITECTURE.read_text(), re.MULTILINE)
)
def test_an_answer_of_the_table_is_in_its_file(path: str, name: str) -> None:
    assert re.search(rf"\b{name}\b", (PACKAGE / path).read_text())


def test_the_tables_that_are_listed_are_those_that_there_are(tmp_path: Path) -> None:
    listed = dict(
        re.findall(r"^\| `(onefold_\w+)` \|[^|]+\| `([\w/]+\.py)` \|$", ARCHITECTURE.read_text(), re.MULTILINE)
    )
    migrate_embedded(tmp_path / "shop.db")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        found = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'onefold%'")
        assert listed.keys() == {name for (name,) in found}
    assert not [name for name, path in listed.items() if f"CREATE TABLE {name}" not in (PACKAGE / path).read_text()]


def test_the_floors_that_are_drawn_are_those_that_are_enforced() -> None:
    contract = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"][0]
    floors = [set(re.findall(r"\w+", layer)) for layer in contract["layers"]]
    drawings = re.findall(r"```diagram\n(.*?)```", ARCHITECTURE.read_text(), re.DOTALL)
    [drawing] = [block for block in drawings if "_kernel  " in block]
    drawn = [re.findall(r"^ (\w+)|\| (\w+)", line) for line in drawing.splitlines() if re.match(r"[ |]", line)]
    rows = [{first or second for first, second in row} for row in drawn]
    assert len(rows) > 6
    position = -1
    for row in rows:
        [position] = [number for number, floor in enumerate(floors) if row <= floor and number > position]
    there = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    private = {name for name in there if name.startswith("_") and not name.startswith("__")}
    assert private <= set().union(*rows)


def test_every_folder_of_tests_is_named() -> None:
    folders = {path.name for path in TESTS.parent.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert not [name for name in sorted(folders) if f"`{name}/" not in TESTS.read_text()]


def public_paths() -> set[str]:
    table = STABILITY.partition("## What is public")[2].partition("\n##")[0]
    return set(
        re.findall(r"`(onefold(?:\.\w+)*)(?:\.\*)?`", "\n".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    )


@pytest.mark.parametrize("path", sorted(public_paths()))
def test_a_public_module_can_be_imported(path: str) -> None:
    assert importlib.import_module(path).__doc__


def test_every_module_without_an_underscore_is_listed_as_public() -> None:
    modules = {
        f"onefold.{path.stem}"
        for path in PACKAGE.iterdir()
        if not path.name.startswith("_") and (path.suffix == ".py" or (path / "__init__.py").exists())
    }
    assert modules | {"onefold"} == public_paths()
