"""A call that does not fit its signature is refused like any other wrong setting: by name, with its value and the way
out, instead of by a bare TypeError.

A call that fits pays for one more frame and nothing else: the signature is looked at only after Python has refused it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from onefold._kernel.redaction import redact
from onefold._kernel.typos import refuse_unknown
from onefold.errors import ConfigurationError

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C", bound=type)

#: So many names are offered.
_NAMED_MAX = 5

_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def named_arguments(
    name: str = "", *, hints: Mapping[str, str] | None = None
) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Decorate a function whose wrong calls get a clear error. `name` is what its callers write; without one it is
    the class of the first argument, for `__init__`. `hints` say what a missing argument may be."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                return function(*args, **kwargs)
            except TypeError as error:
                if _fits(function, args, kwargs):
                    raise  # of the function itself
                message = str(error)
            mistake = _describe_mistake(function, name or type(args[0]).__name__, args, kwargs, hints or {})
            raise ConfigurationError(mistake or message)

        return call

    return decorate


def named_settings(cls: C) -> C:
    """`named_arguments` for a dataclass of settings."""
    settings: Any = cls
    settings.__init__ = named_arguments()(settings.__init__)
    return cls


def show(value: object) -> str:
    """A value as it may stand in a message: short, and without what an address may hide."""
    text = repr(redact(value) if isinstance(value, str) and ("://" in value or "@" in value) else value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fits(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def _describe_mistake(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    hints: Mapping[str, str],
) -> str:
    """The message for a wrong call. Empty: Python's own is better."""
    every = list(inspect.signature(function).parameters.values())
    own = every[1:] if every and every[0].name == "self" else every
    given = args[len(every) - len(own) :]
    places = [p for p in own if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    known = [p.name for p in own if p.kind not in _COLLECTING]
    if len(given) > len(places):
        rest = [p.name for p in own if p.kind is p.KEYWORD_ONLY and p.name not in kwargs]
        some = [f"{each}=..." for each in rest[:_NAMED_MAX]] + ["..."] * (len(rest) > _NAMED_MAX)
        named = f"write its name before it: {', '.join(some)}" if rest else "leave it out"
        return f"{name}(...) takes {_count(places)}, and {show(given[len(places)])} is one more; {named}"
    if not any(p.kind is p.VAR_KEYWORD for p in own):
        refuse_unknown(kwargs, known, name)
    needed = [p for p in own if p.default is p.empty and p.kind not in _COLLECTING]
    missing = [p.name for p in needed if p.name not in kwargs and p not in places[: len(given)]]
    if not missing:
        return ""
    form = ", ".join(f"{p.name}=..." if p.kind is p.KEYWORD_ONLY else p.name for p in needed)
    hint = "".join(f"; {each} is {hints[each]}" for each in missing if each in hints)
    return f"{name}(...) is missing {' and '.join(missing)}: write {name}({form}){hint}"


def _count(places: list[inspect.Parameter]) -> str:
    match len(places):
        case 0:
            return "no argument without a name"
        case 1:
            return f"one argument without a name ({places[0].name})"
        case count:
            return f"{count} arguments without a name ({', '.join(p.name for p in places)})"


def name_type(value: object) -> str:
    """What a value is, in words: "an int", "a Flask"."""
    name = type(value).__qualname__
    return f"{'an' if name[0] in 'aeiouAEIO' else 'a'} {name}"
