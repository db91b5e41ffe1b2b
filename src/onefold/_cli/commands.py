"""The commands, put together: of those that are there, the one that is meant.

Reading a command's options takes typer about as long as many commands run, and each imports a part of onefold that the
others do not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

import onefold

#: In the order of the help. Each is a module with a `command`, or, where it has commands of its own, an `app`.
NAMES: Final = (
    "init", "migrate", "reap", "relay", "consume", "complete", "consumers", "storm", "verify", "outbox", "recurring",
    "endpoints", "dlq", "keys", "intents", "saga", "asyncapi", "metrics", "docs", "doctor", "capacity",
    "console",
)  # fmt: skip


def assemble(words: Sequence[str]) -> typer.Typer:
    """With the command that the first word names; with all of them where it names none: help, or a mistake."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
    app.callback(invoke_without_command=True)(_root)
    for name in words[:1] if words and words[0] in NAMES else NAMES:
        module = import_module(f"onefold._cli.{name}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name, context_settings=getattr(module, "CONTEXT", None))(module.command)
    return app


def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Retry it as often as you like. It happens once."""
    if show_version:
        typer.echo(f"onefold {onefold.__version__}")
        raise typer.Exit
