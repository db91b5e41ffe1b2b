"""The ledger for tasks of other queues: shared by the adapters for Celery, Dramatiq, arq and taskiq.

A task runs inside the transaction of its message, which its ledger row opens: delivered again, it finds the row there
and does nothing. What it raises rolls the transaction back and reaches the queue, which tries again by its own rules.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final, Protocol, TypeAlias

from onefold._kernel.steps_annotation import is_steps
from onefold.errors import ConfigurationError, MessageUnreadable

#: Attempts before a queue gives up, by default: as many as a consumer of onefold makes.
TRIES: Final = 15

#: The messages being handled, by consumer and id: several where a task calls another one.
_CURRENT: Final[ContextVar[tuple[tuple[str, str], ...]]] = ContextVar("onefold_tasks_at_hand", default=())

#: Finds the id of the current message, given the arguments of the task.
Identify: TypeAlias = Callable[[Sequence[Any], dict[str, Any]], str | None]


class SupportsHandling(Protocol):
    """What this needs of Onefold or AsyncOnefold."""

    @property
    def handling(self) -> Callable[..., Any]: ...


def in_place_of(decorator: str) -> str:
    """The hint for a call without the queue's decorator."""
    return f"{decorator}, and this replaces @{decorator}: @handled_once(once, 'fulfilment', {decorator})"


def in_transaction(
    once: SupportsHandling,
    consumer: str,
    handler: Callable[..., Any],
    identify: Identify,
    *,
    lease_s: float,
    retention_s: float,
    also: Sequence[inspect.Parameter] = (),
) -> Callable[..., Any]:
    """The function that the queue calls: it has the handler's signature without `tx`, plus the parameters `also`.

    Called with a `tx` it is the handler itself, for tests and for tasks that call each other.
    """
    check_handler(consumer, handler)
    awaited = inspect.isasyncgenfunction(inspect.unwrap(once.handling))
    if inspect.iscoroutinefunction(handler) != awaited:
        raise ConfigurationError(
            f"the handler of {consumer!r} is {'a plain `def`' if awaited else 'an `async def`'}, and it is given "
            f"{'an AsyncOnefold, which needs `async def`' if awaited else 'a Onefold, which needs a plain `def`'}"
        )

    def enter(arguments: Sequence[Any], named: dict[str, Any]) -> tuple[Any, tuple[str, str]]:
        message_id = identify(arguments, named)
        if not message_id:
            raise MessageUnreadable(
                f"the task of {consumer!r} was called without a message, so that it is not known whether it has run: "
                "send it to its queue, or call it with a tx of your own"
            )
        if (consumer, message_id) in _CURRENT.get():
            raise MessageUnreadable(
                f"the task of {consumer!r} was called by itself, as a function, for the message {message_id}, which it "
                "is handling: send another message to its queue, or call it with its own tx"
            )
        return once.handling(consumer, message_id, lease_s=lease_s, retention_s=retention_s), (consumer, message_id)

    async def handle_async(*arguments: Any, **named: Any) -> Any:
        if "tx" in named:
            return await handler(*arguments, **named)
        transaction, key = enter(arguments, named)
        async with transaction as tx:
            with _mark_current(key):
                return None if tx is None else await handler(*arguments, **named, tx=tx)

    def handle(*arguments: Any, **named: Any) -> Any:
        if "tx" in named:
            return handler(*arguments, **named)
        transaction, key = enter(arguments, named)
        with transaction as tx, _mark_current(key):
            return None if tx is None else handler(*arguments, **named, tx=tx)

    return wrap_as(handle_async if awaited else handle, handler, also)


@contextmanager
def _mark_current(message: tuple[str, str]) -> Iterator[None]:
    token = _CURRENT.set((*_CURRENT.get(), message))
    try:
        yield
    finally:
        _CURRENT.reset(token)


def check_handler(consumer: str, handler: Callable[..., Any]) -> None:
    """Refuse a handler that cannot be given its transaction."""
    signature = inspect.signature(handler)
    for parameter in signature.parameters.values():
        if is_steps(parameter.annotation):
            raise ConfigurationError(
                f"the handler of {consumer!r} has the parameter {parameter.name!r} for recorded steps, which only "
                "consumers of onefold's own have (@once.consumer): what this queue delivers is handled in one "
                "transaction. In a task of the queue without it, `once.work(name)` records steps"
            )
    if "tx" not in signature.parameters:
        raise ConfigurationError(
            f"the handler of {consumer!r} is {getattr(handler, '__qualname__', handler)}{signature}; it must have a "
            "parameter tx: what it writes elsewhere would not commit with its ledger row"
        )


def wrap_as(
    handle: Callable[..., Any], handler: Callable[..., Any], also: Sequence[inspect.Parameter]
) -> Callable[..., Any]:
    """Give `handle` the handler's name and signature for the library that calls it, without `tx`."""
    signature = inspect.signature(handler)
    functools.update_wrapper(handle, handler)
    others = [parameter for name, parameter in signature.parameters.items() if name != "tx"]
    visible = signature.replace(parameters=[*others, *also])
    vars(handle)["__signature__"] = visible
    annotated = {name: parameter.annotation for name, parameter in visible.parameters.items()}
    handle.__annotations__ = {
        name: annotation for name, annotation in annotated.items() if annotation is not inspect.Parameter.empty
    }
    return handle


def refuse(consumer: str, options: Mapping[str, Any], losing: Mapping[str, tuple[Any, ...]], why: str) -> None:
    """Refuse options that would lose a message, when the task is declared."""
    for name, values in losing.items():
        if name in options and options[name] in values:
            raise ConfigurationError(f"the task of {consumer!r} has {name}={options[name]!r}: {why}. Leave it out")
