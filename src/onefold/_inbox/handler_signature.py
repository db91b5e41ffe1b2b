"""What a handler takes, and what it depends on: read once, where it is defined.

Rules. The first parameter of a handler is its message; or the message's data, where it is annotated with a type to read
that as. Every other parameter is read by its annotation: `Message`, `Transaction`, a SQLAlchemy session,
`Steps`, a type of data, or `Annotated[T, Depends(function)]`, whose function is read by the same rules. A parameter
named tx is the transaction, and so is a second one without annotation. What is left must have a default.

Invariant: a signature that was read can be called. What cannot be filled in is refused here, not at the first message.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Protocol, TypeAlias, get_args, get_origin

from onefold._kernel.messages import Message
from onefold._kernel.steps_annotation import is_steps
from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError

Given: TypeAlias = Literal["message", "tx", "Session", "AsyncSession", "steps"]
Kind: TypeAlias = Literal["plain", "async", "generator", "async generator"]

_SESSIONS: Final[tuple[Given, ...]] = ("AsyncSession", "Session")
_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_REST: Final = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_NOTHING: Final = (inspect.Parameter.empty, Any, object)
_LISTS: Final = (list, Sequence)
_MUST: Final = "it must take the message (or its data), and may take tx, a session or Steps, and what it depends on"


@dataclass(frozen=True, slots=True)
class Depends:
    """For a handler's parameter: `Annotated[Rates, Depends(rates)]` is what `rates` returns, or yields; what follows
    its `yield` runs after the transaction has ended. This function, `dependency`, is called once for one message,
    however many depend on it, unless `use_cache` is False. Without a function, the annotated class itself is
    called."""

    dependency: Callable[..., Any] | None = None
    use_cache: bool = True

    def __post_init__(self) -> None:
        if self.dependency is not None and not callable(self.dependency):
            raise ConfigurationError(f"Depends({self.dependency!r}) cannot be called; give the function itself")


class Payload(Protocol):
    """A type that the data of messages is read as."""

    def read(self, data: bytes) -> Any:
        """Raises PayloadInvalid."""
        ...


#: Makes a payload of an annotation. Raises ConfigurationError.
PayloadOf: TypeAlias = Callable[[object], Payload]


def no_payloads(annotation: object) -> Payload:
    raise ConfigurationError(f"{annotation!r} is nothing that a message's data can be read as here")


@dataclass(frozen=True, slots=True, eq=False)
class Needed:
    """What a dependency returns or yields."""

    signature: Signature
    cached: bool


@dataclass(frozen=True, slots=True)
class Parameter:
    """One argument. Without a name it is passed by its place."""

    name: str | None
    value: Given | Payload | Needed


@dataclass(frozen=True, slots=True, eq=False)
class Signature:
    """A function, and where its arguments come from."""

    function: Callable[..., Any]
    parameters: tuple[Parameter, ...]
    kind: Kind

    def values(self) -> Iterator[Given | Payload | Needed]:
        """All that it takes, and all that its dependencies do."""
        for parameter in self.parameters:
            yield parameter.value
            if isinstance(parameter.value, Needed):
                yield from parameter.value.signature.values()

    @property
    def session(self) -> Given | None:
        """The kind of session that it takes, if it takes one."""
        return next((kind for kind in _SESSIONS if kind in self.values()), None)

    @property
    def works_in_steps(self) -> bool:
        """Whether it takes recorded steps."""
        return "steps" in self.values()

    @property
    def takes_transaction(self) -> bool:
        """Whether it takes the message's transaction, or a session in it."""
        return "tx" in self.values() or self.session is not None

    @property
    def opens(self) -> bool:
        """Whether something has to be closed after a call."""
        return any(isinstance(value, Needed) and "generator" in value.signature.kind for value in self.values())


def read_handler(consumer: str, handler: Callable[..., Any], *, batch: int, payload_of: PayloadOf) -> Signature:
    """Raises ConfigurationError."""
    return _SignatureReader(consumer, handler, batch, payload_of).read(handler, ())


def kind_of(function: Callable[..., Any]) -> Kind:
    function = _whole(function)
    called = function if inspect.isroutine(function) or inspect.isclass(function) else type(function).__call__
    for candidate in (function, called):
        if inspect.isasyncgenfunction(candidate):
            return "async generator"
        if inspect.isgeneratorfunction(candidate):
            return "generator"
        if inspect.iscoroutinefunction(candidate):
            return "async"
    return "plain"


class _SignatureReader:
    """Reads the signature of one consumer's handler."""

    def __init__(self, consumer: str, handler: Callable[..., Any], batch: int, payload_of: PayloadOf) -> None:
        self._consumer = consumer
        self._batch = batch
        self._payload_of = payload_of
        self._awaits = kind_of(handler) == "async"

    def read(self, function: Callable[..., Any], path: tuple[object, ...]) -> Signature:
        """`path` is how it was come by: empty for the handler itself."""
        try:
            parameters = list(inspect.signature(function).parameters.values())
        except (TypeError, ValueError):
            what = "handler" if not path else "dependency"
            raise ConfigurationError(
                f"the {what} of consumer {self._consumer!r} is {function!r}, which cannot be called"
            ) from None
        found: list[Parameter] = []
        skipped = False
        for index, parameter in enumerate(parameters):
            annotation = _resolve(function, parameter.annotation)
            value = self._annotated_value(parameter, annotation, (*path, function))
            if value is None and not path:
                value = self._by_place(index, parameter, annotation)
            if value is None and (parameter.default is parameter.empty or (not path and index == 0)):
                raise self._refusal(function, parameter, path)
            if value is None:
                skipped = True
            else:
                by_name = skipped or parameter.kind not in _BY_PLACE
                found.append(Parameter(parameter.name if by_name else None, value))
        kind = kind_of(function)
        if not path and (not found or "generator" in kind):
            raise self._refusal(function, None, path)
        if not path:
            self._check_returned(function)
        if path and "async" in kind and not self._awaits:
            raise ConfigurationError(
                f"the handler of consumer {self._consumer!r} is a plain def, and cannot await its dependency "
                f"{_name(function)}: make the handler async, or the dependency a plain def"
            )
        return Signature(function, tuple(found), kind)

    def _check_returned(self, function: Callable[..., Any]) -> None:
        """Refuse a handler whose every message would fail, because it is annotated to return something but None."""
        returned = _resolve(function, inspect.signature(function).return_annotation)
        plain = get_origin(returned) or returned
        if isinstance(plain, type) and plain not in (*_NOTHING, NoneType, UnionType):
            raise ConfigurationError(
                f"the handler of consumer {self._consumer!r} is {_name(function)}(...) -> {returned!r:.200}; a handler "
                "returns None, and raises to say that it failed"
            )

    def _annotated_value(
        self, parameter: inspect.Parameter, annotation: object, path: tuple[object, ...]
    ) -> Given | Payload | Needed | None:
        """The value of a parameter by its annotation or name, wherever it stands."""
        if parameter.kind in _REST:
            return None
        kind, metadata = _strip(annotation)
        depends = next((each for each in (*metadata, parameter.default) if isinstance(each, Depends)), None)
        if depends is not None:
            return self._dependency(depends, kind, parameter, path)
        foreign = next((each for each in (*metadata, parameter.default) if _is_foreign_depends(each)), None)
        if foreign is not None:
            raise self._foreign_refusal(foreign, kind, parameter.name)
        given = "steps" if is_steps(annotation) else _given_by_type(kind)
        if given is not None:
            return given
        if parameter.name == "tx" or (parameter.name == "message" and kind in _NOTHING):
            return "tx" if parameter.name == "tx" else "message"
        if parameter.default is parameter.empty and _is_model(_element(kind) if self._batch > 1 else kind):
            return self._payload(parameter, annotation)
        return None

    def _foreign_refusal(self, depends: object, kind: object, name: str) -> ConfigurationError:
        """For a dependency of another framework, or one of ours for its endpoints."""
        where = f"consumer {self._consumer!r}: parameter {name!r}"
        if not getattr(getattr(depends, "dependency", None), "__module__", "").startswith("onefold."):
            return ConfigurationError(
                f"{where} has the Depends of {type(depends).__module__.partition('.')[0]}, which a consumer cannot "
                "use: write `from onefold import Depends`, whose functions take what a handler takes"
            )
        what, instead = {
            "tx": ("Tx", f"write `{name}: Transaction[...]`, with `from onefold import Transaction`"),
            "Session": ("a session", f"write `{name}: Session`, with `from sqlalchemy.orm import Session`"),
            "AsyncSession": (
                "a session", f"write `{name}: AsyncSession`, with `from sqlalchemy.ext.asyncio import AsyncSession`"
            ),
        }.get(_given_by_type(kind) or "", ("a dependency", "take it out"))  # fmt: skip
        return ConfigurationError(f"{where} is {what} of onefold.fastapi, which is for endpoints: {instead}")

    def _by_place(self, index: int, parameter: inspect.Parameter, annotation: object) -> Given | Payload | None:
        """The value of a handler's parameter by its place, where its annotation names none."""
        if parameter.kind not in _BY_PLACE:
            return None
        silent = annotation in _NOTHING
        if index == 0 and not silent:
            return self._payload(parameter, annotation)
        if index == 0:
            return "message"
        return "tx" if index == 1 and (silent or isinstance(annotation, str)) else None

    def _dependency(
        self, depends: Depends, kind: object, parameter: inspect.Parameter, path: tuple[object, ...]
    ) -> Needed:
        function = depends.dependency if depends.dependency is not None else kind
        if not callable(function):
            raise ConfigurationError(
                f"consumer {self._consumer!r}: parameter {parameter} says Depends() without a function, and "
                f"{kind!r} is not a class that could be called"
            )
        if function in path:
            raise ConfigurationError(f"consumer {self._consumer!r}: {_name(function)} depends on itself")
        return Needed(self.read(function, path), depends.use_cache)

    def _payload(self, parameter: inspect.Parameter, annotation: object) -> Payload:
        where = f"consumer {self._consumer!r}: parameter {parameter}"
        if isinstance(annotation, str):
            raise ConfigurationError(
                f"{where}: its annotation cannot be looked up in the handler's module; import the name (not only for "
                "TYPE_CHECKING) and define it outside of functions, or annotate Message"
            )
        kind, _ = _strip(annotation)
        if self._batch > 1:
            annotation = kind = _element(kind)
            if kind is None:
                raise ConfigurationError(f"{where}: with batch={self._batch} it gets a list; annotate list[...]")
        if getattr(kind, "__module__", "").partition(".")[0] == "onefold":
            raise ConfigurationError(f"{where}: that cannot be had here; {_MUST}")
        try:
            return self._payload_of(annotation)
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from error

    def _refusal(
        self, function: Callable[..., Any], parameter: inspect.Parameter | None, path: tuple[object, ...]
    ) -> ConfigurationError:
        whose = f"the {'dependency' if path else 'handler'} of consumer {self._consumer!r} is"
        taken = ", ".join(map(str, inspect.signature(function).parameters.values()))
        unknown = f" Nothing is known of {parameter.name!r}: give it a default, or Depends" if parameter else ""
        rule = "it may take message, tx, a session, a type of data, and what it depends on" if path else _MUST
        return ConfigurationError(f"{whose} {_name(function)}({taken}); {rule}.{unknown}")


def _whole(function: Any) -> Any:
    while isinstance(function, functools.partial):
        function = function.func
    return function


def _name(function: object) -> str:
    return str(getattr(function, "__qualname__", function))


def _resolve(function: Any, annotation: object) -> object:
    """The annotation, resolved. A name that cannot be looked up (TYPE_CHECKING) stays a string."""
    if not isinstance(annotation, str):
        return annotation
    function = inspect.unwrap(_whole(function))
    for holder in (function, getattr(function, "__init__", None), type(function).__call__):
        if (names := getattr(holder, "__globals__", None)) is not None:
            break
    else:
        names = vars(sys.modules[function.__module__])

    def alone() -> None:
        """With this annotation only: others that cannot be looked up must not keep it from being so."""

    alone.__annotations__ = {"it": annotation}
    try:
        return inspect.get_annotations(alone, globals=names, eval_str=True)["it"]
    except Exception:
        return annotation


def _strip(annotation: object) -> tuple[object, tuple[object, ...]]:
    """The type, and what is noted beside it."""
    if get_origin(annotation) is Annotated:
        kind, *metadata = get_args(annotation)
        return kind, tuple(metadata)
    return annotation, ()


def _element(kind: object) -> object | None:
    """What a list is one of."""
    arguments = get_args(kind)
    return arguments[0] if get_origin(kind) in _LISTS and len(arguments) == 1 else None


def _given_by_type(kind: object) -> Given | None:
    """Read from the names of classes where those are SQLAlchemy's, which is imported only by those who use it, and
    where the annotation could not be looked up."""
    if isinstance(kind, str):
        name = kind.partition("[")[0].rpartition(".")[2]
        names = [kind.rstrip("]").rpartition("[")[2].rpartition(".")[2] if name in ("list", "Sequence") else name]
    else:
        plain = get_origin(kind) or kind
        plain = _element(kind) if plain in _LISTS else plain
        names = [each.__name__ for each in (Message, Transaction) if plain is each]
        for each in getattr(plain, "__mro__", ()):
            names += [each.__name__] if each.__module__.startswith("sqlalchemy.") else []
    if "Message" in names:
        return "message"
    return "tx" if "Transaction" in names else next((session for session in _SESSIONS if session in names), None)


def _is_foreign_depends(mark: object) -> bool:
    """FastAPI's, FastStream's, taskiq's: known by what they are called and have in common."""
    return "Depend" in type(mark).__name__ and hasattr(mark, "dependency")


def _is_model(kind: object) -> bool:
    """Whether it can only be meant as a type of data."""
    marks = ("model_validate_json", "__required_keys__")  # of pydantic's models, and of every TypedDict
    return isinstance(kind, type) and (is_dataclass(kind) or any(hasattr(kind, mark) for mark in marks))
