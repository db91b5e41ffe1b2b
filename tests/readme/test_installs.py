"""What a page says to install is enough for its programs and commands: nothing else is on its reader's machine.

Nothing is installed here: what each requirement brings is read from the metadata of what the tests have.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
EXTRAS: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]

_INSTALL = re.compile(r"pip install((?:\s+(?:'[^']+'|[a-z][\w-]*(?:\[[\w,-]+\])?(?=[\s`.,)]|$)))+)", re.MULTILINE)
_PROGRAM = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_NAME = re.compile(r"# ([\w/]+)\.py\n")
_COMMAND = re.compile(r"^\$ (\w+)", re.MULTILINE)

#: Commands that come in a distribution, and which.
_COMMANDS = {"onefold": "typer", "uvicorn": "uvicorn", "alembic": "alembic", "gunicorn": "gunicorn"}
_DISTRIBUTIONS = packages_distributions()


def brought_by(words: str) -> set[str]:
    """All distributions that a command installs."""
    found: set[str] = set()
    waiting = [Requirement(word) for word in re.findall(r"'([^']+)'|(\S+)", words) for word in word if word]
    seen: set[str] = set()
    while waiting:
        asked = waiting.pop()
        if str(asked) in seen:
            continue
        seen.add(str(asked))
        found.add(canonicalize_name(asked.name))
        waiting += list(_brought(asked))
    return found


def _brought(asked: Requirement) -> Iterator[Requirement]:
    if asked.name == "onefold":
        yield from (Requirement(line) for extra in asked.extras for line in EXTRAS[extra])
        return
    try:
        lines = requires(asked.name) or []
    except PackageNotFoundError:  # of another machine, or not among what the tests have
        return
    for line in map(Requirement, lines):
        if line.marker is None or any(line.marker.evaluate({"extra": extra}) for extra in ("", *asked.extras)):
            yield line


def needed_by(text: str) -> Iterator[tuple[str, set[str]]]:
    """What the programs and the commands of a page use: its name, and the distributions of which one has it."""
    programs = _PROGRAM.findall(text)
    own = {name.partition("/")[0] for program in programs for name in _NAME.findall(program)}
    for program in programs:
        for node in ast.walk(ast.parse(program)):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            for name in filter(None, names):
                top, _, rest = name.partition(".")
                if name == "onefold.testing.servers":
                    yield name, {canonicalize_name(Requirement(EXTRAS["servers"][-1]).name)}
                elif top == "onefold" and rest in EXTRAS and rest not in ("sqlalchemy",):
                    yield name, {canonicalize_name(Requirement(EXTRAS[rest][0]).name)}
                elif rest == "testclient":
                    yield name, {"httpx", "httpx2"}
                elif top not in {*sys.stdlib_module_names, "onefold", *own}:
                    yield name, {canonicalize_name(each) for each in _DISTRIBUTIONS[top]}
    for command in _COMMAND.findall(text):
        if command in _COMMANDS:
            yield f"$ {command}", {_COMMANDS[command]}


def find_gaps(text: str) -> list[str]:
    brought = set().union(*map(brought_by, _INSTALL.findall(text)))
    gaps = {f"{name}: {' or '.join(sorted(had))}" for name, had in needed_by(text) if not had & brought}
    if "psycopg" in brought and "psycopg-binary" not in brought:
        gaps.add("psycopg finds no libpq on a bare machine: 'psycopg[binary]'")
    return sorted(gaps)


#: Pages without a program are for those who have one, and the command.
@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python\n" in page.read_text()], ids=lambda page: page.stem
)
def test_what_a_page_has_installed_is_enough_for_it(page: Path) -> None:
    assert find_gaps(page.read_text(encoding="utf-8")) == []


def test_what_is_missing_is_found() -> None:
    page = (
        "`pip install 'onefold[flask,psycopg]' httpx`.\n"
        "```python\n# shop.py\nimport os\nimport httpx\nimport stripe\nfrom flask import Flask\n"
        "from onefold.fastapi import Tx\nfrom tables import Row\n```\n"
        "```python\n# tables.py\nimport psycopg_pool\n```\n"
        "```console\n$ onefold migrate\n$ python shop.py\n```\n"
    )
    assert find_gaps(page) == [
        "$ onefold: typer",
        "onefold.fastapi: fastapi",
        "psycopg finds no libpq on a bare machine: 'psycopg[binary]'",
        "stripe: stripe",
    ]
    complete = page.replace("flask,psycopg]'", "flask,fastapi,cli,psycopg]' 'psycopg[binary]' stripe")
    assert find_gaps(complete) == []
