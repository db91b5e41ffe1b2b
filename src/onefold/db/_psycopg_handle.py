"""What a handler gets of a psycopg connection: an object of its own, over the same session, void when it is over.

psycopg has one object per session, and its pools hand out that same object again and again. A background task that
keeps it would write into another request's transaction. So the handler works with a copy of it: of the same class, with
the same session, lock and adapters, but with settings (row factory and the like) of its own. Everything that reaches
the server goes through `wait`, also from cursors and transactions that were made before: a void copy refuses there. Who
waits for the connection's lock meanwhile gets it, and is refused all the same. On threads, `wait` also notes whether
one is inside libpq, which must not be closed under it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import lru_cache
from os import getpid
from threading import RLock
from typing import Any, Generic, NoReturn, TypeVar

from psycopg import AsyncConnection, Connection
from psycopg.adapt import AdaptersMap
from psycopg.pq import ConnStatus

from onefold._kernel.effects import BatchItem
from onefold.db._left_running import END_S, close_unlocked, hang_up, is_end, is_free, still_used_error
from onefold.db._opened_elsewhere import inherited_error
from onefold.errors import TransactionMisused

C = TypeVar("C", Connection[Any], AsyncConnection[Any])

#: How long tasks have to leave a connection that was hung up.
_LEFT_S = 5.0


class LentCopy(Generic[C]):
    """The copy of one connection that is with a handler, as long as it is valid."""

    __slots__ = ("_before", "connection", "handle", "patience_s", "waits")

    def __init__(self, connection: C) -> None:
        self.connection: C = connection
        #: How long the end of its transaction waits for what was left inside.
        self.patience_s = END_S
        self.waits = _NotedWait(connection.wait)
        pgconn = connection.pgconn
        self._before = pgconn.notice_handler, pgconn.notify_handler
        self.handle: C = self.copy(connection)

    def copy(self, connection: C) -> C:
        """The copy. It prepares no statements: psycopg would give them names that the original has given already."""
        pgconn = connection.pgconn
        kind: Any = type(connection)
        handle: C = _copy_class(kind)(pgconn)  # as psycopg makes it, which has notices go to the new object
        handle.prepare_threshold = None
        # What the application has put there in the pool's `configure`, too; and what has a leading underscore is
        # psycopg's own.
        shown = {name: value for name, value in vars(connection).items() if not name.startswith("_")}
        vars(handle).update(shown, wait=self.waits, onefold_adapters=AdaptersMap(connection.adapters))
        notice, notify = self._before
        pgconn.notice_handler = _both(notice, pgconn.notice_handler)
        pgconn.notify_handler = _both(notify, pgconn.notify_handler)
        return handle

    def empty(self) -> None:
        """Take from the copy what it reaches the server by."""
        vars(self.handle).update(wait=refuse, pgconn=NoSession())

    @property
    def executed(self) -> bool:
        """Whether the handler has had anything executed: what it forgets to await is not even sent."""
        return self.waits.called

    def end(self) -> None:
        """The handler has ended: what is under way may finish, and nothing begins any more."""
        self.waits.over = True

    def still_used_error(self, items: Sequence[BatchItem] | None) -> TransactionMisused:
        """The wait for it was in vain. Whatever undoes the transaction now waits no more."""
        waited_s, self.patience_s = self.patience_s, 0.0
        return still_used_error("psycopg", waited_s, items)

    def void(self) -> None:
        """From now on code that kept the handle can do nothing with it, but to finish what is under way."""
        self.waits.over = True
        pgconn = self.connection.pgconn
        pgconn.notice_handler, pgconn.notify_handler = self._before
        self.empty()

    def close_when_left(self, close: Callable[[], None]) -> None:
        """The session is closed, when no thread that has the handle is inside libpq."""
        self.void()
        close_unlocked(self.waits.inside, lambda: hang_up(self.connection), close, driver="psycopg")


class _CopyOfConnection:
    """What the class of a copy has in place of its original's."""

    @property
    def adapters(self) -> AdaptersMap:
        adapters: AdaptersMap = vars(self)["onefold_adapters"]
        return adapters

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        """`execute` begins with it: both raise that the request is over, rather than that the connection is closed."""
        original: Any = super()
        return refuse() if vars(self)["wait"] is refuse else original.cursor(*args, **kwargs)

    def __del__(self) -> None:
        """The session is the original's: nothing was left open."""


@lru_cache(maxsize=100)
def _copy_class(kind: Any) -> Any:
    return type(kind.__name__, (_CopyOfConnection, kind), {"__module__": kind.__module__})


def _both(first: Callable[[Any], object] | None, second: Callable[[Any], object] | None) -> Callable[[Any], None]:
    """The handlers of the application's connection, and those of the copy."""

    def call_both(notice: Any) -> None:
        for handler in (first, second):
            if handler is not None:
                handler(notice)

    return call_both


def check_left(handed_out: LentCopy[Connection[Any]], items: Sequence[BatchItem] | None = None) -> None:
    """In front of items that come after a handler, or (None) of a statement: what it has left on a thread is waited
    for, within limits. A `stream()` that it keeps would hold the connection for ever."""
    if _is_held_up(handed_out, items) and not is_free(handed_out.handle.lock, handed_out.patience_s):
        raise handed_out.still_used_error(items)


async def check_left_by_tasks(
    handed_out: LentCopy[AsyncConnection[Any]], items: Sequence[BatchItem] | None = None
) -> None:
    """`check_left` for what the handler has left in tasks."""
    if _is_held_up(handed_out, items) and handed_out.handle.lock.locked():
        try:
            async with asyncio.timeout(handed_out.patience_s), handed_out.handle.lock:
                pass
        except TimeoutError:
            raise handed_out.still_used_error(items) from None


async def hang_up_tasks(handed_out: LentCopy[AsyncConnection[Any]] | None) -> None:
    """Have the tasks that wait for the server leave, before their socket is closed: its number goes to the next
    connection, and they would take its answers away from that one."""
    if handed_out is None:
        return
    handed_out.void()
    if tasks := handed_out.waits.tasks:
        with suppress(Exception):  # closed
            hang_up(handed_out.connection)
        await asyncio.wait(tasks, timeout=_LEFT_S)


def _is_held_up(handed_out: LentCopy[Any], items: Sequence[BatchItem] | None) -> bool:
    """Whether the items have to wait for what is under way. If they come after the handler, nothing begins from now
    on: it would keep us out again as soon as we have looked."""
    if items is None:
        return True
    if is_end(items):
        handed_out.end()
        return True
    return False


class _NotedWait:
    """The connection's own `wait`, which notes that it was called, and lets nothing in after the end. The original's,
    which has the same session: a copy that is held by what it holds would be left to the garbage collector."""

    __slots__ = ("_process", "_wait", "called", "inside", "over", "tasks")

    def __init__(self, wait: Callable[..., Any]) -> None:
        self._wait = wait
        self._process = getpid()
        self.called = self.over = False
        #: Held by the thread that is inside libpq. A `stream()` that is not read on holds the connection's own lock.
        self.inside = RLock()
        #: One for each task that waits for the server.
        self.tasks: set[asyncio.Future[None]] = set()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.called = True
        if self._process != getpid():  # before the lock: a thread of the parent may have held it
            raise inherited_error("psycopg")
        with self.inside:
            waited = refuse() if self.over else self._wait(*args, **kwargs)
        return self._note(waited) if inspect.iscoroutine(waited) else waited

    async def _note(self, waited: Coroutine[Any, Any, Any]) -> Any:
        finished = asyncio.get_running_loop().create_future()
        self.tasks.add(finished)
        try:
            return await waited
        finally:
            self.tasks.discard(finished)
            finished.set_result(None)


class NoSession:
    """Stands where the session was. It reports that it is closed."""

    status = ConnStatus.BAD

    def __getattr__(self, name: str) -> Any:
        refuse()


def refuse(*_: object, **__: object) -> NoReturn:
    raise TransactionMisused(
        "the request that this psycopg connection belonged to is over; finish the work before the handler returns, or "
        "take a connection of its own for it (a task left behind would write into another request's transaction)"
    )
