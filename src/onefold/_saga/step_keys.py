"""The keys of the step that runs here. Clients of onefold send `key()` by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from onefold._kernel.call_blocks import Block, enter, leave
from onefold._saga.saga_errors import NotInAStep


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKeys:
    """What a running step is known by."""

    key: str
    forward: str
    undo: bool


_current: ContextVar[StepKeys | None] = ContextVar("onefold.saga.step", default=None)


def key() -> str:
    """The idempotency key of the running step: `order-42:charge`, in its compensation `order-42:charge:undo`. It is the
    same in each attempt, in every process and after every crash."""
    return current_step("key()").key


def forward_key() -> str:
    """The key of the step that is being undone; in the step itself its own."""
    return current_step("forward_key()").forward


def current_step(what: str) -> StepKeys:
    """The keys of the running step; `what` asks for them."""
    keys = _current.get()
    if keys is None:
        raise NotInAStep(
            f"{what} is for functions that a saga runs as a step (s.step(...)), and none runs here; a thread of your "
            "own does not see the step unless it is handed the context (contextvars.copy_context)"
        )
    return keys


@contextmanager
def running(keys: StepKeys) -> Iterator[None]:
    """What runs in here is this step."""
    token = _current.set(keys)
    block = enter(Block(key=keys.key, name=f"of the saga's step {keys.key!r}"))
    try:
        yield
    finally:
        leave(block)
        _current.reset(token)
