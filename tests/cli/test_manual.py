"""The help reads like a manual: groups, an example for each command, exit codes; docs/commands.md says the same."""

from __future__ import annotations

import os
import pty
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from onefold._cli.commands import NAMES, assemble
from onefold._cli.manual import EXAMPLES, EXIT_CODES, GROUPS, epilog_of, rows_of
from tests.cli.commands import MAIN, Shop, command_line, onefold, surroundings, told
from tests.cli.page import PAGE, write_page
from tests.support.patience import PATIENCE_S

#: And why: what they print is a document in a format of its own, or they serve until they are stopped.
WITHOUT_JSON = {
    "asyncapi": "a document of AsyncAPI, which is JSON",
    "metrics": "rules for Prometheus, or a dashboard for Grafana, which is JSON",
    "console": "serves pages, and logs as --log-format says",
}


@pytest.fixture(scope="module")
def root() -> Any:
    return typer.main.get_command(assemble([]))


def find(root: Any, path: str) -> Any:
    for word in path.split():
        root = root.commands[word]
    return root


def test_every_command_has_an_example_of_options_that_it_has(root: Any) -> None:
    paths = {row.path for row in rows_of(root)} | set(NAMES)
    assert paths == set(EXAMPLES)
    for path, examples in EXAMPLES.items():
        command = find(root, path)
        assert command.epilog == epilog_of(path)
        known = {option for parameter in (*root.params, *command.params) for option in parameter.opts}
        for below in getattr(command, "commands", {}).values():
            known |= {option for parameter in below.params for option in parameter.opts}
        for example in examples:
            words = shlex.split(example)
            assert words[0] == "onefold"
            assert [word for word in path.split() if word not in words] == []
            parent = find(root, path.split()[0])
            known |= {option for parameter in parent.params for option in parameter.opts}
            assert {word for word in words if re.fullmatch(r"--?[a-z][a-z-]*", word)} <= known, example
            needed = [each.opts for each in command.params if each.required and each.param_type_name == "option"]
            assert [options for options in needed if not set(options) & set(words)] == [], example


def read_only(command: Any) -> Any:
    """The command with all below it, which read their words and do nothing."""
    command.callback = lambda **given: None
    for below in getattr(command, "commands", {}).values():
        read_only(below)
    return command


def test_every_example_is_understood_by_its_command() -> None:
    reader = read_only(typer.main.get_command(assemble([])))
    for example in {example for examples in EXAMPLES.values() for example in examples}:
        words = shlex.split(example.partition(" > ")[0])
        reader.main(words[1:], standalone_mode=False)


def test_control_a_word_too_many_is_not_understood() -> None:
    reader = read_only(typer.main.get_command(assemble([])))
    with pytest.raises(Exception, match="unexpected extra argument"):
        reader.main(["consumers", "pause", "shipping", "shop:once"], standalone_mode=False)


def test_every_command_that_prints_something_prints_json(root: Any) -> None:
    without = {
        row.path
        for row in rows_of(root)
        if not any("--json" in parameter.opts for parameter in find(root, row.path).params)
    }
    assert without == WITHOUT_JSON.keys()


def test_the_page_of_commands_says_what_the_commands_say() -> None:
    assert PAGE.read_text(encoding="utf-8") == write_page(), "run python -m tests.cli.page"


def test_the_help_has_groups_examples_and_exit_codes() -> None:
    asked = onefold("--help", COLUMNS="200", TERM="dumb", NO_COLOR="1")
    assert asked.returncode == 0
    for text in (*GROUPS, "Examples:", "Exit codes:", "--install-completion", *EXIT_CODES):
        assert text in asked.stdout, text
    assert EXIT_CODES["1"][:60] in asked.stdout


@pytest.mark.parametrize(
    ("words", "code"),
    [(("docs",), "0"), (("reap", "-d", "typo.db"), "2"), (("nonsense",), "2"), (("outbox", "-d", "nowhere"), "1")],
)
def test_exit_codes_are_those_of_the_table(words: tuple[str, ...], code: str, tmp_path: Path) -> None:
    assert code in EXIT_CODES
    assert onefold(*words, cwd=tmp_path).returncode == int(code)


@pytest.mark.parametrize(
    ("typed", "completed"), [("onefold doc", {"docs", "doctor"}), ("onefold dlq re", {"redrive", "resume"})]
)
def test_a_shell_completes_commands(typed: str, completed: set[str]) -> None:
    asked = onefold(_ONEFOLD_COMPLETE="complete_bash", COMP_WORDS=typed, COMP_CWORD=str(len(typed.split()) - 1))
    assert set(asked.stdout.split()) == completed, asked.stderr


def test_what_takes_long_is_shown_on_a_terminal_and_nowhere_else(shop: Shop) -> None:
    ours, theirs = pty.openpty()
    with (
        Path(os.devnull).open() as nothing,
        (shop.folder / "out").open("wb") as out,
        os.fdopen(theirs, "wb") as terminal,
    ):
        process = command_line().start(
            *MAIN, "reap", "-d", "shop.db", cwd=shop.folder, environment=surroundings({"TERM": "xterm"}),
            streams=(nothing, out, terminal),
        )  # fmt: skip
    shown = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal_end:
        while True:
            try:
                shown += terminal_end.read(1000)
            except OSError:  # the other end is closed
                break
    assert process.wait(PATIENCE_S) == 0
    assert b"deleting what has expired" in shown
    assert (shop.folder / "out").read_text() == "forgotten: 0 records\n"
    assert shop.onefold("reap", "-d", "shop.db").stderr == ""


def test_migrate_and_docs_print_json(tmp_path: Path) -> None:
    made = told(onefold("migrate", "-d", "new.db", "--json", cwd=tmp_path))
    assert made["created"]
    assert made["applied"][0] == 1
    assert told(onefold("docs", "--json"))["glossary"] == "Glossary"
    assert told(onefold("docs", "glossary", "--json"))["text"].startswith("# Glossary")
