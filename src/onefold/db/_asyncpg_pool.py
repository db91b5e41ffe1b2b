"""A fair queue for the connections of an asyncpg pool: first come, first served.

asyncpg's pool is not fair. A connection that was given back is taken by the task that runs next; the waiter that was
woken for it finds nothing and goes to the end of the queue, so that on a small and busy pool some requests wait for
seconds. Here those who wait stand in line, and what is released passes to the first of them directly. Every so often it
goes back to the pool all the same, for the pool's other users and its housekeeping. And where the pool has nothing to
wait for, what it would do in several tasks and timers is done here in one item.

How a connection is taken and passed on without the pool has no public names: `_asyncpg_fast` knows those.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, TypeAlias

import asyncpg

from onefold._kernel.executors import in_background
from onefold._kernel.timeouts import within

Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"


class FairPool:
    """The line in front of one pool. It serves the pool's event loop."""

    def __init__(self, pool: Pool, *, patience_s: float) -> None:
        self.pool: Any = pool
        self.patience_s = patience_s
        #: What waits, and until when. All have the same time-out, so the first in line expires first.
        self._line: deque[tuple[asyncio.Future[Any], float]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._acquiring: set[asyncio.Task[None]] = set()

    async def take(self) -> Any:
        """A connection as the pool hands it out, when it is our turn. TimeoutError: it was not, for too long."""
        pool = self.pool
        if not self._line and self.has_idle():
            return await within(self.patience_s, pool.acquire())
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Any] = loop.create_future()
        until = loop.time() + self.patience_s
        self._line.append((turn, until))
        if self._timer is None:
            self._timer = loop.call_at(until, self._dismiss, loop)
        # One task acquires for all, unless the pool has a connection for another: then the first may be connecting.
        if not self._acquiring or (self.has_idle() and len(self._acquiring) < pool.get_max_size()):
            task = asyncio.create_task(self._acquire_for_queue())
            self._acquiring.add(task)
            task.add_done_callback(self._acquiring.discard)
        try:
            return await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self._return(turn.result())  # it came at the moment we were cancelled
            self._stop_unneeded_request()
            raise

    def pass_on(self, proxy: Any) -> bool:
        """Give a connection that may be kept to the first in line. False: no task waits."""
        turn = self._first() if self._line else None
        if turn is None:
            return False
        turn.set_result(self.renew(proxy))
        self._stop_unneeded_request()
        return True

    def has_idle(self) -> bool:
        """Whether the pool has a place for another connection, without waiting for it."""
        raise NotImplementedError

    def may_keep(self, proxy: Any) -> bool:
        """Whether a connection without traces of its last use can be used on as it is. False: there is something about
        it that only the pool knows how to end."""
        raise NotImplementedError

    def renew(self, proxy: Any) -> Any:
        """The connection for its next user; who still has the old proxy can do nothing with it."""
        raise NotImplementedError

    async def _acquire_for_queue(self) -> None:
        """Wait in the pool's own queue, on behalf of all tasks in line."""
        while self._line:
            try:
                proxy = await self.pool.acquire()
            except Exception as error:
                turn = self._first()
                if turn is not None:
                    turn.set_exception(error)
                continue
            turn = self._first()
            if turn is None:
                await self.pool.release(proxy)
            else:
                turn.set_result(proxy)

    def _first(self) -> asyncio.Future[Any] | None:
        while self._line:
            turn, _ = self._line.popleft()
            if not turn.done():  # done: it has given up
                return turn
        return None

    def _dismiss(self, loop: asyncio.AbstractEventLoop) -> None:
        """Tell those whose patience is over. Under load the timer is set all the time, and rarely finds a waiter."""
        now = loop.time()
        while self._line and (self._line[0][0].done() or self._line[0][1] <= now):
            turn, _ = self._line.popleft()
            if not turn.done():
                turn.set_exception(TimeoutError())
        self._timer = loop.call_at(self._line[0][1], self._dismiss, loop) if self._line else None

    def _return(self, proxy: Any) -> None:
        if not (self.may_keep(proxy) and self.pass_on(proxy)):
            in_background(self.pool.release(proxy))

    def _stop_unneeded_request(self) -> None:
        while self._line and self._line[0][0].done():
            del self._line[0]
        if not self._line:
            while self._acquiring:
                self._acquiring.pop().cancel()
