"""From `module:attribute` to the Onefold that it means. An error in it is told in one line."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import typer

from onefold._app import AsyncOnefold, Onefold
from onefold._app.base_app import run_flow
from onefold._cli.options import require_database
from onefold._http.install_checks import left_in
from onefold._kernel.effects import Flow
from onefold.db._drivers import dialect_of
from onefold.errors import ConfigurationError, OnefoldError, SchemaMissing, StoreError

AnyOnefold: TypeAlias = AsyncOnefold | Onefold

_GIVE = "give a Onefold, an AsyncOnefold, an application it is installed in, or a function that returns one of them"


def load_target(target: str) -> object:
    """Import what a target names. Before the loop starts: a module may run one of its own while it is imported."""
    if "://" in target:
        raise ConfigurationError(
            "the target is an address; it must be module:attribute, for example shop.app:once. Addresses go with "
            "--database and --broker"
        )
    name, separator, path = target.partition(":")
    module_name = _module_in(name)
    if module_name != name:
        meant = f"write {module_name}:{path}" if path else f"write {module_name}: and the name of the Onefold in it"
        raise ConfigurationError(f"target {target!r} names a file, and must be module:attribute; {meant}")
    if not separator or not name or not path:
        raise ConfigurationError(f"target {target!r} must be module:attribute, for example {name or 'shop.app'}:once")
    module = _import(name)
    value: object = module
    for step in path.split("."):
        try:
            value = getattr(value, step)
        except AttributeError:
            there = _names_in(module)
            raise ConfigurationError(f"{name!r} has no {path!r}" + (f"; it has {there}" if there else "")) from None
    return value


async def open_target(target: str, value: object) -> AnyOnefold:
    """The Onefold in what was loaded. A function is called on the loop that it will be used on."""
    if inspect.isroutine(value):
        needed = [
            parameter.name
            for parameter in inspect.signature(value).parameters.values()
            if parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        ]
        if needed:
            raise ConfigurationError(f"{target!r} is a function that needs {', '.join(needed)}; {_GIVE}")
        with _in_one_line(f"calling {target!r} failed"):
            value = value()
            if inspect.isawaitable(value):
                value = await value
    with _in_one_line(f"looking for a Onefold in {target!r} failed"):
        found = _onefold_in(value)
        is_application = hasattr(value, "add_middleware") or hasattr(value, "wsgi_app")
    if found is not None:
        return found
    if is_application:
        raise ConfigurationError(f"{target!r} is an application without onefold: call once.install(app) in its module")
    kind = "class" if isinstance(value, type) else type(value).__qualname__
    name = target.partition(":")[0]
    there = _names_in(sys.modules[name])
    raise ConfigurationError(f"{target!r} is a {kind}; {_GIVE}" + (f". {name!r} has {there}" if there else ""))


def from_target_or_addresses(
    context: typer.Context, target: str, database: str, broker: str, *, activity: bool = False
) -> Callable[[], Awaitable[AnyOnefold]]:
    """What makes the Onefold that a command works on: a target, or one of the addresses that were given."""
    return _from_target(context, target) if target else _from_addresses(database, broker, activity=activity)


async def refuse_missing_tables(once: AnyOnefold, *questions: Callable[[str], Flow[Any]]) -> None:
    """Workers wait for a database that is away; for missing tables they would wait in vain."""
    try:
        for question in questions:
            await run_flow(once, question)
    except SchemaMissing:
        raise
    except StoreError:
        pass


async def close_onefold(once: AnyOnefold) -> None:
    """Close what a command has opened."""
    closing: Any = once.close()
    if inspect.isawaitable(closing):
        await closing


def _from_target(context: typer.Context, target: str) -> Callable[[], Awaitable[AnyOnefold]]:
    for name in ("database", "broker", "activity"):
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise typer.BadParameter(f"{target} brings its own {name}: leave out --{name}, or the target")
    value = load_target(target)
    return lambda: open_target(target, value)


def _from_addresses(database: str, broker: str, *, activity: bool) -> Callable[[], Awaitable[AnyOnefold]]:
    if not database:
        raise typer.BadParameter("give a target, or --database (or set ONEFOLD_DATABASE)")
    if not broker and dialect_of(database) != "sqlite":
        raise typer.BadParameter(
            "give --broker or set ONEFOLD_BROKER, because this asks the broker too: an address, or 'local' for the "
            "database itself"
        )
    require_database(database)
    try:
        urlsplit(broker)
    except ValueError:
        raise typer.BadParameter(
            "--broker is not an address: is there a '[' in its password? Write it as %5B"
        ) from None

    async def make() -> AnyOnefold:
        return AsyncOnefold(database, broker=broker or None, activity=activity)

    return make


def _import(name: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with _in_one_line(f"importing {name!r} failed"):
            return import_module(name)
    except ConfigurationError as error:
        cause = error.__cause__
        if isinstance(cause, ModuleNotFoundError) and cause.name and f"{name}.".startswith(f"{cause.name}."):
            raise ConfigurationError(
                f"there is no module {cause.name!r}, neither here nor on sys.path{_close_module(cause.name)}"
            ) from cause
        raise


def _module_in(name: str) -> str:
    """The module that a path of a file stands for; a name that is none as it is."""
    parts = [part for part in name.removesuffix(".py").split("/") if part not in ("", ".")]
    return ".".join(parts) if parts and (name.endswith(".py") or "/" in name) else name


def _close_module(name: str) -> str:
    """What may have been meant, of the modules that are here."""
    here = [path.stem for path in Path.cwd().glob("*.py")]
    close = get_close_matches(name, here, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _names_in(module: ModuleType) -> str:
    """What of a module may be a target."""
    fit: list[str] = []
    for name, value in vars(module).items():
        with suppress(Exception):  # what cannot be looked at now is none
            if _onefold_in(value) is not None:
                fit.append(name)
    return ", ".join(sorted(fit))


def _onefold_in(value: object) -> AnyOnefold | None:
    """A Onefold, or the one that is installed in an application."""
    if isinstance(value, AsyncOnefold | Onefold):
        return value
    found = left_in(value)
    return found if isinstance(found, AsyncOnefold | Onefold) else None


@contextmanager
def _in_one_line(what: str) -> Iterator[None]:
    """An error that the application raises, with its file and line."""
    try:
        yield
    except OnefoldError:
        raise  # says what to do
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        # In the application, where the error comes out of a library that it called.
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(os.getcwd())]
        frame = (own or frames)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigurationError(f"{what}: {text} ({frame.filename}, line {frame.lineno})") from error
