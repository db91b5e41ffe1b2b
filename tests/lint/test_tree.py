"""The tree keeps its own rules, and each rule finds the violation that is planted for it."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import onefold
from tests.conftest import SLOW
from tests.lint import checks
from tests.lint.checks import Finding, Source
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "onefold"

Check = Callable[[Source], Iterator[Finding]]

#: Why some class names stand in several modules: names that repeat as a pattern, so that a reader knows one by another.
REPEATED = {
    "Dialect": "of the statement sets of each feature",
    "FastConnection": "of each driver that has a fast path",
    "IdempotencyMiddleware": "of the adapters of ASGI and WSGI",
    "Opened": "of each driver that opens a pool per event loop",
    "Postgres": "of the statement sets of each feature",
    "Receipt": "of each broker: what it needs to acknowledge a delivery",
    "SheddingMiddleware": "of the adapters of ASGI and WSGI",
    "Sqlite": "of the statement sets of each feature",
    "Statements": "of the statement sets of each feature",
    "WatchedResponse": "of the adapters of ASGI and WSGI",
}

#: Why some module names stand in several folders, for the same reason.
REPEATED_MODULES = {
    "__main__": "of each package that is a command: `python -m`",
    "_broker": "of each broker that is a folder",
    "_connection": "of each driver and broker that is a folder",
    "_errors": "of each driver that is a folder: a vendor's errors as ours",
    "asgi": "of the HTTP layer and of shedding, each of which is middleware",
    "model": "of each feature: its values",
    "postgres": "of the statement sets of each feature",
    "retention": "of each feature: what is deleted when",
    "schema": "of each feature: its tables",
    "sqlite": "of the statement sets of each feature",
    "statements": "of the statement sets of each feature",
    "wsgi": "of the HTTP layer and of shedding, each of which is middleware",
}


@functools.cache
def modules() -> tuple[Source, ...]:
    found = ((path.relative_to(PACKAGE).as_posix(), path) for path in sorted(PACKAGE.rglob("*.py")))
    return tuple(Source(path=name, text=path.read_text(encoding="utf-8")) for name, path in found)


@functools.cache
def texts() -> tuple[Source, ...]:
    found = ((path.as_posix(), checks.text_of(ROOT / path)) for path in checks.project_files(ROOT))
    return tuple(Source(path=path, text=text) for path, text in found if text is not None)


@pytest.fixture(scope="module", autouse=True)
def what_was_read() -> Iterator[None]:
    """It is read and parsed once for all the rules, and not kept for the other tests of the worker."""
    yield
    for kept in (modules, texts, checks.parse):
        kept.cache_clear()


def findings(check: Check, sources: Iterable[Source]) -> str:
    return "\n".join(str(finding) for source in sources for finding in check(source))


def import_alone(package_parent: Path, package: str) -> subprocess.CompletedProcess[str]:
    """Import a package in an interpreter that has no site-packages."""
    program = f"import sys; sys.path.insert(0, {str(package_parent)!r}); import {package}"
    command = [sys.executable, "-I", "-S", "-B", "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


# The rules


def test_the_rules_see_the_package_and_the_project() -> None:
    assert "__init__.py" in {source.path for source in modules()}
    assert {"pyproject.toml", ".ci/run", "tests/lint/test_tree.py"} <= {source.path for source in texts()}


def test_what_begins_first_is_there() -> None:
    assert not [path for path in SLOW if not (ROOT / path).is_file()]


def test_the_hooks_run_the_tools_of_make_check() -> None:
    check = (ROOT / "Makefile").read_text().partition("\ncheck: $(READY)\n")[2].partition("\n\n")[0]
    hooks = re.findall(r"entry: \.venv/bin/(.+)", (ROOT / ".pre-commit-config.yaml").read_text())
    hooks.remove("python -m pytest -q tests/lint")
    assert {_tool(line) for line in hooks} == {_tool(line) for line in re.findall(r"\$\(BIN\)/(.+)", check)}


def _tool(command: str) -> str:
    """The program and its verb, without what it is run on."""
    return " ".join(re.findall(r"^ruff \w+|^[\w-]+", command))


def test_texts_name_who_is_meant() -> None:
    pages = (source for source in texts() if source.path.endswith(".md"))
    assert not findings(checks.riddles, modules())
    assert not findings(checks.riddles, pages)


def test_no_module_is_too_long_to_read() -> None:
    assert not findings(checks.long_file, modules())


def test_no_function_is_too_long_to_read() -> None:
    assert not findings(checks.long_functions, modules())


def test_every_module_says_what_it_is_for() -> None:
    assert not findings(checks.silent_module, modules())


def test_every_exported_class_and_function_says_what_it_is_for() -> None:
    exported = {name: getattr(onefold, name) for name in onefold.__all__}
    assert not list(checks.silent_names(exported))


def test_the_lower_floors_import_the_standard_library_only() -> None:
    assert not findings(checks.foreign_imports, modules())


def test_the_package_imports_where_nothing_is_installed() -> None:
    assert not import_alone(PACKAGE.parent, "onefold").stderr


def test_drivers_are_imported_in_db_only() -> None:
    assert not findings(checks.stray_drivers, modules())


def test_nothing_below_the_edge_reaches_for_time_chance_or_settings() -> None:
    assert not findings(checks.ambient_reach, modules())


def test_nothing_runs_what_it_reads() -> None:
    assert not findings(checks.unsafe_loading, modules())


def test_no_check_is_silenced() -> None:
    assert not findings(checks.silenced_checks, modules())


def test_every_python_file_has_a_name_that_says_something() -> None:
    python = (source for source in texts() if source.path.endswith(".py"))
    assert not findings(checks.nameless_module, python)


def test_a_class_has_a_name_of_its_own() -> None:
    assert not "\n".join(str(finding) for finding in checks.repeated_classes(modules(), REPEATED))


def test_a_module_has_a_name_of_its_own() -> None:
    assert not "\n".join(str(finding) for finding in checks.repeated_modules(modules(), REPEATED_MODULES))


def test_no_file_names_a_path_of_one_machine() -> None:
    assert not findings(checks.machine_paths, texts())


def test_no_file_is_marked_as_unfinished() -> None:
    assert not findings(checks.unfinished_marks, texts())


# The controls: planted violations, and beside each the nearest thing that is allowed

SIXTY_LINES = "def settle():\n" + "    pass\n" * 59


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    check: Check
    path: str = "_outbox/relay_session.py"
    bad: str
    good: str
    good_path: str | None = None


CONTROLS = {
    "401 lines": Control(check=checks.long_file, bad="x = 1\n" * 401, good="x = 1\n" * 400),
    "61 lines": Control(check=checks.long_functions, bad=SIXTY_LINES + "    pass\n", good=SIXTY_LINES),
    "61 async lines": Control(
        check=checks.long_functions, bad=f"async {SIXTY_LINES}    pass\n", good=f"async {SIXTY_LINES}"
    ),
    "no docstring": Control(check=checks.silent_module, bad="x = 1\n", good='"""Counts."""\nx = 1\n'),
    "nothing to document": Control(check=checks.silent_module, bad='""\nx = 1\n', good=""),
    "utils": Control(
        check=checks.nameless_module, path="outbox/utils.py", bad="", good="", good_path="_outbox/event_checks.py"
    ),
    "core folder": Control(
        check=checks.nameless_module, path="_core/__init__.py", bad="", good="", good_path="score/__init__.py"
    ),
    "foreign import": Control(check=checks.foreign_imports, bad="import httpx\n", good="import onefold.errors\n"),
    "foreign from": Control(
        check=checks.foreign_imports, bad="from httpx import Client\n", good="from json import loads\n"
    ),
    "foreign in errors": Control(
        check=checks.foreign_imports, path="errors.py", bad="import attrs\n", good="from . import model\n"
    ),
    "foreign in a function": Control(
        check=checks.foreign_imports,
        bad="def f():\n    import_module('httpx')\n",
        good="def f():\n    import_module('json')\n",
    ),
    "foreign above": Control(
        check=checks.foreign_imports,
        bad="import fastapi\n",
        good="import fastapi\n",
        good_path="_http/fastapi_dependencies.py",
    ),
    "nobody": Control(check=checks.riddles, bad="# nobody waits\n", good='pwd.getpwnam("nobody")\n'),
    "cryptography": Control(
        check=checks.foreign_imports,
        path="_idempotency/flow.py",
        bad="from cryptography.fernet import Fernet\n",
        good="from cryptography.fernet import Fernet\n",
        good_path="_idempotency/encryption.py",
    ),
    "driver": Control(
        check=checks.stray_drivers,
        path="_app.py",
        bad="import asyncpg\n",
        good="import asyncpg\n",
        good_path="db/asyncpg.py",
    ),
    "driver for typing": Control(
        check=checks.stray_drivers,
        path="_http/fastapi_dependencies.py",
        bad="if TYPE_CHECKING:\n    from sqlalchemy.ext.asyncio import AsyncSession\n",
        good="if TYPE_CHECKING:\n    from fastapi import FastAPI\n",
    ),
    "sleep": Control(check=checks.ambient_reach, bad="import time as t\nt.sleep(1)\n", good="pause.sleep(1)\n"),
    "sleep by name": Control(
        check=checks.ambient_reach, bad="from time import sleep\n", good="from time import strftime\n"
    ),
    "now": Control(
        check=checks.ambient_reach,
        path="_policy/budget.py",
        bad="import datetime\nx = datetime.datetime.now(datetime.UTC)\n",
        good="import datetime\nx = datetime.datetime(2030, 1, 1, tzinfo=datetime.UTC)\n",
    ),
    "now by name": Control(
        check=checks.ambient_reach,
        bad="from datetime import datetime as moment\nx = moment.now\n",
        good="from datetime import datetime as moment\nx = moment.min\n",
    ),
    "chance": Control(
        check=checks.ambient_reach,
        path="_policy/backoff.py",
        bad="from random import Random\n",
        good="def jitter(random: Chance) -> float:\n    return random.uniform(0, 1)\n",
    ),
    "uuid4": Control(
        check=checks.ambient_reach,
        path="_inbox/consumer.py",
        bad="import uuid\nx = uuid.uuid4()\n",
        good="import uuid\nx = uuid.UUID(int=1)\n",
    ),
    "settings": Control(
        check=checks.ambient_reach,
        path="_kernel/ports.py",
        bad="import os\nx = os.environ['HOME']\n",
        good="import os\nx = os.sep\n",
    ),
    "the clock itself": Control(
        check=checks.ambient_reach,
        path="_kernel/effects.py",
        bad="import time\nx = time.monotonic()\n",
        good="import time\nx = time.monotonic()\n",
        good_path="_kernel/clock.py",
    ),
    "pickle": Control(check=checks.unsafe_loading, path="cli/a.py", bad="import pickle\n", good="import json\n"),
    "marshal": Control(
        check=checks.unsafe_loading,
        path="db/a.py",
        bad="from marshal import loads\n",
        good="from json import loads\n",
    ),
    "eval": Control(
        check=checks.unsafe_loading,
        path="db/a.py",
        bad="x = eval('1')\n",
        good="x = redis.eval('return 1')\n",
    ),
    "builtins.exec": Control(
        check=checks.unsafe_loading, path="db/a.py", bad="builtins.exec('1')\n", good="builtins.len('1')\n"
    ),
    "ignored type": Control(
        check=checks.silenced_checks, bad="x = 1  # type: ignore[assignment]\n", good="x = '# type: ignore'\n"
    ),
    "ignored lint": Control(
        check=checks.silenced_checks,
        path="db/asyncpg.py",
        bad="x = 1  # noqa: E501\n",
        good="x = '# noqa: E501'\n",
    ),
    "machine path": Control(check=checks.machine_paths, bad="see /" + "root/x\n", good="see ./root/x, my/root/x\n"),
    "machine path first": Control(check=checks.machine_paths, bad="a\n/" + "work/x\n", good="a\n/workshop/x\n"),
    "unfinished": Control(check=checks.unfinished_marks, bad="# TO" + "DO: later\n", good="# to do is to be\n"),
    "still unfinished": Control(check=checks.unfinished_marks, bad="FIX" + "ME\n", good="mktemp " + "X" * 6),
}


@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS)
def test_a_planted_violation_is_found(control: Control) -> None:
    assert len(list(control.check(Source(path=control.path, text=control.bad)))) >= 1


@pytest.mark.parametrize("control", CONTROLS.values(), ids=CONTROLS)
def test_what_only_resembles_a_violation_is_left_alone(control: Control) -> None:
    assert not list(control.check(Source(path=control.good_path or control.path, text=control.good)))


def test_a_finding_names_the_file_the_line_and_the_way_out() -> None:
    [finding] = checks.stray_drivers(Source(path="_app.py", text="\nimport psycopg.rows\n"))
    assert str(finding) == "_app.py:2: imports the driver psycopg.rows: drivers live in db"


def test_a_class_name_in_two_modules_is_found_and_so_is_a_permission_that_is_not_needed() -> None:
    texts = {"a.py": "class Link: ...\n", "b.py": "x = 1\n\nclass _Link: ...\n", "c.py": "class Line: ...\n"}
    sources = [Source(path=path, text=text) for path, text in texts.items()]
    [twice] = checks.repeated_classes(sources, {})
    assert (twice.path, twice.line, "a.py" in twice.message) == ("b.py", 3, True)
    assert not list(checks.repeated_classes(sources, {"Link": "control"}))
    assert [finding.message.split()[0] for finding in checks.repeated_classes(sources, {"Link": "", "Line": ""})] == [
        "Line"
    ]


def test_a_module_name_in_two_folders_is_found_and_patterns_are_not() -> None:
    texts = {
        "_http/keys.py": "",
        "_cli/keys.py": "",
        "_inbox/registry.py": "",
        "_inbox/sql/registry.py": "",
        "_worker/arq.py": "",
        "arq.py": "from onefold._worker.arq import handled_once\n",
        "_steps/schema.py": "",
        "_saga/schema.py": "",
    }
    sources = [Source(path=path, text=text) for path, text in texts.items()]
    twice = [finding.path for finding in checks.repeated_modules(sources, {"schema": "control"})]
    assert twice == ["arq.py"]
    *_, unneeded = checks.repeated_modules(sources, {"schema": "control", "keys": "control"})
    assert unneeded.message == "keys is allowed twice and is not: take it out"


def test_an_exported_name_without_a_docstring_of_its_own_is_found() -> None:
    @dataclass
    class GeneratedByDataclass:
        key: str

    class GeneratedByNamedTuple(NamedTuple):
        key: str

    class Parent:
        """Told."""

    class Silent(Parent): ...

    def silent() -> None: ...

    class Told(Exception):
        """Told."""

    exported = {
        "GeneratedByDataclass": GeneratedByDataclass,
        "GeneratedByNamedTuple": GeneratedByNamedTuple,
        "Parent": Parent,
        "Silent": Silent,
        "silent": silent,
        "Told": Told,
        "A_CONSTANT": 1,
    }
    found = set(checks.silent_names(exported))
    assert found == {"GeneratedByDataclass", "GeneratedByNamedTuple", "Silent", "silent"}


def test_a_package_that_needs_something_installed_does_not_import_alone(tmp_path: Path) -> None:
    (tmp_path / "needy.py").write_text("import pytest\n")
    assert "No module named 'pytest'" in import_alone(tmp_path, "needy").stderr


def test_without_git_the_files_of_the_project_are_found_and_the_rest_is_not(tmp_path: Path) -> None:
    ours = {".ci/run", ".github/pull_request_template.md", "Makefile", "src/onefold/_app.py"}
    for name in ours | {".venv/lib/x.py", "src/onefold/__pycache__/_app.pyc", ".coverage"}:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    assert {path.as_posix() for path in checks.project_files(tmp_path)} == ours


def test_a_binary_file_has_no_text(tmp_path: Path) -> None:
    for name, content in {"nul": b"a\0b", "latin": b"caf\xe9"}.items():
        (tmp_path / name).write_bytes(content)
        assert checks.text_of(tmp_path / name) is None
    (tmp_path / "text").write_text("café", encoding="utf-8")
    assert checks.text_of(tmp_path / "text") == "café"
