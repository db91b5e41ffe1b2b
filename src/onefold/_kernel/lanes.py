"""Lanes: one request's way to its database, on a thread or on asyncio.

A lane holds at most one connection. Whoever opened the lane closes it; a lane closed while it still holds a
connection throws that connection away, because nobody vouches for its state.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, TypeVar

from onefold._kernel.effects import Row, Statement, Step
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.ports import AsyncConnection, AsyncDatabase, Broker, Connection, Database
from onefold.errors import ProgrammerError, StoreError

H = TypeVar("H")

_NO_BROKER = "the lane has no broker: flows that publish run on a BrokerLane"

_NO_CONNECTION = "the lane holds no connection; the flow must await Acquire() first"


class ThreadLane(Generic[H]):
    """A lane for flows that run on a thread."""

    __slots__ = ("_connection", "_database")

    def __init__(self, database: Database[H]) -> None:
        self._database = database
        self._connection: Connection[H] | None = None

    @property
    def connection(self) -> Connection[H]:
        """The connection in use."""
        if self._connection is None:
            raise ProgrammerError(_NO_CONNECTION)
        return self._connection

    def batch(self, steps: Sequence[Step]) -> int:
        return self.connection.batch(steps)

    def fetch(self, statement: Statement) -> list[Row]:
        return self.connection.fetch(statement)

    def acquire(self) -> None:
        if self._connection is None:
            self._connection = self._database.acquire()

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.release()
        except StoreError:  # what was to be committed is committed: a connection lost now fails nobody
            with contextlib.suppress(StoreError):
                connection.discard()

    def discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.discard()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def call(self, function: Callable[[], Any]) -> Any:
        result = function()
        if inspect.iscoroutine(result):
            result.close()
            raise ProgrammerError(
                f"{function!r} is an async function, but this request runs on a thread; pass a plain function, "
                "or use AsyncOnefold"
            )
        return result

    def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        raise ProgrammerError(_NO_BROKER)

    def abandon(self) -> None:
        with contextlib.suppress(StoreError):  # it was on its way out
            self.discard()


#: What cancelled requests left to be done. The loop keeps only weak references to tasks.
_leaving: set[asyncio.Task[None]] = set()


class TaskLane(Generic[H]):
    """A lane for flows that run on asyncio."""

    __slots__ = ("_connection", "_database")

    def __init__(self, database: AsyncDatabase[H]) -> None:
        self._database = database
        self._connection: AsyncConnection[H] | None = None

    @property
    def connection(self) -> AsyncConnection[H]:
        """The connection in use."""
        if self._connection is None:
            raise ProgrammerError(_NO_CONNECTION)
        return self._connection

    def batch(self, steps: Sequence[Step]) -> Coroutine[Any, Any, int]:
        return (self._connection or self.connection).batch(steps)

    def fetch(self, statement: Statement) -> Coroutine[Any, Any, list[Row]]:
        return (self._connection or self.connection).fetch(statement)

    async def acquire(self) -> None:
        if self._connection is None:
            self._connection = await self._database.acquire()

    async def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await connection.release()
        except StoreError:  # what was to be committed is committed: a connection lost now fails nobody
            with contextlib.suppress(StoreError):
                await connection.discard()

    async def discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.discard()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def now(self) -> float:
        return time.monotonic()

    async def call(self, function: Callable[[], Any]) -> Any:
        result = function()
        return await result if inspect.isawaitable(result) else result

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        raise ProgrammerError(_NO_BROKER)

    def abandon(self) -> None:
        """Let go without awaiting: a cancelled task must not wait for a connection in an unknown state."""
        connection, self._connection = self._connection, None
        if connection is not None:
            in_background(connection.discard())


class BrokerLane(TaskLane[H]):
    """A lane that also leads to a broker, for the flows of a relay."""

    __slots__ = ("_broker",)

    def __init__(self, database: AsyncDatabase[H], broker: Broker) -> None:
        super().__init__(database)
        self._broker = broker

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return await self._broker.publish(messages)


def in_background(work: Coroutine[Any, Any, None]) -> None:
    """Clean up after a cancelled request without making it wait. What fails here rolls back by itself."""
    task = asyncio.get_running_loop().create_task(work)
    _leaving.add(task)
    task.add_done_callback(_left)


def _left(task: asyncio.Task[None]) -> None:
    _leaving.discard(task)
    if not task.cancelled():
        task.exception()  # seen: a connection that cannot even be thrown away is gone already
