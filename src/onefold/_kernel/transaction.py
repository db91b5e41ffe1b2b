"""The request's transaction, as the handler sees it: the driver's own connection, and savepoints.

The handler never begins or ends it. It is open from the claim to the settle; before and after, touching it is an
error that says so.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from onefold._kernel.effects import Boundary
from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold.errors import ProgrammerError, StoreUnavailable

H = TypeVar("H")

_NOT_BEGUN = "the request's transaction has not begun"

_ENDED = (
    "the request's transaction is over: its answer has been given. Work that follows the answer (background tasks, the "
    "rest of a stream) needs a connection of its own"
)


class Transaction(Generic[H]):
    """Everything written through `connection` commits together with the key and the response, or not at all."""

    __slots__ = ("_lane", "_over", "endings", "touched")

    def __init__(self, lane: ThreadLane[H] | TaskLane[H]) -> None:
        self._lane = lane
        self._over: StoreUnavailable | str | None = _NOT_BEGUN
        self.touched = False
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
        return Savepoint(self._lane)

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


class Savepoint:
    """A part of the transaction that can be undone alone."""

    __slots__ = ("_lane",)

    def __init__(self, lane: ThreadLane[Any] | TaskLane[Any]) -> None:
        self._lane = lane

    def __enter__(self) -> None:
        self._thread_lane().batch((Boundary.SAVEPOINT,))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread_lane().batch(_leaving(kind))

    async def __aenter__(self) -> None:
        await self._task_lane().batch((Boundary.SAVEPOINT,))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, Exception):
            await self._task_lane().batch(_leaving(kind))
        # Interrupted: the whole transaction rolls back, and nothing more may be awaited on its connection.

    def _thread_lane(self) -> ThreadLane[Any]:
        if isinstance(self._lane, ThreadLane):
            return self._lane
        raise ProgrammerError("this transaction belongs to asyncio: write `async with tx.savepoint()`")

    def _task_lane(self) -> TaskLane[Any]:
        if isinstance(self._lane, TaskLane):
            return self._lane
        raise ProgrammerError("this transaction belongs to a thread: write `with tx.savepoint()`")


def _leaving(kind: type[BaseException] | None) -> tuple[Boundary, ...]:
    if kind is None:
        return (Boundary.RELEASE_SAVEPOINT,)
    return (Boundary.ROLLBACK_TO_SAVEPOINT, Boundary.RELEASE_SAVEPOINT)
