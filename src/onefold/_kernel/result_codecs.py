"""How values of a type are written as what json takes, and read again.

Rules. A codec writes exactly the type that it stands for: an instance of a subclass would come back as its base, so it
is refused. What is read is checked as strictly: a field that the type does not have is refused, and one that the record
does not have takes its default, if it has one. A union writes by the first member that takes the value, and only where
reading would come to the same member.

Invariant: what a misfit says has types, names of fields and places in it, and no values: they may be secret.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import NoneType
from typing import Any, Final, Protocol


class Misfit(Exception):
    """A value is not of the type; `place` is where in it."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.place = ""

    def within(self, part: str) -> Misfit:
        """This misfit, one level further out."""
        inner = self.place.removeprefix("at ").removesuffix(": ")
        self.place = f"at {part}{inner}: "
        return self


class Codec(Protocol):
    """Writes a value as what json takes, and reads it again. Both raise Misfit."""

    def write(self, value: Any) -> Any: ...
    def read(self, data: Any) -> Any: ...


def _refuse(value: object, expected: str) -> Misfit:
    """By its type only: a result may hold what must not be logged."""
    return Misfit(f"{type(value).__qualname__} is not {expected}")


class Plain:
    """Whatever is JSON by itself."""

    def write(self, value: Any) -> Any:
        kind = type(value)
        if kind is list:
            _each(self.write, value)
        elif kind is dict:
            for name in value:
                if type(name) is not str:
                    raise Misfit(f"{type(name).__qualname__} is not text, as the key of a dict has to be")
            _each_named(lambda name: self.write, value)
        elif kind is float and not math.isfinite(value):
            raise Misfit(f"{value} is not a JSON number")
        elif kind not in _SCALARS:
            raise _refuse(value, "a plain JSON value")
        return value

    def read(self, data: Any) -> Any:
        return data


class Scalar:
    """One of JSON's own types."""

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds

    def write(self, value: Any) -> Any:
        if type(value) not in self._kinds:
            raise _refuse(value, self._kinds[0].__name__)
        return PLAIN.write(value)

    def read(self, data: Any) -> Any:
        return self.write(data)


class Text:
    """A type that has one spelling as text."""

    def __init__(self, kind: Any, write: Callable[[Any], str], read: Callable[[str], Any]) -> None:
        self._kind = kind
        self._write = write
        self._read = read

    def write(self, value: Any) -> str:
        if type(value) is not self._kind:
            raise _refuse(value, self._kind.__name__)
        text = self._write(value)
        # NaN, and a local time that a clock shows twice a year: equal to nothing, not even to itself.
        with suppress(ArithmeticError):
            if self.read(text) == value:
                return text
        raise Misfit(f"this {self._kind.__name__} would not be equal to what is read again")

    def read(self, data: Any) -> Any:
        if type(data) is not str:
            raise _refuse(data, f"the text of a {self._kind.__name__}")
        try:
            return self._read(data)
        except (ValueError, ArithmeticError) as error:
            raise Misfit(f"the text is not a valid {self._kind.__name__}") from error


class Choice:
    """An Enum by the values of its members, or the values of a Literal."""

    def __init__(self, kind: Any, values: Sequence[Any], name: str) -> None:
        self._kind = kind
        self._values = values
        self._name = name

    def write(self, value: Any) -> Any:
        if self._kind is not None:
            if type(value) is not self._kind:
                raise _refuse(value, self._name)
            return PLAIN.write(value.value)
        return PLAIN.write(self._one_of(value))

    def read(self, data: Any) -> Any:
        if self._kind is None:
            return self._one_of(data)
        try:
            return self._kind(data)
        except (TypeError, ValueError):
            raise Misfit(f"no member of {self._name} has this value") from None

    def _one_of(self, value: Any) -> Any:
        for each in self._values:
            if type(each) is type(value) and each == value:
                return value
        raise Misfit(f"the value is none of {self._name}")


class Items:
    """A list, set, frozenset or tuple whose items are all of one type."""

    def __init__(self, kind: Any, item: Codec) -> None:
        self._kind = kind
        self._item = item

    def write(self, value: Any) -> list[Any]:
        if type(value) is not self._kind:
            raise _refuse(value, f"a {self._kind.__name__}")
        return _each(self._item.write, value)

    def read(self, data: Any) -> Any:
        if type(data) is not list:
            raise _refuse(data, f"the list of a {self._kind.__name__}")
        return self._kind(_each(self._item.read, data))


class Places:
    """A tuple with a type for each place; also a NamedTuple."""

    def __init__(self, kind: Any, items: Sequence[Codec]) -> None:
        self._kind = kind
        self._items = items

    def write(self, value: Any) -> list[Any]:
        if type(value) is not self._kind:
            raise _refuse(value, f"a {self._kind.__name__}")
        return self._in_order([codec.write for codec in self._items], value)

    def read(self, data: Any) -> Any:
        if type(data) is not list:
            raise _refuse(data, f"the list of a {self._kind.__name__}")
        found = self._in_order([codec.read for codec in self._items], data)
        return tuple(found) if self._kind is tuple else self._kind(*found)

    def _in_order(self, acts: Sequence[Callable[[Any], Any]], values: Sequence[Any]) -> list[Any]:
        if len(values) != len(acts):
            raise Misfit(f"{len(values)} items instead of {len(acts)}")
        following = iter(acts)
        return _each(lambda value: next(following)(value), values)


class Pairs:
    """A dict whose keys and values are all of one type. JSON has text as keys, and nothing else."""

    def __init__(self, key: Codec, value: Codec) -> None:
        self._key = key
        self._value = value

    def write(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise _refuse(value, "a dict")
        names = _each(self._write_key, value)
        return dict(zip(names, _each_named(lambda name: self._value.write, value).values(), strict=True))

    def read(self, data: Any) -> dict[Any, Any]:
        if type(data) is not dict:
            raise _refuse(data, "a dict")
        keys = _each(self._key.read, data)
        return dict(zip(keys, _each_named(lambda name: self._value.read, data).values(), strict=True))

    def _write_key(self, key: Any) -> str:
        name = self._key.write(key)
        if type(name) is not str:
            raise Misfit(f"{type(key).__qualname__} is not text in JSON, as the key of a dict has to be")
        return name


class TypedFields:
    """A dataclass or a TypedDict: named fields, each with a type. They are looked at when they are first needed, so
    that a class may refer to itself."""

    def __init__(
        self, kind: Any, names: Sequence[str], look_up: Callable[[], tuple[Mapping[str, Codec], frozenset[str]]]
    ) -> None:
        """`look_up` gives the codec of each field, and which of them must be there."""
        self._kind = kind
        self._names = names
        self._look_up = look_up
        self._is_dict = issubclass(kind, dict)

    @cached_property
    def _looked_up(self) -> tuple[Mapping[str, Codec], frozenset[str]]:
        return self._look_up()

    def write(self, value: Any) -> dict[str, Any]:
        if type(value) is not (dict if self._is_dict else self._kind):
            raise _refuse(value, self._kind.__qualname__)
        if self._is_dict:
            self._check_names(value)
        given = value if self._is_dict else {name: getattr(value, name) for name in self._names}
        codecs, _ = self._looked_up
        return _each_named(lambda name: codecs[name].write, given)

    def read(self, data: Any) -> Any:
        if type(data) is not dict:
            raise _refuse(data, f"the fields of {self._kind.__qualname__}")
        self._check_names(data)
        codecs, _ = self._looked_up
        found = _each_named(lambda name: codecs[name].read, data)
        try:
            return self._kind(**found)
        except Exception as error:  # whatever its __post_init__ raises, whose text may have the values
            raise Misfit(f"{self._kind.__qualname__} refuses its fields ({type(error).__name__})") from error

    def _check_names(self, given: Mapping[str, Any]) -> None:
        unknown = [name for name in given if name not in self._names]
        _, needed = self._looked_up
        missing = [name for name in self._names if name in needed and name not in given]
        if unknown or missing:
            faults = [f"no field {name!r} in {self._kind.__qualname__}" for name in unknown]
            faults += [f"field {name!r} is missing" for name in missing]
            raise Misfit(", ".join(faults[:5]))


class Model:
    """A model of pydantic, by its own methods: names by alias, since that is how it reads them."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def write(self, value: Any) -> Any:
        if type(value) is not self._kind:
            raise _refuse(value, self._kind.__qualname__)
        try:
            return value.model_dump(mode="json", by_alias=True, round_trip=True)
        except ValueError as error:  # pydantic's, whose text has the values
            raise Misfit(f"{self._kind.__qualname__} does not write itself as JSON ({type(error).__name__})") from None

    def read(self, data: Any) -> Any:
        try:
            # Strict models take the text of a date from JSON only.
            return self._kind.model_validate_json(WRITER.encode(data))
        except ValueError as error:
            raise Misfit(f"{self._kind.__qualname__} refuses it ({_faults(error)})") from None


class OptionalOf:
    """None, or another type."""

    def __init__(self, inner: Codec) -> None:
        self._inner = inner

    def write(self, value: Any) -> Any:
        if value is None:
            return None
        written = self._inner.write(value)
        if written is None:
            raise Misfit(f"this {type(value).__qualname__} would be read as None")
        return written

    def read(self, data: Any) -> Any:
        return None if data is None else self._inner.read(data)


class OneOf:
    """One of several types."""

    def __init__(self, codecs: Sequence[Codec], names: Sequence[str]) -> None:
        self._codecs = codecs
        self._names = names

    def write(self, value: Any) -> Any:
        for number, codec in enumerate(self._codecs):
            try:
                written = codec.write(value)
            except Misfit:
                continue
            reading, _ = self._pick(written)
            if reading != number:
                raise Misfit(
                    f"{self._names[number]} would be read as {self._names[reading]}: have them differ in their fields, "
                    "or return one of them only"
                )
            return written
        raise _refuse(value, " | ".join(self._names))

    def read(self, data: Any) -> Any:
        return self._pick(data)[1]

    def _pick(self, data: Any) -> tuple[int, Any]:
        for number, codec in enumerate(self._codecs):
            try:
                return number, codec.read(data)
            except Misfit:
                continue
        raise _refuse(data, " | ".join(self._names))


def _faults(error: Any) -> str:
    """Of pydantic's error: which fields, and what kind of fault. Not its text, which has the values."""
    found = error.errors(include_url=False, include_input=False, include_context=False) if _has_errors(error) else ()
    faults = [f"{each['loc'][0]}: {each['type']}" if each["loc"] else each["type"] for each in found[:5]]
    return ", ".join(faults) or type(error).__name__


def _has_errors(error: Any) -> bool:
    return callable(getattr(error, "errors", None))


def _each(act: Callable[[Any], Any], values: Iterable[Any]) -> list[Any]:
    """The result of `act` for each value; a misfit is raised with its number."""
    found: list[Any] = []
    try:
        for each in values:
            found += (act(each),)
    except Misfit as error:
        raise error.within(f"[{len(found)}]") from None
    return found


def _each_named(act_of: Callable[[Any], Callable[[Any], Any]], values: Mapping[Any, Any]) -> dict[Any, Any]:
    """The result for each value; a misfit is raised with its name, where that is one that a program chose."""
    found: dict[Any, Any] = {}
    name: Any = None
    try:
        for name, each in values.items():
            found[name] = act_of(name)(each)
    except Misfit as error:
        raise error.within(f".{name}" if type(name) is str and name.isidentifier() else "[...]") from None
    return found


# Made once: making an encoder costs more than encoding a result.
WRITER: Final = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))

_SCALARS: Final = frozenset({NoneType, bool, int, float, str})
PLAIN: Final = Plain()
