"""Crash points: every verb a driver is asked for is a boundary, and a fault can be put on either side of it.

`Boundaries` stands between an executor and its database. What is crossed is numbered as it happens, never listed by
hand: a run without a fault counts the crossings, then fault n strikes at crossing n, for n = 1, 2, 3 ... until the
operation gets through untouched. Before a verb the fault means that it never happened; after it, that it happened
and its answer was lost. What a fault pretends is made true: a lost connection is really thrown away.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Literal, TypeAlias, TypeVar

from onefold._kernel.effects import BatchItem, Boundary, Nested, Row, Statement
from onefold._kernel.ports import AsyncConnection, AsyncDatabase, Connection, Database
from onefold.errors import ConnectionLost

H = TypeVar("H")
T = TypeVar("T")

#: `suspended` is not an edge of a verb, but every place where a task stands still (see `Suspensions`).
Edge: TypeAlias = Literal["before", "during", "after", "suspended"]
Interruptions: TypeAlias = tuple[type[BaseException], ...]

_INTERRUPTIONS: Final[Interruptions] = (asyncio.CancelledError, KeyboardInterrupt, SystemExit)


@dataclass(frozen=True, slots=True)
class Crossing:
    """One side of one verb, in the order of their happening; `during` and `suspended` exist on asyncio only."""

    number: int
    verb: str
    edge: Edge

    def __str__(self) -> str:
        return f"crossing {self.number}: {self.edge} {self.verb}"


#: What happens at a crossing. It may raise, end or stop the process, cancel the task, or do nothing.
Act: TypeAlias = Callable[[Crossing], None]


class Strike:
    """Acts once, at one crossing. `struck` tells where that was; None: the run never came so far."""

    def __init__(self, number: int, act: Act) -> None:
        self.number = number
        self.struck: Crossing | None = None
        self._act = act

    def __call__(self, crossing: Crossing) -> None:
        if crossing.number == self.number:
            self.struck = crossing
            self._act(crossing)


def strikes(act: Act, *, limit: int = 1000) -> Iterator[Strike]:
    """A strike at crossing 1, at crossing 2, and so on; ends after the first that found nothing to strike."""
    for number in range(1, limit + 1):
        strike = Strike(number, act)
        yield strike
        if strike.struck is None:
            return
    raise AssertionError(f"after {limit} crossings the operation still does not get through")


def lose_connection(crossing: Crossing) -> None:
    """The connection is gone."""
    raise ConnectionLost(f"the connection was cut on purpose at {crossing}")


def kill_process(crossing: Crossing) -> None:
    """Nothing of this process goes on, not even a `finally`."""
    os.kill(os.getpid(), signal.SIGKILL)


def stop_process(crossing: Crossing) -> None:
    """The process stands still, with everything it holds, until it gets SIGCONT."""
    os.kill(os.getpid(), signal.SIGSTOP)


def interrupt_thread(crossing: Crossing) -> None:
    """Ctrl-C, at any place but where a connection is let go: that, once begun, is the driver's to finish."""
    if crossing.verb not in ("release", "discard"):
        raise KeyboardInterrupt


def cancel_task(crossing: Crossing) -> None:
    """The running task is cancelled; `during` a verb it is under way, `suspended` it waits already."""
    task = asyncio.current_task()
    assert task is not None, "only what runs as a task can be cancelled"
    if crossing.edge in ("during", "suspended"):
        asyncio.get_running_loop().call_soon(task.cancel)
    else:
        task.cancel()


class Boundaries:
    """Counts what a database is asked for, calls `act` at every crossing, and knows which connections are out."""

    def __init__(self, act: Act | None = None, *, edges: Sequence[Edge] = ("before", "after")) -> None:
        self.act = act
        self.crossings: list[Crossing] = []
        #: Whether who crosses now is the one to be struck: work in the background comes when it likes, and would
        #: make the numbers of a campaign mean another thing each time.
        self.counts: Callable[[], bool] = lambda: True
        #: Told of every crossing before it is acted on, also of those that are not counted: for company.
        self.watch: Callable[[str, Edge], None] = lambda verb, edge: None
        #: Connections that were taken and neither given back nor thrown away. More than none at the end is a leak.
        self.out = 0
        self._edges = frozenset(edges)

    def around(self, database: Database[H]) -> Database[H]:
        """The same database, with its boundaries."""
        return _Database(database, self)

    def around_async(self, database: AsyncDatabase[H]) -> AsyncDatabase[H]:
        """The same, for asyncio."""
        return _AsyncDatabase(database, self)

    @contextmanager
    def around_step(self, name: str) -> Iterator[None]:
        """Boundaries around a part of user code, a handler's own statement for instance."""
        self.cross(name, "before")
        self.cross(name, "during")
        yield
        self.cross(name, "after")

    def cross(self, verb: str, edge: Edge) -> None:
        if not self.counts():
            return
        self.watch(verb, edge)
        if edge in self._edges:
            crossing = Crossing(len(self.crossings) + 1, verb, edge)
            self.crossings.append(crossing)
            if self.act is not None:
                self.act(crossing)


class Suspensions(Generic[T]):
    """Awaits a coroutine, and crosses a boundary at every place where it stands still.

    That is finer than verbs: a driver may wait several times for one, and the handler waits for things of its own.
    """

    def __init__(self, work: Coroutine[Any, Any, T], boundaries: Boundaries) -> None:
        self._work = work
        self._boundaries = boundaries

    def __await__(self) -> Generator[Any, Any, T]:
        resume: Any = self._work.send
        answer: Any = None
        while True:
            try:
                waits_for = resume(answer)
            except StopIteration as end:
                result: T = end.value
                return result
            self._boundaries.cross("wait", "suspended")
            try:
                resume, answer = self._work.send, (yield waits_for)
            except BaseException as error:
                resume, answer = self._work.throw, error


class _Database(Generic[H]):
    def __init__(self, database: Database[H], boundaries: Boundaries) -> None:
        self._database = database
        self._boundaries = boundaries

    @property
    def dialect(self) -> str:
        return self._database.dialect

    def acquire(self) -> Connection[H]:
        self._boundaries.cross("acquire", "before")
        connection = _Connection(self._database.acquire(), self._boundaries)
        connection.cross("acquire", "after", survives=())
        return connection

    def close(self) -> None:
        self._database.close()


class _Connection(Generic[H]):
    """One connection. Once it is lost, no verb reaches the real one any more."""

    def __init__(self, connection: Connection[H], boundaries: Boundaries) -> None:
        self._connection: Connection[H] | None = connection
        self._real = connection
        self._boundaries = boundaries
        boundaries.out += 1

    def __getattr__(self, name: str) -> Any:
        """What a driver's handle knows of its connection beside the verbs (SQLite's savepoints): no boundary."""
        return getattr(self._real, name)

    @property
    def handle(self) -> H:
        return self._performed("handle", lambda real: real.handle)

    def batch(self, items: Sequence[BatchItem]) -> int:
        return self._performed(_name(items), lambda real: real.batch(items))

    def fetch(self, statement: Statement) -> list[Row]:
        return self._performed("fetch", lambda real: real.fetch(statement))

    def release(self) -> None:
        self._performed("release", lambda _: self._let_go(lambda real: real.release()))

    def discard(self) -> None:
        if self._connection is not None:
            self._performed("discard", lambda _: self._let_go(lambda real: real.discard()))

    def cross(self, verb: str, edge: Edge, *, survives: Interruptions = _INTERRUPTIONS) -> None:
        """What interrupts the caller leaves the connection to whoever holds it; what fails takes it away."""
        try:
            self._boundaries.cross(verb, edge)
        except survives:
            raise
        except BaseException:
            self._let_go(lambda real: real.discard())
            raise

    def _performed(self, verb: str, perform: Callable[[Connection[H]], T]) -> T:
        if self._connection is None:
            raise ConnectionLost(f"{verb} on a connection that was lost before")
        self.cross(verb, "before")
        try:
            result = perform(self._connection)
        except Exception:
            self.cross(verb, "after")  # a refusal is an answer too, and can be lost
            raise
        self.cross(verb, "after")
        return result

    def _let_go(self, perform: Callable[[Connection[H]], None]) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            perform(connection)
            self._boundaries.out -= 1


class _AsyncDatabase(Generic[H]):
    def __init__(self, database: AsyncDatabase[H], boundaries: Boundaries) -> None:
        self._database = database
        self._boundaries = boundaries

    @property
    def dialect(self) -> str:
        return self._database.dialect

    async def acquire(self) -> AsyncConnection[H]:
        self._boundaries.cross("acquire", "before")
        await _cancellation()
        self._boundaries.cross("acquire", "during")
        connection = _AsyncConnection(await self._database.acquire(), self._boundaries)
        await connection.cross("acquire", "after", survives=())
        return connection

    async def close(self) -> None:
        await self._database.close()


class _AsyncConnection(Generic[H]):
    """The same, for asyncio."""

    def __init__(self, connection: AsyncConnection[H], boundaries: Boundaries) -> None:
        self._connection: AsyncConnection[H] | None = connection
        self._boundaries = boundaries
        boundaries.out += 1

    @property
    def handle(self) -> H:
        if self._connection is None:
            raise ConnectionLost("handle of a connection that was lost before")
        return self._connection.handle

    async def batch(self, items: Sequence[BatchItem]) -> int:
        return await self._performed(_name(items), lambda real: real.batch(items))

    async def fetch(self, statement: Statement) -> list[Row]:
        return await self._performed("fetch", lambda real: real.fetch(statement))

    async def release(self) -> None:
        await self._performed("release", lambda _: self._let_go(lambda real: real.release()))

    async def discard(self) -> None:
        if self._connection is not None:
            await self._performed("discard", lambda _: self._let_go(lambda real: real.discard()))

    async def cross(self, verb: str, edge: Edge, *, survives: Interruptions = _INTERRUPTIONS) -> None:
        try:
            self._boundaries.cross(verb, edge)
            # Letting go, once begun, is the driver's to finish: nothing waits in front of it.
            if edge == "after" or (edge == "before" and verb not in ("release", "discard")):
                await _cancellation()
        except survives:
            raise
        except BaseException:
            await self._let_go(lambda real: real.discard())
            raise

    async def _performed(self, verb: str, perform: Callable[[AsyncConnection[H]], Awaitable[T]]) -> T:
        if self._connection is None:
            raise ConnectionLost(f"{verb} on a connection that was lost before")
        await self.cross(verb, "before")
        await self.cross(verb, "during")
        try:
            result = await perform(self._connection)
        except Exception:
            await self.cross(verb, "after")
            raise
        await self.cross(verb, "after")
        return result

    async def _let_go(self, perform: Callable[[AsyncConnection[H]], Awaitable[None]]) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            try:
                await perform(connection)
            finally:
                self._boundaries.out -= 1


async def _cancellation() -> None:
    """A cancellation arrives where a task waits: wait here, if one is on its way."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        await asyncio.sleep(0)


def _name(items: Sequence[BatchItem]) -> str:
    """A batch by the edges of its transaction, which is what a reader of a report looks for."""
    edges = [_edge(item) for item in items if not isinstance(item, Statement)]
    return f"batch ({', '.join(edges)})" if edges else "batch"


def _edge(item: Boundary | Nested) -> str:
    return f"{item.boundary.value} of the handler" if isinstance(item, Nested) else item.value


def never_struck(counted: Iterable[Crossing], struck: Iterable[Crossing]) -> list[Crossing]:
    """What a run without faults crosses and a campaign never struck, by verb and edge: more than none voids it."""
    visited = {(crossing.verb, crossing.edge) for crossing in struck}
    return [crossing for crossing in counted if (crossing.verb, crossing.edge) not in visited]
