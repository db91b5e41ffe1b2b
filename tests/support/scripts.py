"""A flow against a script: what it must ask for, turn by turn, and what it is told.

Flows await data, so a protocol can be tested without a database: every answer, every error and every order of
them is a few lines of script. Where flow and script part ways, the message says what came instead of what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from onefold._kernel.effects import Call, Effect, Flow

T = TypeVar("T")

#: What a turn expects: this very effect, any effect of this type, or one that a function says yes to.
Expected: TypeAlias = Effect[Any] | type[Effect[Any]] | Callable[[Effect[Any]], bool]

#: An expectation and its answer. An exception is thrown at the place that awaits.
Turn: TypeAlias = tuple[Expected, Any]


class Really(Enum):
    """Instead of an answer: call the function that a `Call` brings, and answer with its result."""

    CALL = "call it"


class ScriptDiffers(AssertionError):
    """The flow asked for something else than the script has at this turn."""


def play(flow: Flow[T], script: Iterable[Turn]) -> T:
    """Run a flow against a script; returns what the flow returns and raises what it raises.

    Every turn must be used: a flow that ends early differs from its script as well.
    """
    turns = list(script)
    resume: Any = flow.send
    answer: Any = None
    for number, (expected, reply) in enumerate(turns, start=1):
        effect = _resumed(flow, resume, answer, number, turns)
        if not _matches(effect, expected):
            flow.close()
            raise ScriptDiffers(
                f"turn {number} of {len(turns)}: the script has {_shown(expected)}, the flow awaited {effect!r}"
            )
        resume, answer = _answered(flow, effect, reply)
    try:
        effect = resume(answer)
    except StopIteration as end:
        result: T = end.value
        return result
    flow.close()
    raise ScriptDiffers(f"the script ends after turn {len(turns)}, the flow awaited {effect!r}")


def _resumed(flow: Flow[Any], resume: Any, answer: Any, number: int, turns: list[Turn]) -> Any:
    """The next effect. An end, good or bad, is too early here."""
    left = f"turn {number} of {len(turns)}: the script has {_shown(turns[number - 1][0])}"
    try:
        return resume(answer)
    except StopIteration as end:
        raise ScriptDiffers(f"{left}, the flow ended with {end.value!r}") from None
    except Exception as error:
        if error is not answer:
            error.add_note(f"{left}, the flow raised this")
            raise
        # Whoever scripted the error may mean it to rise; what the script has left then says that it should not.
        raise ScriptDiffers(f"{left}, the flow let {error!r} rise") from error


def _answered(flow: Flow[Any], effect: Effect[Any], reply: Any) -> tuple[Any, Any]:
    if reply is Really.CALL:
        if not isinstance(effect, Call):
            flow.close()
            raise ScriptDiffers(f"the script answers {effect!r} with {reply}, which only a Call can be answered with")
        try:
            return flow.send, effect.argument()
        except Exception as error:
            return flow.throw, error
    return (flow.throw if isinstance(reply, BaseException) else flow.send), reply


def _matches(effect: object, expected: Expected) -> bool:
    if isinstance(expected, Effect):
        return effect == expected
    if isinstance(expected, type):
        return isinstance(effect, expected)
    return isinstance(effect, Effect) and expected(effect)


def _shown(expected: Expected) -> str:
    return expected.__name__ if isinstance(expected, type) else repr(expected)
