"""FastStream: a subscriber whose messages are handled once, in one transaction with their ledger row.

    @broker.subscriber("payments", stream="shop")
    @handled_once(once, "fulfilment")
    async def ship(payment: Payment, tx: Transaction) -> None: ...

FastStream receives. The message is acknowledged when its transaction is committed, and given back to the broker when
its handler fails, whatever the subscriber's ack policy: FastStream's own default rejects it then, and it would be lost.
The ledger absorbs what comes twice.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any, Final, Protocol

from onefold._kernel.extras import missing_extra
from onefold._kernel.foreign_cancellations import resist

try:
    from faststream import Context
except ModuleNotFoundError as error:
    raise missing_extra(error, "faststream") from None
from faststream.message import AckStatus, StreamMessage

from onefold._inbox.permanent_failures import check_classes, is_final
from onefold._kernel.messages import Delivery
from onefold._kernel.transaction import Transaction
from onefold._policy.ranges import require
from onefold._worker.ledger_reaper import RETENTION_S
from onefold._worker.task_queues import check_handler, wrap_as
from onefold.errors import ConfigurationError, MessageUnreadable, ProgrammerError

#: Headers with a message's own id, in this order. Not FastStream's `message_id`: it invents one where there is none.
ID_HEADERS: Final = ("ce-id", "ce_id", "cloudEvents_id", "cloudEvents:id", "Nats-Msg-Id", "message_id")

SOURCE_HEADERS: Final = ("ce-source", "ce_source", "cloudEvents_source", "cloudEvents:source")

_MESSAGE: Final = inspect.Parameter(
    "onefold_message",
    inspect.Parameter.KEYWORD_ONLY,
    annotation=Annotated[StreamMessage[Any], Context("message")],
)

_log = logging.getLogger("onefold.consumer")


class SupportsAsyncHandling(Protocol):
    """What this needs of AsyncOnefold."""

    def handling(
        self,
        consumer: str,
        message_id: str,
        *,
        source: str | None = ...,
        lease_s: float = ...,
        retention_s: float = ...,
        dead_letter_on: tuple[type[Exception], ...] = ...,
        delivery: Delivery | None = ...,
    ) -> AbstractAsyncContextManager[Transaction[Any] | None]: ...


def handled_once(
    once: SupportsAsyncHandling,
    consumer: str,
    *,
    lease_s: float = 60.0,
    retry_s: float = 1.0,
    retention_s: float = RETENTION_S,
    dead_letter_on: tuple[type[Exception], ...] = (),
    id_of: Callable[[StreamMessage[Any]], str] | None = None,
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., Awaitable[None]]]:
    """Goes below `@broker.subscriber(...)`. The handler's parameter `tx` gets the message's transaction; everything
    else it is given by FastStream. `consumer` names the handler in the ledger; two handlers must not share a name. What
    fails, or takes longer than `lease_s`, is delivered again after `retry_s`, as often as the broker is set to. The
    ledger remembers for `retention_s`, which must not be less than the time in which a message can come again. A
    message whose handler raises an exception of `dead_letter_on` is not delivered again: it is acknowledged, and kept
    as a dead letter of onefold's. `id_of` gives the id that the ledger knows a message by, where it is not the broker's
    own."""
    final = check_classes(consumer, dead_letter_on)
    identify = message_id if id_of is None else id_of
    require(f"consumer {consumer!r}: retry_s", retry_s, most=3600)

    def mark(handler: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
        check_handler(consumer, handler)
        if not inspect.iscoroutinefunction(handler):
            raise ConfigurationError(
                f"the handler of {consumer!r} is {getattr(handler, '__qualname__', handler)}, which is not an `async "
                "def`: its transaction is one of AsyncOnefold"
            )
        handling = functools.partial(
            once.handling, consumer, lease_s=lease_s, retention_s=retention_s, dead_letter_on=final
        )

        async def handle(*arguments: Any, **named: Any) -> None:
            received: StreamMessage[Any] = named.pop(_MESSAGE.name)
            _refuse_acknowledged(consumer, received)
            name, failure = "without an id", None
            try:
                name, source = identify(received), message_source(received) if id_of is None else None
                async with handling(name, source=source, delivery=_delivery(received)) as tx:
                    if tx is not None:
                        try:
                            # FastStream would take a cancellation for the end of its own task, and stop.
                            await resist(handler(*arguments, **named, tx=tx))
                        except Exception as error:
                            failure = error
                            raise
                        _refuse_early_ack(consumer, received)
            except Exception as error:
                # The handler's own comes through when its dead letter is written; else the message must come again.
                if error is failure and is_final(error, final):
                    await received.ack()
                else:
                    await _give_back(consumer, name, received, retry_s)
                raise
            await received.ack()

        return wrap_as(handle, handler, (_MESSAGE,))

    return mark


def _refuse_acknowledged(consumer: str, message: StreamMessage[Any]) -> None:
    """Refuse a subscriber that loses failed messages. A decorator cannot see the subscriber, so its messages are
    checked."""
    if message.committed is not None:
        raise ConfigurationError(
            f"the subscriber of {consumer!r} acknowledges messages before they are handled (AckPolicy.ACK_FIRST, which "
            "is FastStream's default for Kafka): one whose handler fails would be lost, so none is handled. Give the "
            "subscriber ack_policy=AckPolicy.NACK_ON_ERROR"
        )
    # FastStream marks what comes over NATS without a stream as acknowledged: its `nack` is there, and does nothing.
    if type(message).nack is StreamMessage.nack or getattr(message.raw_message, "is_acked", False) is True:
        raise ConfigurationError(
            f"the subscriber of {consumer!r} receives a {type(message).__name__}, which its broker cannot deliver "
            "again: one whose handler fails would be lost, so none is handled. Subscribe to a stream or a queue that "
            "acknowledges"
        )
    if _is_without_group(message):
        raise ConfigurationError(
            f"the subscriber of {consumer!r} reads the Redis stream {message.raw_message['channel']!r} without a "
            "consumer group: one whose handler fails would be lost, so none is handled. Give it one: StreamSub(..., "
            "group='shop', consumer='one')"
        )


def _is_without_group(message: StreamMessage[Any]) -> bool:
    """Whether it is of a Redis stream, which delivers again to groups only. Its test broker knows no groups."""
    return getattr(message, "group", "") is None and hasattr(getattr(message, "consumer", None), "connection_pool")


def _refuse_early_ack(consumer: str, message: StreamMessage[Any]) -> None:
    if message.committed is not None:
        raise ProgrammerError(
            f"the handler of {consumer!r} has settled its message itself ({message.committed.value.lower()}) while its "
            "transaction was still open: leave that to handled_once, which acknowledges after COMMIT"
        )


def _delivery(message: StreamMessage[Any]) -> Delivery:
    """What a dead letter keeps of it."""
    data = message.body if isinstance(message.body, bytes) else b""
    return Delivery(data=data, headers={str(name): str(value) for name, value in message.headers.items()})


async def _give_back(consumer: str, name: str, message: StreamMessage[Any], retry_s: float) -> None:
    """Have the broker deliver it again after a pause: the broker's own where it has one (NATS), else ours."""
    try:
        nack: Callable[..., Awaitable[None]] = message.nack
        if "delay" in inspect.signature(nack).parameters:
            await nack(delay=retry_s)
        else:
            await asyncio.sleep(retry_s)
            await nack()
            if (group := getattr(message, "group", None)) is not None:  # of a Redis stream: its `nack` does nothing
                _log.warning(
                    "consumer %r: message %s failed, and is pending in group %r of the Redis stream %r; it comes again "
                    "to a subscriber that claims it: StreamSub(..., min_idle_time=...)",
                    consumer, name, group, message.raw_message["channel"],
                )  # fmt: skip
    except Exception:
        _log.exception(
            "consumer %r: message %s failed, and could not be given back to its broker; it comes again when the broker "
            "misses its acknowledgement, if it does", consumer, name,
        )  # fmt: skip
    # For messages that do not record it themselves (MQTT): FastStream's ack policy must not reject it now.
    message.committed = message.committed or AckStatus.NACKED


def message_source(message: StreamMessage[Any]) -> str | None:
    """The source of a CloudEvent, within which its id is unique."""
    return next((str(found) for name in SOURCE_HEADERS if (found := message.headers.get(name))), None)


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
        f"a message has no id of its own (looked for the headers {', '.join(ID_HEADERS)}); without one a duplicate "
        "cannot be detected. Have the producer set one, or give id_of=..."
    )
