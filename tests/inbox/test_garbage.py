"""A message leaves nothing behind that only the garbage collector could free."""

from __future__ import annotations

from typing import Any

from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold.telemetry import Duplicate, Handled
from tests.inbox.backends import Backend, message
from tests.support.collector import left_to_collector


async def test_a_message_that_is_handled_or_a_duplicate_is_freed(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.write(tx, given.id)
        await tx.publish("invoice.sent", {"order": given.id})

    inbox = backend.inbox(handler)

    async def deliver(start: int) -> None:
        for number in range(start, start + 5):
            for expected in (Handled, Duplicate):
                assert isinstance(await backend.deliver(inbox, message(f"m{number}")), expected)

    await deliver(0)
    with left_to_collector() as left:
        await deliver(5)
    assert left == []
