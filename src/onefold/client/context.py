"""What a call inherits from the code around it: the intent it serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_intent: ContextVar[str | None] = ContextVar("onefold.intent", default=None)


@contextmanager
def intent(name: str) -> Iterator[None]:
    """The next request of a retrying client serves this intent: its key is journalled before the first byte leaves,
    and is the same after a restart. One request per intent: `with onefold.intent("pay:ord-42"): client.post(...)`."""
    token = _intent.set(name)
    try:
        yield
    finally:
        _intent.reset(token)


#: The intent of the block we are in, or None.
current_intent: Callable[[], str | None] = _intent.get
