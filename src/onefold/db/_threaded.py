"""A synchronous database for asyncio: one thread per connection that is out, so that the loop never blocks.

Every connection keeps a thread of its own while it is out. A shared pool of threads would deadlock: those who
wait for a connection or a lock would occupy the threads that its holder needs to let go of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

from onefold._kernel.checkout import log_release_error
from onefold._kernel.effects import BatchItem, Flow, HandlerStatement, NamedRows, Row, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, runs_a_loop
from onefold._kernel.fork_and_loop import PerLoop
from onefold._kernel.ports import Connection, Database, Queryable
from onefold._kernel.runners import run, run_async
from onefold._kernel.serial_thread import SerialThread
from onefold._kernel.timeouts import within
from onefold.db._left_running import PAUSE_S, is_end, still_used_error
from onefold.errors import ProgrammerError

H = TypeVar("H")
A = TypeVar("A")
T = TypeVar("T")

_log = logging.getLogger("onefold.database")

#: How many connections are out at once, as a rule: each has a thread and open files.
OUT_MAX = 64

#: How many idle threads are kept.
IDLE_MAX = 32

#: How long to keep to that rule.
_ROOM_S = 1.0

#: How rarely a statement that does not end (SQLite has called a function of the application's) is interrupted again.
_PAUSE_S_MAX = 1.0


def call_until_done(interrupt: Callable[[], bool], *, after_s: float = 0.0) -> None:
    """Call it on the running loop until it returns that nothing is left to interrupt. Once is not enough: SQLite
    forgets it when a statement is just about to begin."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return  # a coroutine that is closed after its loop: the process is about to end

    def again(pause_s: float) -> None:
        if interrupt():
            loop.call_later(pause_s, again, min(2 * pause_s, _PAUSE_S_MAX))

    if after_s:
        loop.call_later(after_s, again, PAUSE_S)
    else:
        again(PAUSE_S)


def plain_handle(connection: Connection[H], thread: SerialThread) -> H:
    """The driver's own handle, for user code that has a thread of its own, as FastAPI's `def` endpoints have."""
    return connection.handle


def off_loop_handle(connection: Connection[H], thread: SerialThread) -> H:
    """`plain_handle` where taking the handle may wait: on an event loop that would stop every request, also the one
    that holds what is waited for."""
    if runs_a_loop():
        raise ProgrammerError(
            "tx.connection was touched on a thread that runs an event loop, where it would block every request while "
            "it waits for the database's write lock. Use AsyncOnefold in `async def` endpoints and dependencies; with "
            "Onefold write them as a plain `def`, which runs on a thread of its own"
        )
    return connection.handle


class ThreadedDatabase(Generic[H, A]):
    """Any synchronous database, awaited. `present` makes the handle that user code gets on this side."""

    def __init__(
        self,
        database: Database[H],
        present: Callable[[Any, SerialThread], A],
        *,
        acquire: Callable[[], Connection[H]] | None = None,
        at_hand: Callable[[], Connection[H] | None] = lambda: None,
        release_at_rest: Callable[[Any], bool] | None = None,
        glance: Callable[[Any, Sequence[BatchItem]], list[Row] | None] | None = None,
        interrupt: Callable[[Any], bool] = lambda _: False,
        end_handler: Callable[[Any], float] | None = None,
    ) -> None:
        """`at_hand` gives a connection that can be had without waiting, and so without a hop to a thread;
        `release_at_rest` gives one back like that, if it can, and returns whether it did; `glance` does what can be
        done like that. With a `release_at_rest`, user code, too, must reach a connection on its thread only
        (`keeps_to_thread`); `interrupt` interrupts what it has under way there, and returns whether there was anything.
        `end_handler` lets nothing more of it begin, and returns how long the end of its transaction waits for what
        has."""
        #: The synchronous one.
        self.database = database
        self._acquire = acquire or database.acquire
        self._at_hand = at_hand
        # What its connections use.
        self.present = present
        self.release_at_rest = release_at_rest
        self.glance = glance
        self.interrupt = interrupt
        self.end_handler = end_handler
        self._threads = PerLoop(_Threads, _Threads.end)
        self._closed = False

    @property
    def dialect(self) -> str:
        return self.database.dialect

    @property
    def keeps_to_thread(self) -> bool:
        """Whether user code, too, reaches a connection on its thread only. Else it may have a thread of its own."""
        return self.release_at_rest is not None

    async def acquire(self) -> ThreadedConnection[H, A]:
        threads = self._threads.here()
        room = threads.room
        try:
            await (within(_ROOM_S, room.acquire()) if room.locked() else room.acquire())
        except TimeoutError:
            # Better a thread too many than a wait without end: those that have one may be waiting for this statement.
            leave: Callable[[], None] = _nothing
        else:
            leave = room.release
        thread = threads.idle.popleft() if threads.idle else SerialThread()
        try:
            connection = self._at_hand()
            if connection is None:
                connection = await thread.obtain(self._acquire, _discard)
        except BaseException:
            leave()
            thread.end()
            raise
        return ThreadedConnection(self, connection, thread, partial(self._give_back_thread, threads, leave, thread))

    async def run_whole(self, flow: Flow[T]) -> T:
        """Run a flow on a thread, from its Acquire to its Release, and so with one hop. Cancelled, it goes on to its
        end there, as each of its statements would."""
        if self.keeps_to_thread:  # what can be done without a hop is done on the loop, effect by effect
            return await run_async(flow, TaskExecutor(self))
        threads = self._threads.here()
        thread = threads.idle.popleft() if threads.idle else SerialThread()
        done = thread.run(partial(run, flow, ThreadExecutor(self.database)))
        done.add_done_callback(partial(self._keep_thread, threads, thread))
        return await asyncio.shield(done)

    def _keep_thread(self, threads: _Threads, thread: SerialThread, done: asyncio.Future[Any]) -> None:
        if done.exception() is None:  # which is seen now, also where no task waits for it any more
            self._give_back_thread(threads, _nothing, thread)
        else:
            thread.end()

    async def close(self) -> None:
        self._closed = True
        for threads in self._threads.take():
            for thread in threads.idle:
                await thread.run(_nothing)  # what is on its way back has arrived
            threads.end()
        self.database.close()

    def _give_back_thread(self, threads: _Threads, leave: Callable[[], None], thread: SerialThread) -> None:
        leave()
        if self._closed or len(threads.idle) >= IDLE_MAX:
            thread.end()
        else:
            threads.idle.append(thread)


class _Threads:
    """The threads of one event loop, and how many more there may be."""

    __slots__ = ("idle", "room")

    def __init__(self) -> None:
        self.room = asyncio.Semaphore(OUT_MAX)
        #: The one that was let go last comes last: it may still be busy with what it was handed.
        self.idle: deque[SerialThread] = deque()

    def end(self) -> None:
        while self.idle:
            self.idle.popleft().end()


class ThreadedConnection(Generic[H, A]):
    """One connection and the thread it is used on."""

    __slots__ = ("_connection", "_database", "_leave", "_patient", "_thread")

    def __init__(
        self,
        database: ThreadedDatabase[H, A],
        connection: Connection[H],
        thread: SerialThread,
        leave: Callable[[], None],
    ) -> None:
        self._database = database
        self._connection = connection
        self._thread = thread
        self._leave = leave
        #: Until the end of a transaction has waited in vain for what was left inside: what undoes it waits no more.
        self._patient = True

    @property
    def handle(self) -> A:
        return self._database.present(self._connection, self._thread)

    @property
    def executed(self) -> bool:
        """Whether the handler has had anything executed, where the connection notes that; else True."""
        return getattr(self._connection, "executed", True)

    @property
    def on_this_thread(self) -> Connection[H] | None:
        """The connection itself, for user code that has a thread of its own; None where only our thread uses it."""
        return None if self._database.keeps_to_thread else self._connection

    async def batch(self, items: Sequence[BatchItem]) -> int:
        if (rows := self._try_glance(items)) is not None:
            return len(rows)
        end_handler = self._database.end_handler
        if end_handler is not None and not self._thread.is_idle and is_end(items):
            await self._wait_for_left(end_handler(self._connection))
        return await self._thread.run(partial(self._connection.batch, items))

    async def _wait_for_left(self, patience_s: float) -> None:
        """What a task of the handler's has under way is in front of us, and may have no end."""
        try:
            async with asyncio.timeout(patience_s if self._patient else 0.0):
                await self._thread.run(_nothing)
        except TimeoutError:
            self._patient = False
            raise still_used_error("SQLite", patience_s) from None

    async def fetch(self, statement: Statement) -> list[Row]:
        if statement.brief and (rows := self._try_glance((statement,))) is not None:
            return rows
        return await self._thread.run(partial(self._connection.fetch, statement))

    async def query(self, statement: HandlerStatement) -> NamedRows:
        """Where the handle has a way of its own to be used on its thread, by that: cancelled, it ends as the handler's
        own statements do."""
        connection: Any = self._connection
        presented = self.handle if self._database.keeps_to_thread else None
        if isinstance(presented, Queryable):
            answer: NamedRows = await presented.query(statement)
            return answer
        return await self._thread.run(partial(connection.query, statement))

    def _try_glance(self, items: Sequence[BatchItem]) -> list[Row] | None:
        glance = self._database.glance
        return glance(self._connection, items) if glance is not None and self._thread.is_idle else None

    async def release(self) -> None:
        release_at_rest, is_idle = self._database.release_at_rest, self._thread.is_idle
        if release_at_rest is not None and is_idle and release_at_rest(self._connection):
            self._leave()
            return
        released = self._thread.run(partial(_release, self._connection))
        if self._database.keeps_to_thread:
            self._leave()  # its next user stands behind this on the same thread
            if not is_idle:
                return  # a task that the handler left is in front of us, and may have no end
        else:
            released.add_done_callback(lambda _: self._leave())
        # The answer must not be out before it is gone: user code that kept the handle may use it on a thread of its own
        # then, and a retry, or the next claim of this very request, would find its key locked. A task that is cancelled
        # here stops waiting; the connection goes back all the same.
        await released

    async def discard(self) -> None:
        """The thread is free when it is: it may be in the middle of an abandoned statement."""
        call_until_done(partial(self._database.interrupt, self._connection))
        discarded = self._thread.run(partial(_discard, self._connection))
        discarded.add_done_callback(lambda _: self._leave())
        await asyncio.shield(discarded)


def _release(connection: Connection[Any]) -> None:
    try:
        connection.release()
    except Exception as error:
        log_release_error(error)


def _discard(connection: Connection[Any]) -> None:
    try:
        connection.discard()
    except Exception:
        _log.warning("closing a broken connection failed; the server ends it when it notices", exc_info=True)


def _nothing() -> None:
    """Done when everything before it is."""
