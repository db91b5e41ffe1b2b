"""The page of the command line: every command with its arguments and options, as typer has them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from book.tables import code, write_table
from onefold._cli.commands import assemble

_HEAD = """\
# The options of the commands

Every command with its arguments and options, as `onefold COMMAND --help` has them. What the commands are for, examples
and exit codes are in [commands](../commands.md). An option with a variable beside it takes its value from there when it
is not given.

"""


def make_page() -> str:
    root: Any = typer.main.get_command(assemble([]))
    return _HEAD + "".join(_describe(command, f"onefold {name}", 2) for name, command in root.commands.items())


def list_commands() -> list[str]:
    """Each command in full, as it is typed."""
    root: Any = typer.main.get_command(assemble([]))
    return list(_names(root, "onefold"))


def _names(command: Any, name: str) -> Iterator[str]:
    for word, each in getattr(command, "commands", {}).items():
        yield f"{name} {word}"
        yield from _names(each, f"{name} {word}")


def _describe(command: Any, name: str, level: int) -> str:
    text = f"{'#' * level} {name}\n\n{_plain(command.help or '')}\n\n"
    text += write_table(["option", "default", "meaning"], _list_parameters(command))
    for word, each in getattr(command, "commands", {}).items():
        text += _describe(each, f"{name} {word}", level + 1)
    return text


def _plain(help_text: str) -> str:
    """Without what only a terminal is told: rich's marks, and the sign that a paragraph keeps its lines."""
    return re.sub(r"\[/?[a-z][a-z ]*\]", "", help_text.replace("\b", "")).strip()


def _list_parameters(command: Any) -> Iterator[tuple[str, str, str]]:
    for each in command.params:
        if getattr(each, "hidden", False):
            continue
        argument = each.param_type_name == "argument"
        names = each.name.upper() if argument else ", ".join([*each.opts, *each.secondary_opts])
        shown = each.default if each.default not in (None, "", False, ()) and not callable(each.default) else ""
        limits = [
            f"{word} {limit}" for word, limit in (("at least", each.min), ("at most", each.max)) if limit is not None
        ]
        meaning = " ".join(filter(None, [_plain(each.help or ""), ", ".join(limits).capitalize()]))
        if each.envvar:
            meaning += f" Variable: `{each.envvar}`."
        yield code(names), "*required*" if each.required else code(shown), meaning
