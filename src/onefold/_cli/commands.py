"""Assembles the typer application with only the command that the arguments name.

Reading a command's options takes typer about as long as many commands run, and each imports parts of onefold that the
others do not need.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

import onefold
from onefold._cli.manual import GROUPS, describe, epilog_of, panel_of, root_epilog

#: Each is a module with a `command`, or, where it has commands of its own, an `app`.
NAMES: Final = tuple(name for names in GROUPS.values() for name in names)


def assemble(arguments: Sequence[str]) -> typer.Typer:
    """With the command that the first argument names; with all of them where it names none: help, or a mistake."""
    app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True, epilog=root_epilog())(_root)
    for name in arguments[:1] if arguments and arguments[0] in NAMES else NAMES:
        module = import_module(f"onefold._cli.{name}")
        panel, epilog = panel_of(name), epilog_of(name)
        if hasattr(module, "app"):
            describe(name, module.app)
            app.add_typer(module.app, name=name, rich_help_panel=panel, epilog=epilog)
        else:
            settings = getattr(module, "CONTEXT", None)
            app.command(name, context_settings=settings, rich_help_panel=panel, epilog=epilog)(module.command)
    return app


def _root(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    """Retry it as often as you like. It happens once.

    What operators do with the tables of an application that uses onefold: make them, publish what waits in them, run
    consumers, and look at what went wrong. Results go to stdout, everything else to stderr.
    """
    if show_version:
        typer.echo(f"onefold {onefold.__version__}")
        raise typer.Exit
