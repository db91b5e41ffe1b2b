"""Handing messages to the broker: there is an answer for each, whatever the broker's adapter does."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from onefold._kernel.effects import Flow, Publish
from onefold._kernel.messages import Confirm, Message
from onefold._outbox.claimed_rows import ClaimedRow
from onefold.errors import BrokerUnavailable, MessageRefused

#: Publishes rows; the outcome of each, in order.
PublishRows: TypeAlias = Callable[[Sequence[ClaimedRow]], Flow[Sequence[Confirm]]]


async def publish_rows(rows: Sequence[ClaimedRow]) -> Sequence[Confirm]:
    """Publish rows; one that cannot be read is refused."""
    messages = [row.message for row in rows if isinstance(row.message, Message)]
    if len(messages) == len(rows):
        return await publish_messages(messages)
    answers = iter(await publish_messages(messages) if messages else ())
    return [
        next(answers)
        if isinstance(row.message, Message)
        else MessageRefused(f"its row cannot be read as an event: {row.message}")
        for row in rows
    ]


async def publish_messages(
    messages: Sequence[Message], publish: Callable[[Sequence[Message]], Awaitable[Sequence[Confirm]]] = Publish
) -> Sequence[Confirm]:
    """Publish, and have an answer for each message whatever happens. `publish` is the effect, or, outside of flows, a
    broker's own."""
    try:
        confirms = await publish(messages)
    except BrokerUnavailable as error:
        return [error] * len(messages)
    except Exception as error:
        # Not what a broker may raise: one of them brings its client down. Alone, it is found.
        if len(messages) == 1:
            return [MessageRefused(f"the broker's adapter failed: {type(error).__name__}: {error}")]
        return [confirm for message in messages for confirm in await publish_messages([message], publish)]
    if len(confirms) != len(messages):
        problem = BrokerUnavailable(f"the broker's adapter gave {len(confirms)} answers for {len(messages)} messages")
        return [problem] * len(messages)
    return list(map(_check_confirm, confirms))


def _check_confirm(confirm: object) -> Confirm:
    """Anything else than a confirm or a failure is a failure: ignored, its row would be sent again and again."""
    if confirm is None or isinstance(confirm, MessageRefused | BrokerUnavailable):
        return confirm
    return BrokerUnavailable(f"the broker's adapter answered {confirm!r}: that is not a confirm")
