"""What an application has published, taken out of its outbox by the test instead of a relay.

async with once.transaction() as tx:
    await tx.publish("order.placed", {"order": 42})
[event] = await drain(once)
"""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any, overload

from onefold._app import AsyncOnefold, Onefold
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.runners import run, run_async
from onefold.testing._collecting import CollectingTaskExecutor, CollectingThreadExecutor, relay_all
from onefold.testing._given import require_once

__all__ = ["drain"]


@overload
def drain(once: Onefold) -> list[Message]: ...
@overload
def drain(once: AsyncOnefold) -> Coroutine[Any, Any, list[Message]]: ...
def drain(once: Onefold | AsyncOnefold) -> Any:
    """The events that have been published and are due, in their order. They are marked as published; no consumer is
    called. `await drain(once)` for an AsyncOnefold."""
    require_once(once)
    taken: list[Message] = []

    def collect(messages: Sequence[Message]) -> Sequence[Confirm]:
        taken.extend(messages)
        return [None] * len(messages)

    if isinstance(once, Onefold):
        run(relay_all(once._database.dialect), CollectingThreadExecutor(once._database, collect))
        return taken
    return _drain(CollectingTaskExecutor(once._database, collect), once._database.dialect, taken)


async def _drain(executor: CollectingTaskExecutor, dialect: str, taken: list[Message]) -> list[Message]:
    await run_async(relay_all(dialect), executor)
    return taken
