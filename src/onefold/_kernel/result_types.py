"""Which codec an annotation has. Each is made once.

The standard library only: a dataclass needs no pydantic. Fields of a class are looked at when they are first needed, so
that a class may refer to itself.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import typing
from collections.abc import Iterable, Mapping, MutableMapping, MutableSequence, Sequence
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Final,
    ForwardRef,
    Literal,
    Never,
    NewType,
    NoReturn,
    NotRequired,
    Required,
    TypeVar,
    Union,
    get_args,
    get_origin,
)
from uuid import UUID

from onefold._kernel.result_codecs import (
    PLAIN,
    Choice,
    Codec,
    Items,
    Model,
    OneOf,
    OptionalOf,
    Pairs,
    Places,
    Scalar,
    Text,
    TypedFields,
)

_MICROSECOND: Final = timedelta(microseconds=1)


class Misused(Exception):
    """The annotation itself is nothing that results can be recorded as."""


def codec_of(annotation: object) -> Codec:
    """The codec of an annotation. Raises Misused."""
    try:
        return _made(annotation)
    except TypeError:  # one that cannot be hashed: Annotated[int, []]
        return _make(annotation)


def type_name(annotation: object) -> str:
    return annotation.__qualname__ if isinstance(annotation, type) else str(annotation).removeprefix("typing.")


def _make(annotation: Any) -> Codec:
    if isinstance(annotation, str | ForwardRef):
        raise Misused("the name cannot be looked up; import it outside of TYPE_CHECKING, at the top of the module")
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return codec_of(arguments[0])
    if annotation in _ANYTHING or isinstance(annotation, TypeVar):
        return PLAIN
    if isinstance(annotation, NewType):
        return codec_of(annotation.__supertype__)
    if hasattr(annotation, "__value__") and not isinstance(annotation, type):  # type Name = ...
        return codec_of(annotation.__value__)
    if origin in (Union, UnionType):
        members = [each for each in arguments if each is not NoneType]
        codecs = [codec_of(each) for each in members]
        found: Codec = codecs[0] if len(codecs) == 1 else OneOf(codecs, [type_name(each) for each in members])
        return OptionalOf(found) if NoneType in arguments else found
    if origin is Literal:
        return Choice(None, arguments, type_name(annotation))
    kind = _CONCRETE.get(origin or annotation, origin or annotation)
    if kind in (list, set, frozenset) or (kind is tuple and arguments[1:] in ((), (Ellipsis,))):
        return Items(kind, codec_of(arguments[0] if arguments else Any))
    if kind is tuple:
        return Places(tuple, [codec_of(each) for each in arguments])
    if kind is dict:
        key, value = arguments or (str, Any)
        return Pairs(_COUNT if key is int else codec_of(key), codec_of(value))
    leaf = _LEAVES.get(kind)
    if leaf is None and isinstance(kind, type):
        leaf = _of_class(kind)
    if leaf is None:
        raise Misused(f"{type_name(annotation)} is nothing that can be written as JSON and read again")
    return leaf


def _of_class(kind: type) -> Codec | None:
    if issubclass(kind, Enum):
        return Choice(kind, (), kind.__qualname__)
    if hasattr(kind, "model_validate_json"):
        return Model(kind)
    if dataclasses.is_dataclass(kind):
        taken = [each for each in dataclasses.fields(kind) if each.init]
        initial = [name for name, each in kind.__dataclass_fields__.items() if _is_init_only(each)]
        if initial:
            raise Misused(f"{kind.__qualname__} has InitVar {initial[0]!r}, which is not kept; make it a field")
        needed = [each.name for each in taken if each.default is each.default_factory is dataclasses.MISSING]
        return _fields(kind, [each.name for each in taken], needed)
    if hasattr(kind, "__required_keys__"):  # of every TypedDict
        return _fields(kind, list(kind.__annotations__), kind.__required_keys__)
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        hints = _hints(kind)
        return Places(kind, [codec_of(hints.get(name, Any)) for name in kind._fields])
    return None


def _fields(kind: type, names: Sequence[str], needed: Iterable[str]) -> TypedFields:
    def look_up() -> tuple[dict[str, Codec], frozenset[str]]:
        hints = _hints(kind)
        codecs = {name: codec_of(_unqualify(hints[name])) for name in names}
        # A TypedDict does not see its own NotRequired where annotations are kept as text.
        return codecs, frozenset(name for name in needed if get_origin(hints[name]) is not NotRequired)

    return TypedFields(kind, names, look_up)


def _hints(kind: type) -> dict[str, Any]:
    try:
        return typing.get_type_hints(kind, include_extras=True)
    except Exception as error:  # whatever looking up a name and subscribing it may raise
        raise Misused(
            f"the annotations of {kind.__qualname__} cannot be looked up ({error}); import what they name outside of "
            "TYPE_CHECKING, and define the class at the top of its module"
        ) from error


def _is_init_only(field: Any) -> bool:
    return getattr(field._field_type, "name", "") == "_FIELD_INITVAR"


def _unqualify(hint: Any) -> Any:
    """Without what says nothing of the type."""
    while get_origin(hint) in _QUALIFIERS:
        hint = get_args(hint)[0]
    return hint


_QUALIFIERS: Final = (Required, NotRequired, Final, getattr(typing, "ReadOnly", Final))
_ANYTHING: Final = (Any, object, Never, NoReturn)
_CONCRETE: Final[dict[Any, Any]] = {
    Sequence: list,
    MutableSequence: list,
    Mapping: dict,
    MutableMapping: dict,
    AbstractSet: frozenset,
}
_LEAVES: Final[dict[Any, Codec]] = {
    None: Scalar(NoneType),
    NoneType: Scalar(NoneType),
    bool: Scalar(bool),
    int: Scalar(int),
    float: Scalar(float, int),
    str: Scalar(str),
    bytes: Text(
        bytes, lambda value: base64.b64encode(value).decode(), lambda text: base64.b64decode(text, validate=True)
    ),
    datetime: Text(datetime, datetime.isoformat, datetime.fromisoformat),
    date: Text(date, date.isoformat, date.fromisoformat),
    time: Text(time, time.isoformat, time.fromisoformat),
    timedelta: Text(timedelta, lambda value: str(value // _MICROSECOND), lambda text: int(text) * _MICROSECOND),
    Decimal: Text(Decimal, str, Decimal),
    UUID: Text(UUID, str, UUID),
}
#: As the key of a dict.
_COUNT: Final = Text(int, str, int)
_made: Final = functools.lru_cache(maxsize=1024)(_make)
