"""The pages in docs are true: every program in them runs and prints what the page says, every command exists."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.book.page_walk import WALKED
from tests.cli.commands import onefold
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").rglob("*.md"))

#: A program, and the console session that follows it.
_PROGRAM = re.compile(r"```python\n(# (\w+)\.py\n.*?)```\s*```console\n\$ python (\w+)\.py\n(.*?)```", re.DOTALL)

PROGRAMS = [
    pytest.param(program, name, run, printed, id=f"{page.stem}-{name}")
    for page in PAGES
    if page.name not in WALKED
    for program, name, run, printed in _PROGRAM.findall(page.read_text())
]

#: In a console, in a unit of systemd, in a manifest of Kubernetes.
_COMMAND = re.compile(r"^(?:\$ |ExecStart=\S+/)(onefold .*)$|^ *command: \[(onefold, .*)\]$", re.MULTILINE)

COMMANDS = sorted(
    {line or listed.replace(", ", " ") for page in PAGES for line, listed in _COMMAND.findall(page.read_text())}
)


def test_there_are_programs_and_commands_to_try() -> None:
    assert len(PROGRAMS) >= 3
    assert len(COMMANDS) >= 3


@pytest.mark.parametrize(("program", "name", "run", "printed"), PROGRAMS)
def test_a_program_prints_what_its_page_says(program: str, name: str, run: str, printed: str, tmp_path: Path) -> None:
    assert name == run
    (tmp_path / f"{name}.py").write_text(program)
    # Both streams in one, as a terminal shows them: what a program logs is part of what its reader sees.
    # Users have few plugins of pytest; those of our own tests take seconds to load.
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ran = fork_server().run(f"{name}.py", cwd=tmp_path, environment=environment, one_stream=True, within_s=PATIENCE_S)
    assert (_comparable(ran.stdout), ran.returncode) == (_comparable(printed), 0)


def test_the_tests_of_a_consumer_run_under_pytest_as_their_page_says(tmp_path: Path) -> None:
    [program] = [
        each for each, name, _, _ in _PROGRAM.findall((ROOT / "docs/testing.md").read_text()) if name == "test_shipping"
    ]
    [command] = re.findall(r"or: pytest (.*)", program)
    (tmp_path / "test_shipping.py").write_text(program)
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *command.split()], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert "3 passed" in ran.stdout, ran.stdout


def _comparable(text: str) -> str:
    """Without what is another one each time: the port of a server, and the jitter of a wait."""
    return re.sub(r"retried in [0-9.]+ s", "retried in ... s", re.sub(r"127\.0\.0\.1:[0-9]+", "127.0.0.1:...", text))


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in WALKED], ids=lambda page: page.stem)
def test_every_python_block_is_a_program_that_is_run(page: Path) -> None:
    assert len(re.findall(r"^```python$", page.read_text(), re.MULTILINE)) == len(_PROGRAM.findall(page.read_text()))


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.stem)
def test_a_program_with_an_onefold_to_name_runs_only_as_a_program(page: Path) -> None:
    """`onefold consume orders:once` imports the module, and must not run it."""
    for program in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        if re.search(r"^once = ", program, re.MULTILINE):
            assert not re.search(r"^asyncio\.run\(", program, re.MULTILINE), program.partition("\n")[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_and_its_options_exist(command: str) -> None:
    words = [word for word in shlex.split(command) if not word.startswith("...")]
    verbs = []
    for word in words[1:]:
        if not re.fullmatch(r"[a-z]+", word):
            break
        verbs.append(word)
    asked = onefold(*verbs, "--help", COLUMNS="200", TERM="dumb", NO_COLOR="1")
    assert asked.returncode == 0, asked.stderr
    for option in re.findall(r"--[a-z-]+", command):
        assert option in asked.stdout, f"{command}: there is no {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if target.startswith("https://"):
            continue
        file, _, heading = target.partition("#")
        there = page.parent / file if file else page
        assert there.exists(), target
        assert not heading or heading in _headings(there.read_text()), target


def _headings(text: str) -> set[str]:
    """As addresses inside of a page."""
    return {
        re.sub(r"[^\w -]", "", line).lower().replace(" ", "-") for line in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    }


def _untried(table: str, page: Path) -> list[str]:
    """The lines of a table whose second cell leads to no section with a program."""
    lines = [line.split(" | ") for line in re.findall(r"^\| (.*) \|$", table, re.MULTILINE)][1:]
    return [what for what, use, *_ in lines if not _leads_to_program(use, page)]


def _leads_to_program(cell: str, page: Path) -> bool:
    [target] = re.findall(r"\]\(([^)]+)\)", cell)
    file, _, heading = target.partition("#")
    for section in re.split(r"^(?=## )", (page.parent / file if file else page).read_text(), flags=re.MULTILINE):
        if section.strip() and (not heading or heading in _headings(section)):
            return _PROGRAM.search(section) is not None
    return False


def test_each_line_of_which_one_do_i_need_is_a_program() -> None:
    page = ROOT / "docs" / "which.md"
    text = page.read_text()
    assert len(re.findall(r"^\|---", text, re.MULTILINE)) == 1, "one table"
    assert _untried(text, page) == []
    for word in ("natural identity", "state change", "additive", "foreign call", "none of them"):
        assert word in text
    # A control: a line without one is found.
    assert _untried("| what | use |\n| it reads | [glossary](glossary.md) |", page) == ["it reads"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_is_named_by_the_readme(page: Path) -> None:
    """A page that only another page leads to is found by those who know that it exists."""
    assert f"({page.relative_to(ROOT)})" in (ROOT / "README.md").read_text()
