"""Resolves `module:attribute` to a Onefold. An error in that module is reported in one line."""

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
from onefold._http.install_checks import find_installed
from onefold._kernel.arguments import name_type
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
        hint = f"write {module_name}:{path}" if path else f"write {module_name}: and the name of the Onefold in it"
        raise ConfigurationError(f"target {target!r} names a file, and must be module:attribute; {hint}")
    if not separator or not name or not path:
        raise ConfigurationError(f"target {target!r} must be module:attribute, for example {name or 'shop.app'}:once")
    module = _import(name)
    value: object = module
    for step in path.split("."):
        try:
            value = getattr(value, step)
        except AttributeError:
            names = _names_in(module)
            raise ConfigurationError(f"{name!r} has no {path!r}" + (f"; it has {names}" if names else "")) from None
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
        once = _onefold_in(value)
        is_application = hasattr(value, "add_middleware") or hasattr(value, "wsgi_app")
    if once is not None:
        return once
    if is_application:
        raise ConfigurationError(f"{target!r} is an application without onefold: call once.install(app) in its module")
    kind = "a class" if isinstance(value, type) else name_type(value)
    name = target.partition(":")[0]
    names = _names_in(sys.modules[name])
    raise ConfigurationError(f"{target!r} is {kind}; {_GIVE}" + (f". {name!r} has {names}" if names else ""))


def from_target_or_addresses(
    context: typer.Context, target: str, database: str, broker: str, *, activity: bool = False
) -> Callable[[], Awaitable[AnyOnefold]]:
    """A function that makes the Onefold a command works on: from the target, or else from the addresses."""
    return _from_target(context, target) if target else _from_addresses(database, broker, activity=activity)


async def refuse_missing_tables(once: AnyOnefold, *make_flows: Callable[[str], Flow[Any]]) -> None:
    """Raise SchemaMissing now: workers wait for a database that is away, and would wait for tables for ever."""
    try:
        for make_flow in make_flows:
            await run_flow(once, make_flow)
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
    """The module that a file's path names; any other name unchanged."""
    parts = [part for part in name.removesuffix(".py").split("/") if part not in ("", ".")]
    return ".".join(parts) if parts and (name.endswith(".py") or "/" in name) else name


def _close_module(name: str) -> str:
    """A hint with the most similar module name in this directory, or nothing."""
    here = [path.stem for path in Path.cwd().glob("*.py")]
    close = get_close_matches(name, here, 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _names_in(module: ModuleType) -> str:
    """The attributes of a module that may be targets."""
    names: list[str] = []
    for name, value in vars(module).items():
        with suppress(Exception):  # a value that cannot be inspected is no target
            if _onefold_in(value) is not None:
                names.append(name)
    return ", ".join(sorted(names))


def _onefold_in(value: object) -> AnyOnefold | None:
    """A Onefold, or the one that is installed in an application."""
    if isinstance(value, AsyncOnefold | Onefold):
        return value
    found = find_installed(value)
    return found if isinstance(found, AsyncOnefold | Onefold) else None


@contextmanager
def _in_one_line(action: str) -> Iterator[None]:
    """Turn an error of the application into one line, with its file and line."""
    try:
        yield
    except OnefoldError:
        raise  # its text is one line, and says what to do
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        # A frame of the application, where a library that it called has raised.
        own = [frame for frame in frames if Path(frame.filename).is_relative_to(os.getcwd())]
        frame = (own or frames)[-1]
        text = " ".join(f"{type(error).__name__}: {error}".split())
        raise ConfigurationError(f"{action}: {text} ({frame.filename}, line {frame.lineno})") from error
