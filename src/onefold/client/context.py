"""What a call inherits from the code around it: the intent it serves, and whether somebody retries it already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from onefold.errors import ProgrammerError

_intent: ContextVar[str | None] = ContextVar("onefold.intent", default=None)

#: Whose calls are being retried here. Two layers that both retry multiply: 4 times 4 is 16 attempts.
layer: ContextVar[str | None] = ContextVar("onefold.retrying", default=None)


@contextmanager
def intent(name: str) -> Iterator[None]:
    """The next request of a retrying client serves this intent: its key is journalled before the first byte leaves,
    and is the same after a restart. One request per intent: `with onefold.intent("pay:ord-42"): client.post(...)`."""
    token = _intent.set(name)
    try:
        yield
    finally:
        _intent.reset(token)


def current_intent() -> str | None:
    """The intent of the block we are in."""
    return _intent.get()


def refuse_nesting(name: str) -> None:
    """Fail where a layer above retries already."""
    if (outer := layer.get()) is not None:
        raise ProgrammerError(
            f"calls of {name} are retried, and this one is made inside of a call of {outer}, which is retried as well: "
            "attempts would multiply, and each of the outer ones would get a key of its own. Keep one of the two "
            "layers: the one next to the network"
        )
