"""Writing the activity history: a listener that counts, and what writes the counts every few seconds beside it.

Nothing is written where events are emitted, which is inside of requests. On threads a daemon thread writes; on asyncio
a timer of the event loop, which is set by the first event after a write: what is idle writes nothing.

Failure windows. A database that is away costs a warning when it goes, and counts only when it is away for long. A
process that is killed loses what it counted in the last EVERY_S. One that ends in good order writes it: `close`, the
end of a relay or of consumers, the end of an ASGI lifespan, and the exit of an interpreter with threads.

Invariant: nothing here raises, nor is anything carried over into a forked child or onto another loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextvars
import logging
import threading
import time
from typing import Any, Final
from weakref import ref

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.fork_and_loop import watch_forks
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.runners import run, run_async
from onefold._kernel.telemetry.every_event import Event
from onefold._observe.activity.counts import HOUR_S, MINUTE_S, QUARTER_DAY_S, VALUES_MAX, ActivityCounts
from onefold._observe.activity.statements import STATEMENTS, Count
from onefold._observe.recorder import Recorder

EVERY_S: Final = 10.0
#: How long the end of a process waits for its last write.
CLOSE_S: Final = 5.0

#: For how long spans are kept, by their length.
KEPT_S: Final = {MINUTE_S: 2 * 86_400, HOUR_S: 2 * 86_400, QUARTER_DAY_S: 8 * 86_400}
FORGET_EVERY_S: Final = 600.0
#: Rows in one statement, and statements in one turn.
AT_ONCE: Final = 1000
FORGET_BATCHES_MAX: Final = 20

_log = logging.getLogger("onefold.activity")


async def forget_activity(dialect: str, *, limit: int = AT_ONCE, batches_max: int = FORGET_BATCHES_MAX) -> int:
    """Delete spans that are past their time, `limit` at once; how many rows there were."""
    sql = STATEMENTS[dialect]

    async def work() -> int:
        gone = 0
        for span_s, keep_s in KEPT_S.items():
            for _ in range(batches_max):
                # A batch returns the count of its last step, and COMMIT has none: so this one commits by itself.
                deleted = await Batch((sql.forget(span_s, keep_s, limit),))
                gone += deleted
                if deleted < limit:
                    break
        return gone

    return await with_connection(work)


class _ActivityWriter:
    """What both share: counting, and the flow that writes."""

    def __init__(self, dialect: str, every_s: float) -> None:
        self._dialect = dialect
        self._every_s = every_s
        self.counts = ActivityCounts()
        self._record = Recorder(self.counts, values_max=VALUES_MAX)
        self._away = False
        self._forget_at = 0.0

    async def write(self) -> None:
        """Write what was counted, and now and then delete what is past its time. Raises nothing."""
        now_s = int(time.time())
        counts = self.counts.take(now_s)
        try:
            if counts:
                await with_connection(lambda: self._write(counts))
                self.counts.written(counts, now_s)
                self._note_back()
                await self._forget()
        except Exception as error:  # whatever it is: counts stop nothing
            self._note_failure(error)

    async def _write(self, counts: list[Count]) -> None:
        sql, process = STATEMENTS[self._dialect], self.counts.process
        for first in range(0, len(counts), AT_ONCE):
            some = sql.write(process, counts[first : first + AT_ONCE])
            await Batch((Boundary.BEGIN_LIGHT, some, Boundary.COMMIT))

    async def _forget(self) -> None:
        now = time.monotonic()
        if now >= self._forget_at:
            self._forget_at = now + FORGET_EVERY_S
            await forget_activity(self._dialect)

    def _note_failure(self, error: Exception) -> None:
        if not self._away:
            self._away = True
            _log.warning(
                "activity could not be written: %s; it is counted in memory, and tried again every %g s",
                error, self._every_s, exc_info=error,
            )  # fmt: skip

    def _note_back(self) -> None:
        if self._away:
            self._away = False
            _log.info("activity is written again")


class ThreadActivity(_ActivityWriter):
    """A listener for threads: a daemon thread, from the first event on, writes what it has counted."""

    def __init__(self, database: Database[Any], *, every_s: float = EVERY_S) -> None:
        super().__init__(database.dialect, every_s)
        self._database = database
        self.note_fork()
        watch_forks(self)

    def note_fork(self) -> None:
        """The thread is the parent's."""
        self._thread: threading.Thread | None = None
        self._leave = threading.Event()
        self._starting = threading.Lock()

    def __call__(self, event: Event) -> None:
        self._record(event)
        if self._thread is None:
            self._start()

    def close(self) -> None:
        """Write what is left, and end the thread. It is waited for as long as it may take, and no longer: a database
        that is away must not keep a process from ending."""
        with self._starting:
            thread, self._thread = self._thread, None
            self._leave.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(CLOSE_S)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._leave = threading.Event()
                self._thread = threading.Thread(
                    target=self._live, args=(self._leave,), name="onefold-activity", daemon=True
                )
                self._thread.start()
                atexit.register(_close_at_exit, ref(self))

    def _live(self, leave: threading.Event) -> None:
        while not leave.wait(self._every_s):
            run(self.write(), ThreadExecutor(self._database))
        run(self.write(), ThreadExecutor(self._database))


def _close_at_exit(activity: ref[ThreadActivity]) -> None:
    if (found := activity()) is not None:
        found.close()


class TaskActivity(_ActivityWriter):
    """A listener for asyncio: a timer of the event loop on which events are emitted writes the counts. Events of other
    threads are counted, and written with them."""

    def __init__(self, database: AsyncDatabase[Any], *, every_s: float = EVERY_S) -> None:
        super().__init__(database.dialect, every_s)
        self._database = database
        self.note_fork()
        watch_forks(self)

    def note_fork(self) -> None:
        """Timers are the parent's."""
        self._timers: dict[asyncio.AbstractEventLoop, asyncio.TimerHandle] = {}
        self._writing: set[asyncio.Task[None]] = set()

    def __call__(self, event: Event) -> None:
        self._record(event)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return
        if loop not in self._timers:
            self._set_timer(loop)

    async def close(self) -> None:
        """Write what is left, on this loop."""
        loop = asyncio.get_running_loop()
        if (timer := self._timers.pop(loop, None)) is not None:
            timer.cancel()
        begun = [task for task in self._writing if task.get_loop() is loop]
        last = loop.create_task(run_async(self.write(), TaskExecutor(self._database)), name="onefold-activity")
        _, late = await asyncio.wait([*begun, last], timeout=CLOSE_S)
        for task in late:
            task.cancel()

    def _set_timer(self, loop: asyncio.AbstractEventLoop) -> None:
        for other in [each for each in self._timers if each.is_closed()]:
            del self._timers[other]
        # Not in the context of the request that is first: its deadline is not that of the write.
        context = contextvars.Context()
        self._timers[loop] = loop.call_later(self._every_s, self._begin, loop, context=context)

    def _begin(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timers.pop(loop, None)
        task = loop.create_task(self._write_again(loop), name="onefold-activity")
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write_again(self, loop: asyncio.AbstractEventLoop) -> None:
        await run_async(self.write(), TaskExecutor(self._database))
        if self.counts and loop not in self._timers:  # it was not taken, or more was counted meanwhile
            self._set_timer(loop)
