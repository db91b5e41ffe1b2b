"""Assembles the typer application with only the command that the arguments name.

Reading a command's options takes typer about as long as many commands run, and each imports parts of onefold that the
others do not need.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

import onefold
from onefold._cli.manual import GROUPS, describe, epilog_of, panel_of, root_epilog
from onefold._kernel.redaction import redact

#: Each is a module with a `command`, or, where it has commands of its own, an `app`.
NAMES: Final = tuple(name for names in GROUPS.values() for name in names)

#: Of click, or of the copy of it that later versions of typer have.
_UsageError: Final[Any] = typer.BadParameter.__base__


@contextmanager
def _without_secrets() -> Iterator[None]:
    """Leave secrets of addresses out of what typer says of arguments in the wrong place: it repeats them."""
    try:
        yield
    except _UsageError as error:
        for argument in sys.argv[1:]:
            for given in (argument, argument.partition("=")[2], argument[2:]):
                if given and (shown := redact(given)) != given:
                    error.message = error.message.replace(given, shown).replace(repr(given)[1:-1], shown)
        raise


#: Commands below have it from here.
_CONTEXT: Final = {"help_option_names": ["-h", "--help"]}


class _Root(TyperGroup):
    """The commands, none of which repeats a secret."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        with _without_secrets():
            return super().make_context(*args, **kwargs)

    def invoke(self, *args: Any, **kwargs: Any) -> Any:
        with _without_secrets():
            return super().invoke(*args, **kwargs)


def assemble(arguments: Sequence[str]) -> typer.Typer:
    """With the command that the first argument names; with all of them where it names none: help, or a mistake."""
    app = typer.Typer(cls=_Root, no_args_is_help=True, pretty_exceptions_enable=False, context_settings=_CONTEXT)
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
