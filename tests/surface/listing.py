"""The public names of onefold and their signatures, as text: `python -m tests.surface.listing` rewrites `surface.txt`.

The names come from each module's `__all__`, the signatures from what is imported, as an application sees them. A member
that a class has from a private base is listed with the class; what it has from a public one is listed there.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Final, ForwardRef, get_origin

from onefold.testing.conformance import Scenario
from onefold.testing.conformance.brokers import BrokerScenario

LIST: Final = Path(__file__).with_name("surface.txt")

MODULES: Final = (
    "onefold",
    "onefold.clients",
    "onefold.console",
    "onefold.otel",
    "onefold.caches",
    "onefold.policies",
    "onefold.prometheus",
    "onefold.sagas",
    "onefold.sagas.dbos",
    "onefold.sagas.restate",
    "onefold.sagas.temporal",
    "onefold.shedding",
    "onefold.telemetry",
    "onefold.dynamodb",
    "onefold.errors",
    "onefold.fastapi",
    "onefold.flask",
    "onefold.starlette",
    "onefold.sqlalchemy",
    "onefold.alembic",
    "onefold.faststream",
    "onefold.celery",
    "onefold.dramatiq",
    "onefold.arq",
    "onefold.taskiq",
    "onefold.brokers",
    "onefold.brokers.kafka",
    "onefold.brokers.local",
    "onefold.brokers.nats",
    "onefold.brokers.rabbitmq",
    "onefold.brokers.redis",
    "onefold.brokers.sqs",
    "onefold.brokers.webhook",
    "onefold.db",
    "onefold.db.asyncpg",
    "onefold.db.psycopg",
    "onefold.db.sqlalchemy",
    "onefold.db.sqlite",
    "onefold.testing",
    "onefold.testing.conformance",
    "onefold.testing.conformance.brokers",
    "onefold.testing.crashing",
    "onefold.testing.endpoint",
    "onefold.testing.fault_proxy",
    "onefold.testing.memory_broker",
    "onefold.testing.no_waiting",
    "onefold.testing.outbox",
    "onefold.testing.pytest_plugin",
    "onefold.testing.scripted_server",
    "onefold.testing.servers",
    "onefold.testing.time_travel",
)

_WIDTH = 120
_INDENT = "    "
_STARS: Final[Mapping[Any, str]] = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}


def listing(modules: Iterable[ModuleType]) -> str:
    """The text: one paragraph for each module, function and class. A name that stands in two modules is shown once."""
    named = {id(value): f"{module.__name__}.{name}" for module in modules for name, value in _public(module)}
    home: dict[int, str] = {}
    lines: list[str] = []
    for module in modules:
        lines += [f"# {module.__name__}", ""]
        for name, value in _public(module):
            first = home.setdefault(id(value), module.__name__)
            if first != module.__name__ and _has_members(value):
                lines += [f"{name}: see {first}", ""]
            else:
                lines += [*_described(name, value, named), ""]
    return "\n".join(lines)


def _public(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name in module.__all__:
        yield name, getattr(module, name)


def _has_members(value: object) -> bool:
    return inspect.isclass(value) or inspect.isroutine(value)


def _described(name: str, value: Any, named: dict[int, str]) -> Iterator[str]:
    if inspect.isclass(value):
        yield from _class(name, value, named)
    elif inspect.isroutine(value):
        yield from _function(name, value, "")
    else:
        yield f"{name} = {_value(value)}"


def _class(name: str, cls: type, named: dict[int, str]) -> Iterator[str]:
    bases = [base for base in cls.__mro__[1:] if id(base) in named or base.__module__ == "builtins"]
    shown = ["NamedTuple" if base is tuple else base.__name__ for base in bases if base is not object][:1]
    yield f"class {name}({', '.join(shown)})" if shown else f"class {name}"
    if issubclass(cls, enum.Enum):
        yield from (f"{_INDENT}{member.name} = {member.value!r}" for member in cls)
        return
    if issubclass(cls, tuple):
        yield from _signature("__new__", cls, _INDENT)
    own = [cls, *(base for base in cls.__mro__[1:] if base.__module__.startswith("onefold") and id(base) not in named)]
    if any("__init__" in vars(base) for base in own) and not getattr(cls, "_is_protocol", False):
        yield from _signature("__init__", cls, _INDENT, ", frozen" if _is_frozen(cls) else "")
    for member in sorted({member for base in own for member in _members(base)}):
        yield from _member(member, cls)


def _members(cls: type) -> Iterator[str]:
    """What a class itself defines and names without an underscore: methods, attributes, and those set by `__init__`."""
    fields = {field.name for field in dataclasses.fields(cls)} if dataclasses.is_dataclass(cls) else set()
    fields.update(getattr(cls, "_fields", ()))
    for name in (*vars(cls), *inspect.get_annotations(cls), *_set_by_init(cls)):
        if (not name.startswith("_") or name == "__call__") and name not in fields:
            yield name


def _set_by_init(cls: type) -> Iterator[str]:
    if dataclasses.is_dataclass(cls) or not inspect.isfunction(vars(cls).get("__init__")):
        return
    for node in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(vars(cls)["__init__"])))):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def _member(name: str, cls: type) -> Iterator[str]:
    value = inspect.getattr_static(cls, name, None)
    if isinstance(value, property):
        assert value.fget is not None
        yield f"{_INDENT}{name}: {_annotation(inspect.signature(value.fget).return_annotation)} (property)"
    elif isinstance(value, classmethod | staticmethod):
        yield from _function(name, getattr(cls, name), _INDENT, f" ({type(value).__name__})")
    elif inspect.isroutine(value):
        yield from _function(name, value, _INDENT)
    else:
        annotation = next((found[name] for found in map(inspect.get_annotations, cls.__mro__) if name in found), None)
        shown = f": {_annotation(annotation)}" if annotation is not None else ""
        plain = isinstance(value, str | int | float | tuple | frozenset)
        yield f"{_INDENT}{name}{shown}{f' = {_value(value)}' if plain else ''}"


def _function(name: str, function: Any, indent: str, note: str = "") -> Iterator[str]:
    kind = "async def " if inspect.iscoroutinefunction(function) else "def "
    yield from _signature(kind + name, function, indent, note)


def _signature(name: str, called: Any, indent: str, note: str = "") -> Iterator[str]:
    """On one line where there is room, else a line for each parameter."""
    signature = inspect.signature(called)
    parameters = [*_parameters(signature, getattr(inspect.unwrap(called), "__globals__", {}))]
    returned = signature.return_annotation
    ending = "" if returned is signature.empty or inspect.isclass(called) else f" -> {_annotation(returned)}"
    line = f"{indent}{name}({', '.join(parameters)}){ending}{note}"
    if len(line) <= _WIDTH:
        yield line
        return
    yield f"{indent}{name}("
    yield from (f"{indent}{_INDENT}{parameter}," for parameter in parameters)
    yield f"{indent}){ending}{note}"


def _parameters(signature: inspect.Signature, names: Mapping[str, Any]) -> Iterator[str]:
    """`**settings: Unpack[Settings]` as the keywords that it stands for."""
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.name == "self" and not place:
            continue
        first = parameter.kind not in kinds[:place]
        if parameter.kind is parameter.KEYWORD_ONLY and first and parameter.VAR_POSITIONAL not in kinds:
            yield "*"
        if unpacked := re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation)):
            for keyword, annotation in inspect.get_annotations(names[unpacked[1]]).items():
                yield f"{keyword}: {_annotation(annotation)} = ..."
            continue
        stars = _STARS.get(parameter.kind, "")
        annotation = "" if parameter.annotation is parameter.empty else f": {_annotation(parameter.annotation)}"
        default = "" if parameter.default is parameter.empty else f" = {_value(parameter.default)}"
        yield f"{stars}{parameter.name}{annotation}{default}"


def _annotation(annotation: Any) -> str:
    if isinstance(annotation, ForwardRef):
        return annotation.__forward_arg__
    return annotation if isinstance(annotation, str) else _short(inspect.formatannotation(annotation))


def _value(value: Any) -> str:
    if inspect.isclass(value) or inspect.isroutine(value):
        return str(value.__qualname__)
    if isinstance(value, frozenset):
        return f"frozenset({sorted(value)})"
    if isinstance(value, tuple) and value and all(isinstance(item, Scenario | BrokerScenario) for item in value):
        return "".join(f"\n{_INDENT}{item}" for item in value).lstrip()
    if get_origin(value) is Annotated:
        return f"Annotated[{_value(value.__origin__)}, {', '.join(type(note).__name__ for note in value.__metadata__)}]"
    return _short(_FROZEN_NUMBERS.sub(_sort_numbers, repr(value)))


#: As a part of something else: its order is another one in each process.
_FROZEN_NUMBERS = re.compile(r"frozenset\(\{([\d, ]+)\}\)")


def _sort_numbers(found: re.Match[str]) -> str:
    return f"frozenset({sorted(map(int, found[1].split(', ')))})"


def _short(text: str) -> str:
    """Names without their modules, and functions without their addresses."""
    without = re.sub(r"\b(?:onefold|typing|collections\.abc)\.(?:\w+\.)*", "", text)
    return re.sub(r"<function (\w+) at \w+>", r"\1", without)


def _is_frozen(cls: type) -> bool:
    return dataclasses.is_dataclass(cls) and cls.__dataclass_params__.frozen  # type: ignore[attr-defined]


def public_modules() -> list[ModuleType]:
    return [importlib.import_module(name) for name in MODULES]


if __name__ == "__main__":
    LIST.write_text(listing(public_modules()))
