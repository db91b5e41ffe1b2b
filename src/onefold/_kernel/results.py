"""Results of functions as bytes that a later process reads again: JSON, by the type that a function is annotated with.

A function's result is recorded so that it need not run a second time. A process that asks again, perhaps of another
release, gets what was recorded.

Invariant: `decode_result(encode_result(x, t), t) == x` for all that is accepted; a pydantic model is what it reads of
its own JSON. What would come back as something else (a tuple without an annotation, an instance of a subclass, NaN) is
refused where it is returned. Nothing that is read can run code: never pickle.

Types are read from annotations in `result_types.py`, which has the standard library only; pydantic's models
are read and written by their own methods, and need no import here.
"""

from __future__ import annotations

import functools
import inspect
import json
import sys
import typing
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, Never, get_args, get_origin

from onefold._kernel.result_codecs import WRITER, Misfit
from onefold._kernel.result_types import Misused, codec_of, type_name
from onefold.errors import ResultNotSerializable, ResultUnreadable

RESULT_BYTES_MAX: Final = 1_048_576

_WAY_OUT: Final = (
    "Return plain JSON values (None, bool, int, float, str, list, dict with str keys), or annotate what the function "
    "returns: a dataclass, a pydantic model, a TypedDict, datetime, date, Decimal, UUID, an Enum, and lists, dicts and "
    "unions of them"
)

_TYPE_CHANGED: Final = (
    "The type was changed after it was recorded: let it take both forms (a default for a new field, a union) until "
    "what was begun before is done"
)


def encode_result(
    value: object, annotation: object = Any, *, what: str = "a result", bytes_max: int = RESULT_BYTES_MAX
) -> bytes:
    """The value as it is stored. `what` names it in errors ("the result of call 'charge'").

    Raises ResultNotSerializable.
    """
    try:
        data = WRITER.encode(codec_of(annotation).write(value)).encode()
    except Misused as error:
        raise ResultNotSerializable(f"{what} cannot be recorded as {type_name(annotation)}: {error}") from None
    except Misfit as error:
        raise ResultNotSerializable(
            f"{what} cannot be recorded as {type_name(annotation)}: {error.place}{error}. {_WAY_OUT}"
        ) from None
    except (ValueError, RecursionError) as error:  # NaN, half a character, an integer of thousands of digits, a circle
        raise ResultNotSerializable(f"{what} cannot be written as JSON: {error}. {_WAY_OUT}") from error
    if len(data) > bytes_max:
        raise ResultNotSerializable(
            f"{what} has {len(data)} bytes as JSON, at most {bytes_max}: store what is large, and return where it is"
        )
    return data


def decode_result(data: bytes, annotation: object = Any, *, what: str = "a result", cause: str = _TYPE_CHANGED) -> Any:
    """The value as it was returned. `cause`: why it may have another form. Raises ResultUnreadable."""
    try:
        return codec_of(annotation).read(json.loads(data, parse_constant=_refuse_constant))
    except Misused as error:
        raise ResultUnreadable(f"{what} cannot be read as {type_name(annotation)}: {error}") from None
    except Misfit as error:
        raise ResultUnreadable(
            f"{what} was recorded as JSON that is not a valid {type_name(annotation)}: {error.place}{error}. {cause}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise ResultUnreadable(f"{what} is recorded as something that is not JSON: {error}") from error


def read_back(data: bytes, annotation: object = Any, *, what: str = "a result") -> Any:
    """`decode_result` of what was encoded just now, before it is stored. Raises ResultNotSerializable: it would not be
    read again."""
    try:
        return decode_result(data, annotation, what=what)
    except ResultUnreadable as error:
        raise ResultNotSerializable(
            f"{what} is written as JSON that {type_name(annotation)} does not read again (a field that is left out, or "
            f"has another name there), and is not recorded: {error}"
        ) from error


def result_type_of(function: Callable[..., Any]) -> Any:
    """What a function says that it returns; for an async function, what awaiting it gives. Any where it says
    nothing; the annotation as it is where it names something that cannot be looked up (TYPE_CHECKING)."""
    while isinstance(function, functools.partial):
        # functools.partial(asyncio.to_thread, f) returns what f does.
        function = function.args[0] if function.func is _to_thread() and function.args else function.func
    if inspect.isclass(function):
        return function
    if not inspect.isroutine(function) and not hasattr(function, "__wrapped__"):
        function = type(function).__call__
    function = inspect.unwrap(function)
    annotation = _resolve(function, getattr(function, "__annotations__", {}).get("return", Any))
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Awaitable and arguments:
        return arguments[0]
    if origin is Coroutine and len(arguments) == 3:
        return arguments[2]
    return Any if annotation in (Awaitable, Coroutine) else annotation


def annotation_of(function: Callable[..., Any], parameter: str) -> Any:
    """What a function says of a parameter, looked up like its result. Any where it says nothing."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isclass(function):
        function = function.__init__
    elif not inspect.isroutine(function) and not hasattr(function, "__wrapped__"):
        function = type(function).__call__
    function = inspect.unwrap(function)
    return _resolve(function, getattr(function, "__annotations__", {}).get(parameter, Any))


def _resolve(function: Any, annotation: object) -> Any:
    function = getattr(function, "__func__", function)

    def alone() -> None:
        """With this annotation only: others that cannot be looked up must not keep it from being so."""

    alone.__annotations__ = {"it": annotation}
    names = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(alone, names, _read_closure(function), include_extras=True)["it"]
    except Exception:  # whatever looking up a name and subscribing it may raise
        return annotation


def _read_closure(function: Any) -> dict[str, Any]:
    """Names of the function around it, as far as it uses them itself."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _to_thread() -> object:
    """asyncio.to_thread, where asyncio is imported: a program of threads alone need not."""
    return getattr(sys.modules.get("asyncio"), "to_thread", None)


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"{name} is not a number")
