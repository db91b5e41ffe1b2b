"""Reads messages' data by pydantic as the type a handler is annotated with: a model, a dataclass, a TypedDict.

Invariant: the content of an invalid message is in its dead letter only, and never in logs or telemetry.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin

from onefold._kernel.extras import missing_extra
from onefold.errors import ConfigurationError, PayloadInvalid

#: How many errors of an invalid message are listed.
ERRORS_MAX: Final = 10

#: An annotation with one of these is a mistake: no message has a bare scalar as its JSON.
_SCALARS: Final = frozenset({str, bytes, bytearray, int, float, bool, complex, type(None)})


class PydanticPayload:
    """A type that pydantic reads data as."""

    def __init__(self, annotation: Any) -> None:
        if annotation in _SCALARS:
            raise ConfigurationError(
                f"a message's data is not read as {annotation.__name__}; annotate a pydantic model, a dataclass or a "
                "TypedDict, or annotate Message and read message.data"
            )
        try:
            from pydantic import TypeAdapter, ValidationError
        except ModuleNotFoundError as error:
            raise missing_extra(error, "pydantic") from None
        self._invalid: type[Exception] = ValidationError
        self.name = _name(annotation)
        try:
            self.adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        except Exception as error:  # pydantic's own, of several kinds, and what a model's hooks raise
            raise ConfigurationError(
                f"pydantic cannot read a message's data as {self.name} ({type(error).__name__}: "
                f"{str(error).splitlines()[0]}); annotate a pydantic model, a dataclass or a TypedDict, or Message"
            ) from error
        #: The JSON Schema; empty where a custom type has none: data can be read nevertheless.
        self.schema = self._describe()
        self._property_names = _names(self.schema)

    def read(self, data: bytes) -> Any:
        try:
            return self.adapter.validate_json(data)
        except self._invalid as error:
            raise self._refusal(error) from None

    def _describe(self) -> dict[str, Any]:
        try:
            return self.adapter.json_schema()
        except Exception:  # pydantic's own, and what a type's hooks raise
            return {}

    def _refusal(self, error: Any) -> PayloadInvalid:
        """An error with the place and kind of each problem. Its notes, which only the failed message keeps, have
        pydantic's texts, too."""
        errors = error.errors(include_url=False, include_input=False, include_context=False)
        listed = "; ".join(f"{self._place(each['loc'])}: {each['type']}" for each in errors[:ERRORS_MAX])
        more = f"; and {len(errors) - ERRORS_MAX} more" if len(errors) > ERRORS_MAX else ""
        refusal = PayloadInvalid(f"the message's data is not a valid {self.name}: {listed}{more}")
        for each in errors[:ERRORS_MAX]:
            refusal.add_note(f"{'.'.join(map(str, each['loc']))}: {each['msg']}")
        return refusal

    def _place(self, location: tuple[int | str, ...]) -> str:
        """The path in the data, by property names of the type. Other names come from the sender, and are hidden."""
        parts = (str(part) if isinstance(part, int) or part in self._property_names else "*" for part in location)
        return ".".join(parts) or "data"


def _name(annotation: Any) -> str:
    """The name of a type, without what Annotated adds; of a union the names of its members."""
    if get_origin(annotation) is Annotated:
        return _name(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return " | ".join(map(_name, get_args(annotation)))
    return str(getattr(annotation, "__name__", annotation))


def schemas_of(payloads: Sequence[PydanticPayload]) -> tuple[list[dict[str, Any] | None], dict[str, Any]]:
    """The schema of each, None where it has none, and what they refer to, by name: two types of one name have two."""
    described = {number: each for number, each in enumerate(payloads) if each.schema}
    if not described:
        return [None] * len(payloads), {}
    from pydantic import TypeAdapter

    schemas_by_key, shared = TypeAdapter.json_schemas(
        [(number, "validation", each.adapter) for number, each in described.items()],
        ref_template="#/components/schemas/{model}",
    )
    schemas = [schemas_by_key.get((number, "validation")) for number in range(len(payloads))]
    return schemas, shared.get("$defs", {})


def _names(schema: object) -> frozenset[str]:
    """The names of all properties in a schema."""

    def walk(part: object) -> Iterator[str]:
        if isinstance(part, dict):
            properties = part.get("properties")
            yield from properties if isinstance(properties, dict) else ()
            for inner in part.values():
                yield from walk(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from walk(inner)

    return frozenset(walk(schema))
