"""What the reference of the API shows without a word: `python -m tests.surface.documented` lists it.

A class, a function, a method and a property have a docstring, their own or that of the port they implement. What a
class is made of (its fields, the parameters of its constructor) and each parameter that is given by name are named in
it (or in the class's, or, where it means the same all over a module, in the module's), or have a text of their own
below them, as attributes have. Names that come from outside (**settings that are a route's, a queue's options) are
documented where they are listed."""

from __future__ import annotations

import ast
import dataclasses
import enum
import inspect
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any, Final

from tests.surface.listing import public_modules

#: What they are made of is on the page of settings, which is tested for itself (tests/book).
_ON_PAGE_OF_SETTINGS: Final = {"onefold.AsyncOnefold", "onefold.Onefold", "onefold.Policy"}

_UNNAMED: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def find_silent(modules: Iterable[ModuleType]) -> Iterator[str]:
    """Each name without a word, as it is imported: `onefold.clients.Backoff.cap_s`. Each object once, and each member
    with the class that has it."""
    modules = list(modules)
    exported = {getattr(module, name) for module in modules for name in module.__all__ if _is_class(module, name)}
    seen: set[int] = set()
    for module in modules:
        # There a name is one only between backticks: much is said of a module in plain words.
        around = " ".join(re.findall(r"`([^`]+)`", module.__doc__ or ""))
        for name in module.__all__:
            value = getattr(module, name)
            if id(value) in seen:
                continue
            seen.add(id(value))
            where = f"{module.__name__}.{name}"
            if inspect.isclass(value):
                yield from _look_at_class(where, value, around, exported - {value})
            elif inspect.isroutine(value):
                yield from _look_at_function(where, value, around)


def _look_at_class(where: str, cls: type, around: str, others: set[type]) -> Iterator[str]:
    if not _docstring(cls):
        yield where
    said = f"{_docstring(cls)}\n{around}"
    if issubclass(cls, enum.Enum):
        return
    own = [base for base in cls.__mro__ if base.__module__.startswith(("onefold", "shop")) and base not in others]
    below = {name for base in own for name in _described_below(base)}
    made = "\n".join([said, *(inspect.getdoc(vars(base).get("__init__")) or "" for base in own)])
    for name in _taken(cls, own) if where not in _ON_PAGE_OF_SETTINGS else ():
        if name not in below and not _names(made, name):
            yield f"{where}.{name}"
    for base in own:
        for name, value in vars(base).items():
            if not name.startswith("_") and base is _home(cls, name):
                yield from _look_at_member(f"{where}.{name}", value, said, _is_described_by_base(cls, name))


def _look_at_member(where: str, value: Any, said: str, inherited: bool) -> Iterator[str]:
    if isinstance(value, property):
        if not inherited and not inspect.getdoc(value.fget):
            yield where
    elif isinstance(value, classmethod | staticmethod):
        yield from _look_at_function(where, value.__func__, said, inherited)
    elif inspect.isfunction(value):
        yield from _look_at_function(where, value, said, inherited)


def _look_at_function(where: str, function: Any, around: str, inherited: bool = False) -> Iterator[str]:
    said = inspect.getdoc(function) or ""
    if not said and not inherited:
        yield where
    if inherited and not said:
        return
    for parameter in _parameters(function, by_name_only=True):
        if not _names(f"{said}\n{around}", parameter):
            yield f"{where}({parameter})"


def _taken(cls: type, own: list[type]) -> list[str]:
    """What it is made of: the fields of a dataclass or a named tuple, else what its constructor takes."""
    if getattr(cls, "_is_protocol", False):
        return []
    if dataclasses.is_dataclass(cls):
        return [field.name for field in dataclasses.fields(cls) if field.init and not field.name.startswith("_")]
    if hasattr(cls, "_fields"):
        return list(cls._fields)
    made = next((vars(base)["__init__"] for base in own if "__init__" in vars(base)), None)
    return _parameters(made) if inspect.isfunction(made) else []


def _parameters(function: Any, *, by_name_only: bool = False) -> list[str]:
    found = inspect.signature(function).parameters.values()
    if by_name_only:
        return [each.name for each in found if each.kind is each.KEYWORD_ONLY]
    return [each.name for each in found if each.name not in ("self", "cls") and each.kind not in _UNNAMED]


def _is_class(module: ModuleType, name: str) -> bool:
    return inspect.isclass(getattr(module, name))


def _described_below(cls: type) -> Iterator[str]:
    """Attributes that a string stands below, in the class or in its constructor."""
    try:
        [tree] = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    except (OSError, TypeError):
        return
    assert isinstance(tree, ast.ClassDef)
    made = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == "__init__"]
    for body in (tree.body, *(node.body for node in made)):
        for node, after in itertools.pairwise(body):
            if (
                isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(node, ast.AnnAssign | ast.Assign)
            ):
                targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
                yield from (each.attr if isinstance(each, ast.Attribute) else ast.unparse(each) for each in targets)


def _docstring(cls: type) -> str:
    said = (cls.__doc__ or "").strip()
    return "" if said.startswith(f"{cls.__name__}(") else said


def _names(text: str, name: str) -> bool:
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def _home(cls: type, name: str) -> type | None:
    return next((base for base in cls.__mro__ if name in vars(base)), None)


def _is_described_by_base(cls: type, name: str) -> bool:
    """Whether the port that a class implements, or a class that it extends, says what the member is for."""
    if any(inspect.getdoc(vars(base)[name]) for base in cls.__mro__[1:] if name in vars(base)):
        return True
    return name in _PORTS and not getattr(cls, "_is_protocol", False)


def _port_members() -> set[str]:
    from onefold import brokers, db

    ports = (brokers.Broker, brokers.Subscription, brokers.ManagesSubscriptions, brokers.MatchesPatterns,
             db.AsyncConnection, db.AsyncDatabase, db.Connection, db.Database)  # fmt: skip
    return {name for port in ports for name in vars(port) if not name.startswith("_")}


_PORTS: Final = _port_members()


if __name__ == "__main__":
    print(*find_silent(public_modules()), sep="\n")
