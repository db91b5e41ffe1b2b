"""A relay whose broker is a list: what it takes out of an outbox, it hands to a function."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias
from uuid import uuid4

from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.messages import Confirm, Message
from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession

Collect: TypeAlias = Callable[[Sequence[Message]], Sequence[Confirm]]


async def relay_all(dialect: str) -> None:
    """Take what is in the outbox and due, as a relay does."""
    await make_due_claimable(dialect)
    session = RelaySession(f"testing-{uuid4().hex}", dialect, RelayConfig(), random.random)
    await session.enter()
    while (await session.tick()).claimed:
        pass
    await session.leave()


class CollectingThreadExecutor(ThreadExecutor[Any]):
    """An executor whose broker is a function."""

    __slots__ = ("_collect",)

    def __init__(self, database: Any, collect: Collect) -> None:
        super().__init__(database)
        self._collect = collect

    def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return self._collect(messages)


class CollectingTaskExecutor(TaskExecutor[Any]):
    """`CollectingThreadExecutor` for asyncio."""

    __slots__ = ("_collect",)

    def __init__(self, database: Any, collect: Collect) -> None:
        super().__init__(database)
        self._collect = collect

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return self._collect(messages)
