"""The definition that `@saga` makes of a function: a name, a version and the rules of its compensations."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from json import dumps
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

from onefold._kernel.arguments import named_arguments
from onefold._policy.backoff import Backoff
from onefold._policy.retry import RetryPolicy
from onefold._saga.saga_names import check_name, check_saga_name
from onefold._saga.saga_values import Json, encode, parameter_types
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._saga.execution import Saga

In = TypeVar("In")
Out = TypeVar("Out")

#: One round of a compensation. After it the saga is stuck, which is logged and shown, and the next round begins.
UNDO_RETRY: Final = RetryPolicy(attempts_max=5)
#: The pauses between rounds, as the engine's timers.
UNDO_PAUSE: Final = Backoff(transient_base_s=5.0, throttled_base_s=5.0, cap_s=300.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SagaDefinition(Generic[In, Out]):
    """A saga that engines can run: what `@saga` gives. `function` is what was decorated; `undo_retry` and `undo_pause`
    are as they were given to `@saga`."""

    name: str
    version: str
    function: Callable[[Saga, In], Awaitable[Out]] = field(repr=False)
    undo_retry: RetryPolicy = field(repr=False)
    undo_pause: Backoff = field(repr=False)

    @property
    def workflow(self) -> str:
        """Its name at engines: each version is a workflow of its own."""
        return f"{self.name}@{self.version}"


AnySaga: TypeAlias = SagaDefinition[Any, Any]


@named_arguments("saga")
def saga(
    name: str, *, version: str = "1", undo_retry: RetryPolicy = UNDO_RETRY, undo_pause: Backoff = UNDO_PAUSE
) -> Callable[[Callable[[Saga, In], Awaitable[Out]]], SagaDefinition[In, Out]]:
    """Define a saga: `@saga("order")` above `async def order(s: Saga, o: dict) -> dict`.

    The function may do nothing but call steps and decide by their results: an engine runs it again from its beginning
    after a crash, and gives it the recorded results. Another order of steps needs another `version`; keep the function
    of the old one among the engine's `sagas` until its last saga has ended. `undo_retry` is one round of attempts at a
    compensation, `undo_pause` how long the pauses between rounds are: there is no last round.
    """
    if callable(name):
        shown = getattr(name, "__name__", "order")
        raise ConfigurationError(f'@saga above {shown} needs the name of the saga: write @saga("{shown}")')
    check_saga_name(name)
    check_name(version, "saga version")
    if not isinstance(undo_retry, RetryPolicy):
        raise ConfigurationError(f"undo_retry={undo_retry!r} of saga {name!r} must be a RetryPolicy")
    if not isinstance(undo_pause, Backoff):
        raise ConfigurationError(f"undo_pause={undo_pause!r} of saga {name!r} must be a Backoff")

    def decorate(function: Callable[[Saga, In], Awaitable[Out]]) -> SagaDefinition[In, Out]:
        _check_function(name, function)
        return SagaDefinition(
            name=name, version=version, function=function, undo_retry=undo_retry, undo_pause=undo_pause
        )

    return decorate


def _check_function(name: str, function: object) -> None:
    if isinstance(function, SagaDefinition):
        raise ConfigurationError(f"saga {name!r}: saga {function.name!r} has an @saga already: leave one of them out")
    if not inspect.iscoroutinefunction(function):
        raise ConfigurationError(
            f"saga {name!r}: {_show_function(function)} must be an `async def`, for its steps are awaited: write "
            f"`async def {getattr(function, '__name__', 'order').strip('<>')}(s: Saga, o: dict)`"
        )
    signature = _show_function(function)
    try:
        inspect.signature(function).bind(None, None)
    except TypeError:
        raise ConfigurationError(
            f"saga {name!r}: {signature} must take the saga and its input, as "
            "`async def order(s: Saga, o: dict)` does; put several values into one dict"
        ) from None
    first, second = list(inspect.signature(function).parameters.values())[:2]
    if _takes_saga(second) and not _takes_saga(first):
        raise ConfigurationError(
            f"saga {name!r}: {signature} takes the saga second: write `async def {function.__name__}({second.name}: "
            f"Saga, {first.name})`"
        )


def _takes_saga(parameter: inspect.Parameter) -> bool:
    annotation = parameter.annotation
    type_name = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")
    return type_name.rpartition(".")[2] == "Saga"


def _show_function(function: object) -> str:
    """A function with its signature, without its address."""
    if not callable(function):
        return f"{type(function).__qualname__} {function!r:.80}"
    name = getattr(function, "__qualname__", type(function).__qualname__)
    try:
        return f"{name}{inspect.signature(function)}"
    except (TypeError, ValueError):  # written in C
        return name


def check_saga(saga: object, call: str) -> None:
    """Refuse an argument that is no saga. `call`: the text of the call up to it, for the error."""
    if isinstance(saga, SagaDefinition):
        return
    if callable(saga):
        shown = getattr(saga, "__name__", type(saga).__name__)
        raise ConfigurationError(f"{call}{shown}, ...): put @saga(...) above the function and start that")
    raise ConfigurationError(
        f"{call}{saga!r:.80}, ...) has no saga there: write {call}order, 'order-42', ...), with the saga, its id and "
        "its input"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The arguments of a start. Engines store them, and compare them when the id is started again."""

    saga_id: str
    saga: str
    version: str
    fingerprint: str
    input: Json

    def to_json(self) -> Json:
        """The form that engines store."""
        return {
            "id": self.saga_id,
            "saga": self.saga,
            "version": self.version,
            "fingerprint": self.fingerprint,
            "input": self.input,
        }

    @staticmethod
    def from_json(data: Json) -> Start:
        """The inverse of `to_json`."""
        return Start(
            saga_id=data["id"],
            saga=data["saga"],
            version=data["version"],
            fingerprint=data["fingerprint"],
            input=data["input"],
        )


def begin(definition: AnySaga, saga_id: str, input_value: object) -> Start:
    """The Start of this saga, with its input encoded."""
    [annotation] = parameter_types(definition.function, 1, after=1)
    data = encode(input_value, annotation, what=f"the input of saga {saga_id!r}")
    return Start(
        saga_id=saga_id,
        saga=definition.name,
        version=definition.version,
        fingerprint=fingerprint(definition.name, definition.version, data),
        input=data,
    )


def fingerprint(name: str, version: str, data: Json) -> str:
    """A hash of a saga's name, version and input, which does not depend on the order of its members."""
    encoded = dumps([name, version, data], sort_keys=True, separators=(",", ":")).encode()
    return blake2b(encoded, digest_size=16, person=b"onefold saga").hexdigest()


def by_workflow(sagas: Sequence[AnySaga]) -> dict[str, AnySaga]:
    """The sagas of an engine, by their names there."""
    by_name: dict[str, AnySaga] = {}
    for each in sagas:
        if not isinstance(each, SagaDefinition):
            raise ConfigurationError(
                f"sagas=[...] has {each!r}, which is not a saga: put @saga(...) above the function"
            )
        if by_name.setdefault(each.workflow, each) is not each:
            raise ConfigurationError(
                f"two sagas are called {each.name!r} in version {each.version!r}: "
                f"{by_name[each.workflow].function.__qualname__} and {each.function.__qualname__}; "
                "give one another name, or version="
            )
    if not by_name:
        raise ConfigurationError("sagas=[] is empty: name the sagas that this engine runs, as sagas=[order]")
    return by_name
