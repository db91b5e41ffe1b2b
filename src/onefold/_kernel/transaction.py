"""The transaction as a handler sees it: the driver's own connection, savepoints, and events that leave with COMMIT.

The handler never begins or ends it. It is open from the claim to the settle; before and after, touching it is an
error that says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from types import TracebackType
from typing import Any, Generic, Protocol, TypeVar
from uuid import UUID

from onefold._kernel.effects import Boundary, Call, Statement
from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold.errors import ProgrammerError, StoreUnavailable

H = TypeVar("H")

_NOT_BEGUN = "the request's transaction has not begun"

_ENDED = (
    "the request's transaction is over: its answer has been given. Work that follows the answer (background tasks, the "
    "rest of a stream) needs a connection of its own"
)


class EventId(str):
    """The id of an event. `await` gives it once more, so that async code may write `await tx.publish(...)`."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, str]:
        yield from ()
        return self


class Outgoing(Protocol):
    """The events of one transaction, until COMMIT. See `outbox/write.py`."""

    def __len__(self) -> int: ...
    def add(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | UUID | None,
        headers: Mapping[str, str],
        content_type: str | None,
        not_before: datetime | None,
    ) -> str: ...
    def cut(self, length: int) -> None: ...
    def flush(self) -> tuple[Statement, ...]: ...
    def committed(self) -> None: ...


def no_outbox() -> Outgoing:
    raise ProgrammerError("this transaction was opened without an outbox, so it can publish nothing")


class Transaction(Generic[H]):
    """Everything written through `connection`, and every event, commits together with the key and the response, or not
    at all."""

    __slots__ = ("_lane", "_outbox", "_outgoing", "_over", "carried", "endings", "touched")

    def __init__(self, lane: ThreadLane[H] | TaskLane[H], outbox: Callable[[], Outgoing] = no_outbox) -> None:
        self._lane = lane
        self._outbox = outbox
        self._outgoing: Outgoing | None = None
        self._over: StoreUnavailable | str | None = _NOT_BEGUN
        self.touched = False
        #: Gives the headers of what caused this transaction that its events carry on: trace, correlation.
        self.carried: Callable[[], Mapping[str, str]] = dict
        #: Called with whether the rows are kept, before the transaction ends: where a session writes what it
        #: still holds back, or lets go of it.
        self.endings: list[Callable[[bool], Any]] = []

    @property
    def connection(self) -> H:
        """The driver's own connection, inside the request's transaction."""
        self._check()
        self.touched = True
        return self._lane.connection.handle

    def savepoint(self) -> Savepoint:
        """`with` (or `async with`) a part that may fail: an exception undoes that part only, and rises."""
        self._check()
        self.touched = True
        return Savepoint(self._lane, self)

    def publish(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | UUID | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        not_before: datetime | None = None,
    ) -> EventId:
        """Publish an event if and only if this transaction commits; its id.

        Events with the same key are numbered without gaps and arrive in their order. The data is written as JSON;
        bytes need a `content_type`. With `not_before` the event leaves later.
        """
        self._check()
        if self._outgoing is None:
            self._outgoing = self._outbox()
        event_id = self._outgoing.add(
            topic,
            data,
            key=key,
            headers={**self.carried(), **(headers or {})},
            content_type=content_type,
            not_before=not_before,
        )
        return EventId(event_id)

    @property
    def published(self) -> int:
        """How many events wait for COMMIT."""
        return 0 if self._outgoing is None else len(self._outgoing)

    def retract(self, published: int) -> None:
        """Forget the events published since there were so many: what they told of was rolled back."""
        if self._outgoing is not None:
            self._outgoing.cut(published)

    def flush(self) -> tuple[Statement, ...]:
        """What writes the events, to go in front of COMMIT."""
        return () if self._outgoing is None else self._outgoing.flush()

    def committed(self) -> None:
        """COMMIT was answered: whoever publishes events in this process may begin."""
        if self._outgoing is not None and len(self._outgoing):
            self._outgoing.committed()

    def open(self) -> None:
        """The claim was granted."""
        self._over = None

    def end(self) -> None:
        """The request is settled or released: the connection belongs to someone else now."""
        self._over = _ENDED

    def deny(self, error: StoreUnavailable) -> None:
        """The route runs without its store, because it said so: there is no transaction to offer."""
        self._over = error

    def _check(self) -> None:
        if self._over is not None:
            raise self._over if isinstance(self._over, StoreUnavailable) else ProgrammerError(self._over)


async def close_sessions(tx: Transaction[Any], keep_rows: bool) -> None:
    """The transaction is about to end: have whoever joined it write what they hold back, or let go of it."""
    while tx.endings:
        await Call(functools.partial(tx.endings.pop(), keep_rows))


class Savepoint:
    """A part of the transaction that can be undone alone, with the events published in it."""

    __slots__ = ("_lane", "_published", "_tx")

    def __init__(self, lane: ThreadLane[Any] | TaskLane[Any], tx: Transaction[Any]) -> None:
        self._lane = lane
        self._tx = tx
        self._published = tx.published

    def __enter__(self) -> None:
        self._thread_lane().batch((Boundary.SAVEPOINT,))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread_lane().batch(self._leaving(kind))

    async def __aenter__(self) -> None:
        await self._task_lane().batch((Boundary.SAVEPOINT,))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self._task_lane().batch(self._leaving(kind))
        # Interrupted: the whole transaction rolls back, and nothing more may be awaited on its connection.

    def _thread_lane(self) -> ThreadLane[Any]:
        if isinstance(self._lane, ThreadLane):
            return self._lane
        raise ProgrammerError("this transaction belongs to asyncio: write `async with tx.savepoint()`")

    def _task_lane(self) -> TaskLane[Any]:
        if isinstance(self._lane, TaskLane):
            return self._lane
        raise ProgrammerError("this transaction belongs to a thread: write `with tx.savepoint()`")

    def _leaving(self, kind: type[BaseException] | None) -> tuple[Boundary, ...]:
        if kind is None:
            return (Boundary.RELEASE_SAVEPOINT,)
        self._tx.retract(self._published)
        return (Boundary.ROLLBACK_TO_SAVEPOINT, Boundary.RELEASE_SAVEPOINT)
