"""A synchronous database for asyncio: one thread per lane, so that the loop never blocks.

Every connection keeps a thread of its own while it is out. A shared pool of threads would deadlock: those who
wait for a connection or a lock would occupy the threads that its holder needs to let go of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Generic, ParamSpec, TypeVar

from onefold._kernel.effects import Row, Statement, Step
from onefold._kernel.ports import Connection, Database
from onefold.errors import ProgrammerError

H = TypeVar("H")
A = TypeVar("A")
T = TypeVar("T")
P = ParamSpec("P")


class LaneThread:
    """One thread that does what it is handed, in order."""

    __slots__ = ("_executor",)

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="onefold")

    def submit(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._executor.submit(function, *args, **kwargs)

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.wrap_future(self.submit(function, *args, **kwargs))

    def end(self) -> None:
        self._executor.shutdown(wait=False)


def plain_handle(connection: Connection[H], thread: LaneThread) -> H:
    """The driver's own handle, for user code that has a thread of its own, as FastAPI's `def` endpoints have."""
    return connection.handle


def off_loop_handle(connection: Connection[H], thread: LaneThread) -> H:
    """The same where taking the handle may wait: on an event loop that would stop every request, also the one that
    holds what is waited for."""
    if _runs_a_loop():
        raise ProgrammerError(
            "tx.connection was touched on a thread that runs an event loop, where it would block every request while "
            "it waits for the database's write lock. Use AsyncOnefold in `async def` endpoints and dependencies; with "
            "Onefold write them as a plain `def`, which runs on a thread of its own"
        )
    return connection.handle


class ThreadedDatabase(Generic[H, A]):
    """Any synchronous database, awaited. `present` makes the handle that user code gets on this side."""

    def __init__(
        self, database: Database[H], present: Callable[[Connection[H], LaneThread], A], *, closes: bool = True
    ) -> None:
        self._database = database
        self._present = present
        self._closes = closes
        self._idle: list[LaneThread] = []

    @property
    def dialect(self) -> str:
        return self._database.dialect

    async def acquire(self) -> ThreadedConnection[H, A]:
        thread = self._idle.pop() if self._idle else LaneThread()
        taken = thread.submit(self._database.acquire)
        try:
            connection = await asyncio.wrap_future(taken)
        except BaseException:
            # A cancelled wait may be given its connection later, when nobody listens any more.
            taken.add_done_callback(_discard_if_taken)
            thread.end()
            raise
        return ThreadedConnection(connection, thread, self._present, self._idle)

    async def close(self) -> None:
        if self._closes:
            self._database.close()
        while self._idle:
            self._idle.pop().end()


class ThreadedConnection(Generic[H, A]):
    """One connection and the thread it is used on."""

    __slots__ = ("_connection", "_idle", "_present", "_thread")

    def __init__(
        self,
        connection: Connection[H],
        thread: LaneThread,
        present: Callable[[Connection[H], LaneThread], A],
        idle: list[LaneThread],
    ) -> None:
        self._connection = connection
        self._thread = thread
        self._present = present
        self._idle = idle

    @property
    def handle(self) -> A:
        return self._present(self._connection, self._thread)

    async def batch(self, steps: Sequence[Step]) -> int:
        return await self._thread.run(self._connection.batch, steps)

    async def fetch(self, statement: Statement) -> list[Row]:
        return await self._thread.run(self._connection.fetch, statement)

    async def release(self) -> None:
        await self._let_go(self._connection.release)

    async def discard(self) -> None:
        await self._let_go(self._connection.discard)

    async def _let_go(self, way: Callable[[], None]) -> None:
        # Shielded: whoever waits for it may be cancelled, but a connection that is on its way out must arrive.
        leaving = asyncio.shield(asyncio.wrap_future(self._thread.submit(way)))
        # The thread does things in order, so whoever takes it next comes after.
        self._idle.append(self._thread)
        await leaving


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _discard_if_taken(taken: Future[Any]) -> None:
    if not taken.cancelled() and taken.exception() is None:
        taken.result().discard()
