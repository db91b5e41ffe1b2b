"""I/O as data: what a flow may ask for, and nothing else.

A flow is an `async def` that awaits effects only. It never sees a loop, a driver or a clock, so the same
lines serve threads and asyncio, a test can answer them from a script, and a crash can be put before and
after every one of them. There is no concurrency inside a flow.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeAlias, TypeVar

from onefold._kernel.messages import Confirm, Message

if TYPE_CHECKING:
    from onefold._kernel.ports import AsyncLane, Lane

T = TypeVar("T")

Value: TypeAlias = int | str | bytes | None
Row: TypeAlias = tuple[Any, ...]
Flow: TypeAlias = Coroutine[Any, Any, T]


class Statement(NamedTuple):
    """One SQL statement in its dialect's own placeholders ($1 for Postgres, ?1 for SQLite) and its values."""

    sql: str
    values: tuple[Value, ...] = ()


class Boundary(Enum):
    """The edges of a transaction. They may stand between statements of a batch."""

    __hash__ = object.__hash__  # an Enum's own is written in Python, and drivers look batches up by their steps

    BEGIN = "begin"
    #: A transaction whose loss in a power cut is harmless (a lease), and that its flow can try again: drivers may
    #: spare the disk flush, and may give up soon (StoreBusy) on a lock that someone else holds.
    BEGIN_LIGHT = "begin light"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    SAVEPOINT = "savepoint"
    #: Savepoints share one name and nest: the last two act on the innermost.
    ROLLBACK_TO_SAVEPOINT = "rollback to savepoint"
    RELEASE_SAVEPOINT = "release savepoint"


Step: TypeAlias = Statement | Boundary


# The effects are not frozen, as values elsewhere are: freezing would triple the price of making one, and every request
# makes several. Nobody but its runner ever holds one.


class Effect(Generic[T]):
    """Something a flow wants done. Awaiting it hands it to the runner, which answers or throws."""

    __slots__ = ()

    def __await__(self) -> Generator[Effect[T], T, T]:
        return (yield self)

    def perform(self, lane: Lane | AsyncLane) -> Any:
        """Do it on a lane. On a thread's lane this answers; on an asyncio lane it gives what to await."""
        raise NotImplementedError


@dataclass(slots=True)
class Batch(Effect[int]):
    """Steps in order, in as few round trips as the driver can. Stops at the first error.

    The answer is how many rows the last step returned or changed (0 for a boundary): all that a merged
    round trip can tell on every driver. Who needs rows asks with Fetch.
    """

    steps: tuple[Step, ...]

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.batch(self.steps)


@dataclass(slots=True)
class Fetch(Effect[list[Row]]):
    """One statement and all its rows."""

    statement: Statement

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.fetch(self.statement)


@dataclass(slots=True)
class Acquire(Effect[None]):
    """Have a connection: take one from the pool unless the lane holds one already."""

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.acquire()


@dataclass(slots=True)
class Release(Effect[None]):
    """Give the connection back to its pool. It must be outside a transaction."""

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.release()


@dataclass(slots=True)
class Discard(Effect[None]):
    """Throw the connection away: its state is unknown, and the server rolls back what it held."""

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.discard()


@dataclass(slots=True)
class Sleep(Effect[None]):
    """Wait. Flows release their connection before they do."""

    seconds: float

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.sleep(self.seconds)


@dataclass(slots=True)
class Now(Effect[float]):
    """Seconds on a monotonic clock: for bounding waits, never for what is stored."""

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.now()


@dataclass(slots=True)
class Call(Effect[Any]):
    """Call the user's function; on an asyncio lane its awaitable result is awaited."""

    function: Callable[[], Any]

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.call(self.function)


@dataclass(slots=True)
class Publish(Effect[Sequence[Confirm]]):
    """Hand messages to the broker, all at once; what became of each, in order. No transaction may be open."""

    messages: Sequence[Message]

    def perform(self, lane: Lane | AsyncLane) -> Any:
        return lane.publish(self.messages)
