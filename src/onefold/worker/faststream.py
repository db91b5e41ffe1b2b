"""FastStream: a subscriber whose messages are handled once, in one transaction with their ledger row.

    @broker.subscriber("payments", stream="shop")
    @handled_once(once, "fulfilment")
    async def ship(payment: Payment, tx: Transaction) -> None: ...

FastStream receives, retries and acknowledges, as it is told; the ledger absorbs what comes twice.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Final, Protocol

from faststream import Context
from faststream.message import StreamMessage

from onefold._kernel.transaction import Transaction
from onefold.errors import ConfigurationError, MessageUnreadable

#: Where a message's own id is found, in this order. FastStream's `message_id` is no help: it makes one up.
ID_HEADERS: Final = ("ce-id", "ce_id", "cloudEvents_id", "cloudEvents:id", "Nats-Msg-Id", "message_id")

_MESSAGE: Final = "onefold_message"


class Handling(Protocol):
    """What this needs of AsyncOnefold."""

    def handling(
        self, consumer: str, message_id: str, *, lease_s: float = ...
    ) -> AbstractAsyncContextManager[Transaction[Any] | None]: ...


def handled_once(
    once: Handling, consumer: str, *, lease_s: float = 60.0, id_of: Callable[[StreamMessage[Any]], str] | None = None
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Goes below `@broker.subscriber(...)`. The handler's parameter `tx` gets the message's transaction; everything
    else it is given by FastStream. `consumer` names the handler in the ledger; two handlers must not share a name."""
    identify = message_id if id_of is None else id_of

    def mark(handler: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        asked = inspect.signature(handler)
        if not inspect.iscoroutinefunction(handler) or "tx" not in asked.parameters:
            raise ConfigurationError(
                f"the handler of {consumer!r} is {getattr(handler, '__qualname__', handler)}{asked}; it must be an "
                "`async def` with a parameter tx: what it writes elsewhere would not commit with its ledger row"
            )

        @functools.wraps(handler)
        async def handle(*arguments: Any, **named: Any) -> None:
            received = named.pop(_MESSAGE)
            async with once.handling(consumer, identify(received), lease_s=lease_s) as tx:
                if tx is not None:
                    await handler(*arguments, **named, tx=tx)

        others = [parameter for name, parameter in asked.parameters.items() if name != "tx"]
        message = inspect.Parameter(
            _MESSAGE, inspect.Parameter.KEYWORD_ONLY, annotation=Annotated[StreamMessage[Any], Context("message")]
        )
        seen = asked.replace(parameters=[*others, message], return_annotation=None)
        handle.__signature__ = seen  # type: ignore[attr-defined]
        handle.__annotations__ = {name: parameter.annotation for name, parameter in seen.parameters.items()}
        return handle

    return mark


def message_id(message: StreamMessage[Any]) -> str:
    """The id that the message came with. Raises MessageUnreadable."""
    for name in ID_HEADERS:
        found = message.headers.get(name)
        if found:
            return str(found)
    own = getattr(message.raw_message, "message_id", None)  # an AMQP property
    if own:
        return str(own)
    raise MessageUnreadable(
        f"a message has no id of its own (looked for the headers {', '.join(ID_HEADERS)}); without one nobody can tell "
        "whether it came twice. Have the producer set one, or say where it is with id_of=..."
    )
