"""The keys of the running step. Clients of onefold send `key()` by themselves."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from onefold._kernel.call_blocks import Block, enter, leave
from onefold._saga.saga_errors import NotInAStep
from onefold.errors import ConfigurationError


@dataclass(frozen=True, slots=True, kw_only=True)
class StepKeys:
    """The idempotency keys of a running step."""

    key: str
    forward: str
    undo: bool


_current: ContextVar[StepKeys | None] = ContextVar("onefold.saga.step", default=None)
#: The users of the key in this execution of the step: shared with its threads and tasks.
_used: ContextVar[dict[Hashable, str]] = ContextVar("onefold.saga.step.used")


def key() -> str:
    """The idempotency key of the running step: `order-42:charge`, in its compensation `order-42:charge:undo`. It is the
    same in each attempt, in every process and after every crash."""
    return current_step("key()").key


def forward_key() -> str:
    """The key of the step that is being undone; in the step itself its own."""
    return current_step("forward_key()").forward


def current_step(what: str) -> StepKeys:
    """The keys of the running step; `what` names the caller in the error."""
    keys = _current.get()
    if keys is None:
        raise NotInAStep(
            f"{what} is for functions that a saga runs as a step (s.step(...)), and none runs here; a thread of your "
            "own does not see the step unless it is handed the context (contextvars.copy_context)"
        )
    return keys


@contextmanager
def only_use(what: str, of: Hashable) -> Iterator[None]:
    """Reserve the step's key for `what`. A second user in the same execution of the step would pass for a repetition of
    the first. One that failed has left nothing, and may come again."""
    used = _used.get()
    if of in used:
        raise ConfigurationError(
            f"{what} and {used[of]} are called by one step ({current_step(what).key}), and its key is good for one of "
            "them: the second would be taken for a repetition. Make each a step of its own, or write both in one "
            "function"
        )
    used[of] = what
    try:
        yield
    except BaseException:
        del used[of]
        raise


@contextmanager
def running(keys: StepKeys) -> Iterator[None]:
    """A block that runs as this step."""
    token, uses = _current.set(keys), _used.set({})
    block = enter(Block(key=keys.key, name=f"of the saga's step {keys.key!r}"))
    try:
        yield
    finally:
        leave(block)
        _used.reset(uses)
        _current.reset(token)
