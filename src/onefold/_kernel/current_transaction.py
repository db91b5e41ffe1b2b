"""The transaction, and the request, of the handler that this task or thread is inside of."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any

from onefold._kernel.owned_transaction import OwnedTransaction

handling: ContextVar[OwnedTransaction[Any] | None] = ContextVar("onefold_handling", default=None)

#: The request, from admission to end. Of the HTTP layer's own class.
request_at_hand: ContextVar[Any] = ContextVar("onefold_current_request", default=None)


def call_in(tx: OwnedTransaction[Any], function: Callable[[Any], Any]) -> Any:
    """Call the function where `once.transaction()` knows of its transaction."""
    token = handling.set(tx)
    try:
        answer = function(tx)
    finally:
        handling.reset(token)
    return _await_in(tx, answer) if inspect.isawaitable(answer) else answer


async def _await_in(tx: OwnedTransaction[Any], answer: Awaitable[Any]) -> Any:
    token = handling.set(tx)
    try:
        return await answer
    finally:
        handling.reset(token)
