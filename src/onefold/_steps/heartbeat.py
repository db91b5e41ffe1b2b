"""The heartbeat: renews the leases of works while their calls last, however long that is.

One for each `Onefold`, on a thread or on the event loop. It beats from the first work that is held to the last, a third
of a lease apart, and renews all works with one statement. A work in a phase is not held here: the phase locks its row,
which keeps others away, and renews the lease with its COMMIT.

Failure windows. A beat that fails is tried again before the lease ends. A process that is stopped beats no more: its
works are taken over, and the beat after it wakes up marks them (`Held.taken_over`). That spares a call that would be
made for nothing; what makes a late holder harmless is the fence in each of its writes.

Invariant: nothing here is carried over into a forked child, or onto another loop. The child would renew works of its
parent.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import monotonic_s
from onefold._kernel.effects import Fetch
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.foreign_cancellations import cancel_until_ended, resist
from onefold._kernel.fork_and_loop import PerLoop, Process
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.runners import run, run_async
from onefold._steps.model import Held
from onefold._steps.sql import STATEMENTS
from onefold._steps.sql.renewals import RENEWED_AT_ONCE, Renewals

logger: Final = logging.getLogger("onefold.steps")

#: Beats within a lease: two may fail before it ends.
_BEATS: Final = 3
#: A beat that failed is tried again after this part of a lease.
_AGAIN: Final = 10


async def renew(dialect: str, works: Sequence[Held]) -> list[Held]:
    """Renew the leases; returns the works that another process has taken over."""
    sql = STATEMENTS[dialect].renewals
    lost: list[Held] = []

    async def renew_all() -> None:
        for of_lease in _by_lease(works):
            lost.extend(await _renew(sql, of_lease))

    await with_connection(renew_all)
    return lost


async def _renew(sql: Renewals, works: Sequence[Held]) -> list[Held]:
    renewed = _digests(await Fetch(sql.renew(works)))
    unrenewed = [work for work in works if work.digest not in renewed]
    own = _digests(await Fetch(sql.ours(unrenewed))) if unrenewed else ()
    return [work for work in unrenewed if work.digest not in own]


class _Beats:
    """The held works, and when each must be renewed. A machine: callers pass the time."""

    def __init__(self) -> None:
        self._due: dict[Held, float] = {}

    def __bool__(self) -> bool:
        return bool(self._due)

    def hold(self, work: Held, now: float) -> None:
        self._due[work] = now + work.lease_s / _BEATS

    def drop(self, work: Held) -> None:
        self._due.pop(work, None)

    def works(self) -> list[Held]:
        return list(self._due)

    def due(self) -> float:
        """When the next beat is, if any work is held."""
        return min(self._due.values())

    def note_renewed(self, works: Iterable[Held], lost: Collection[Held], now: float) -> None:
        """Record that the works were renewed, except those that are lost."""
        for work in works:
            if work not in self._due:
                continue  # its call has ended meanwhile
            if work in lost:
                del self._due[work]
                work.taken_over = True
                logger.warning(
                    "%s (%s) was taken over by another process: its lease of %g s had expired. Its further steps "
                    "in this process are not recorded",
                    work.operation,
                    work.digest.hex(),
                    work.lease_s,
                )
            else:
                self.hold(work, now)

    def note_failed(self, works: Collection[Held], error: Exception, now: float) -> None:
        """Record that the works were not renewed: each is retried after a part of its lease. Works that were added
        meanwhile are not concerned."""
        again_s = min((work.lease_s for work in works), default=0.0) / _AGAIN
        logger.warning(
            "the leases of %d works could not be renewed: %s; tried again in %.3g s", len(works), error, again_s
        )
        for work in works:
            if work in self._due:
                self._due[work] = now + work.lease_s / _AGAIN


class ThreadHeartbeat:
    """For works on threads: one daemon thread, while works are held."""

    def __init__(self, database: Database[Any]) -> None:
        self._database = database
        self._process = Process()
        self._begin()

    def _begin(self) -> None:
        self._here = _ThreadBeats(self._database)

    def hold(self, work: Held) -> None:
        """Renew its lease from now on."""
        self._process.renew(self._begin)
        self._here.hold(work)

    def drop(self, work: Held) -> None:
        """Renew it no more."""
        self._process.renew(self._begin)
        self._here.drop(work)

    def close(self) -> None:
        """End the thread. Held works are renewed no more."""
        self._process.renew(self._begin)
        self._here.close()


class _ThreadBeats:
    """The same, in one process."""

    def __init__(self, database: Database[Any]) -> None:
        self._database = database
        self.beats = _Beats()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False

    def hold(self, work: Held) -> None:
        with self._changed:
            self.beats.hold(work, monotonic_s())
            if self._thread is None:
                self._thread = threading.Thread(target=self._loop, name="onefold-heartbeat", daemon=True)
                self._thread.start()
            else:
                self._changed.notify()  # its lease may be shorter than those of the others

    def drop(self, work: Held) -> None:
        """The thread ends with its next beat, if it is the last: the next call may be soon."""
        with self._changed:
            self.beats.drop(work)

    def close(self) -> None:
        with self._changed:
            thread, self._closing = self._thread, True
            self._changed.notify()
        if thread is not None and thread is not threading.current_thread():
            thread.join()
        self._closing = False

    def _loop(self) -> None:
        while works := self._wait():
            try:
                lost = run(renew(self._database.dialect, works), ThreadExecutor(self._database))
            except Exception as error:  # of any kind: the next beat may succeed; without beats all works are lost
                with self._changed:
                    self.beats.note_failed(works, error, monotonic_s())
            else:
                with self._changed:
                    self.beats.note_renewed(works, lost, monotonic_s())

    def _wait(self) -> list[Held]:
        """The works to renew, when the next beat is due. Empty: this thread ends, and the next work starts another."""
        with self._changed:
            due: float | None = None
            while not self._closing:
                due = self.beats.due() if self.beats else due
                wait_s = 0.0 if due is None else due - monotonic_s()
                if wait_s > 0:
                    self._changed.wait(wait_s)
                    continue
                if self.beats:
                    return self.beats.works()
                break
            self._thread = None
            return []


class TaskHeartbeat:
    """For works on asyncio: a timer of the event loop, while works are held, and a task for each beat."""

    def __init__(self, database: AsyncDatabase[Any]) -> None:
        self._loops = PerLoop(lambda: _LoopHeartbeat(database), lambda closed: None)

    def hold(self, work: Held) -> None:
        """Renew its lease from now on. On the loop that runs it."""
        self._loops.here().hold(work)

    def drop(self, work: Held) -> None:
        """Renew it no more."""
        self._loops.here().drop(work)

    async def close(self) -> None:
        """End the beats of this loop. Held works are renewed no more."""
        for here in self._loops.take():
            await here.close()


class _LoopHeartbeat:
    def __init__(self, database: AsyncDatabase[Any]) -> None:
        self._database = database
        self._loop = asyncio.get_running_loop()
        self._beats = _Beats()
        self._timer: asyncio.TimerHandle | None = None
        self._beat: asyncio.Task[None] | None = None

    def hold(self, work: Held) -> None:
        self._beats.hold(work, self._loop.time())
        self._set_timer()

    def drop(self, work: Held) -> None:
        self._beats.drop(work)
        if not self._beats:
            self._stop_timer()

    async def close(self) -> None:
        self._beats = _Beats()
        self._stop_timer()
        if self._beat is not None:
            await cancel_until_ended(self._beat)

    def _set_timer(self) -> None:
        if not self._beats or self._beat is not None:
            return  # a beat sets it when it ends
        due = self._beats.due()
        if self._timer is None or self._timer.when() > due:
            self._stop_timer()
            # Not in the context of the request that is first: its deadline is not that of the others.
            self._timer = self._loop.call_at(due, self._begin_beat, context=contextvars.Context())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _begin_beat(self) -> None:
        self._timer = None
        self._beat = self._loop.create_task(self._renew(), name="onefold-heartbeat")
        self._beat.add_done_callback(self._end_beat)

    def _end_beat(self, beat: asyncio.Task[None]) -> None:
        self._beat = None
        if not beat.cancelled():
            self._set_timer()

    async def _renew(self) -> None:
        works = self._beats.works()
        try:
            lost = await resist(run_async(renew(self._database.dialect, works), TaskExecutor(self._database)))
        except Exception as error:  # of any kind: the next beat may succeed; without beats all works are lost
            self._beats.note_failed(works, error, self._loop.time())
        else:
            self._beats.note_renewed(works, lost, self._loop.time())


def _by_lease(works: Sequence[Held]) -> Iterable[Sequence[Held]]:
    """The works in groups of one lease each, none too large for a statement."""
    for lease_s in sorted({work.lease_s for work in works}):
        of_lease = [work for work in works if work.lease_s == lease_s]
        for first in range(0, len(of_lease), RENEWED_AT_ONCE):
            yield of_lease[first : first + RENEWED_AT_ONCE]


def _digests(rows: Sequence[Sequence[Any]]) -> frozenset[bytes]:
    return frozenset([bytes(digest) for (digest,) in rows])
