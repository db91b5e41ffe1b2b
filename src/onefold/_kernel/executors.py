"""Executors: one request's way to its database, on a thread or on asyncio.

An executor holds at most one connection, and leads to at most one transaction. An executor that is abandoned throws its
connection away, because its state is not known, and concludes the transaction: the caller need not know of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Protocol, TypeVar

from onefold._kernel.checkout import log_release_error
from onefold._kernel.effects import BatchItem, Flow, HandlerStatement, NamedRows, Publish, Row, Statement
from onefold._kernel.end_hooks import ThreadHook
from onefold._kernel.ports import AsyncConnection, AsyncDatabase, AsyncExecutor, Broker, Connection, Database
from onefold._kernel.runners import run, run_async
from onefold.errors import ProgrammerError, StoreError

if TYPE_CHECKING:
    from onefold._kernel.messages import Confirm, Message

H = TypeVar("H")
T = TypeVar("T")

_NO_BROKER = "the executor has no broker: flows that publish run on a BrokerExecutor"

_NO_CONNECTION = "the executor holds no connection; the flow must await Acquire() first"


_NO_QUERIES = (
    "the driver {} cannot do this: tx.insert_once, tx.transition and tx.ledger_entry need its connections to have the "
    "verb `query` (onefold._kernel.ports.Queryable)"
)


class RunWhole(Protocol):
    """A database's way to run a flow in one go."""

    def __call__(self, flow: Flow[T], /) -> Coroutine[Any, Any, T]: ...


class InsideTransaction(Protocol):
    """The transaction that an executor leads to."""

    def note_commit(self) -> None:
        """COMMIT was answered."""
        ...

    def interrupt(self) -> Callable[[], Flow[None]] | None:
        """Refuse it to its user from now on. The flow that is returned concludes it; None: there is nothing to do."""
        ...


class ThreadExecutor(Generic[H]):
    """An executor for flows that run on a thread."""

    __slots__ = ("_connection", "_database", "transaction")

    def __init__(self, database: Database[H]) -> None:
        self._database = database
        self._connection: Connection[H] | None = None
        #: The transaction, from its beginning until it is concluded.
        self.transaction: InsideTransaction | None = None

    @property
    def connection(self) -> Connection[H]:
        """The connection in use."""
        if self._connection is None:
            raise ProgrammerError(_NO_CONNECTION)
        return self._connection

    def anew(self) -> ThreadExecutor[H]:
        """Another one, over the same database."""
        return ThreadExecutor(self._database)

    def batch(self, items: Sequence[BatchItem]) -> int:
        return self.connection.batch(items)

    def fetch(self, statement: Statement) -> list[Row]:
        return self.connection.fetch(statement)

    def query(self, statement: HandlerStatement) -> NamedRows:
        connection: Any = self._connection or self.connection
        query: Callable[..., NamedRows] | None = getattr(connection, "query", None)
        return (query or _no_queries(connection))(statement)

    @property
    def dialect(self) -> str:
        return self._database.dialect

    def acquire(self) -> None:
        if self._connection is None:
            self._connection = self._database.acquire()

    def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            connection.release()
        except Exception as error:
            # Not discarded: the pool may have it, and have handed it on. What can be done the driver has done.
            log_release_error(error)

    def release_committed(self) -> None:
        """COMMIT was answered. Whatever interrupts from now on, the transaction is known to be committed."""
        if self.transaction is not None:
            self.transaction.note_commit()
        self.release()

    def discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.discard()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def now(self) -> float:
        return time.monotonic()

    def call(self, function: Callable[[], Any]) -> Any:
        result = function()
        if inspect.iscoroutine(result):
            result.close()
            raise ProgrammerError(
                f"{name_of(function)} is an async function, but this request runs on a thread; pass a plain function, "
                "or use AsyncOnefold"
            )
        return result

    def blocking(self, function: Callable[[], Any]) -> Any:
        return function()

    def bind_hook(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """The hook, to be called later. One that would have to be awaited is refused where it is added."""
        if inspect.iscoroutinefunction(inspect.unwrap(getattr(function, "func", function))):
            raise ProgrammerError(
                f"{name_of(function)} is an async function, but this transaction runs on a thread; pass a plain "
                "function, or use AsyncOnefold"
            )
        return function

    def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        raise ProgrammerError(_NO_BROKER)

    def abandon(self) -> None:
        transaction, self.transaction = self.transaction, None
        conclude = None if transaction is None else transaction.interrupt()
        with contextlib.suppress(StoreError):  # it was on its way out
            self.discard()
        if conclude is not None:
            run(conclude(), self)


#: What cancelled requests left to be done. The loop keeps only weak references to tasks.
_leaving: set[asyncio.Task[Any]] = set()


class TaskExecutor(Generic[H]):
    """An executor for flows that run on asyncio."""

    __slots__ = ("_connection", "_database", "transaction")

    def __init__(self, database: AsyncDatabase[H]) -> None:
        self._database = database
        self._connection: AsyncConnection[H] | None = None
        #: The transaction, from its beginning until it is concluded.
        self.transaction: InsideTransaction | None = None

    @property
    def connection(self) -> AsyncConnection[H]:
        """The connection in use."""
        if self._connection is None:
            raise ProgrammerError(_NO_CONNECTION)
        return self._connection

    def anew(self) -> TaskExecutor[H]:
        """Another one, over the same database."""
        return TaskExecutor(self._database)

    def on_this_thread(self) -> Connection[Any] | None:
        """The connection for a plain `def`, which has a thread of its own while the request is a task: used there like
        its handle, without asking the loop, which may be waiting for that thread. None: it is the loop's only."""
        connection: Connection[Any] | None = getattr(self._connection or self.connection, "on_this_thread", None)
        return None if connection is None or runs_a_loop() else connection

    @property
    def is_awaited(self) -> bool:
        """Whether its connection can only be used by what awaits it."""
        return getattr(self.connection, "on_this_thread", None) is None

    def batch(self, items: Sequence[BatchItem]) -> Coroutine[Any, Any, int]:
        return (self._connection or self.connection).batch(items)

    def fetch(self, statement: Statement) -> Coroutine[Any, Any, list[Row]]:
        return (self._connection or self.connection).fetch(statement)

    def query(self, statement: HandlerStatement) -> Coroutine[Any, Any, NamedRows]:
        connection: Any = self._connection or self.connection
        query: Callable[..., Coroutine[Any, Any, NamedRows]] | None = getattr(connection, "query", None)
        return (query or _no_queries(connection))(statement)

    @property
    def dialect(self) -> str:
        return self._database.dialect

    async def acquire(self) -> None:
        if self._connection is None:
            self._connection = await self._database.acquire()

    async def release(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            await connection.release()
        except Exception as error:
            log_release_error(error)

    async def release_committed(self) -> None:
        """COMMIT was answered: see `ThreadExecutor.release_committed`."""
        if self.transaction is not None:
            self.transaction.note_commit()
        await self.release()

    async def discard(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.discard()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def now(self) -> float:
        return time.monotonic()

    async def call(self, function: Callable[[], Any]) -> Any:
        result = function()
        return await result if inspect.isawaitable(result) else result

    def blocking(self, function: Callable[[], Any]) -> Coroutine[Any, Any, Any]:
        from onefold._kernel.serial_thread import call_in_thread

        return call_in_thread(function)

    def bind_hook(self, function: Callable[[], Any]) -> Callable[[], Any]:
        """The hook, to be called later where it is added now: on the loop, or, by a plain `def` that has a thread of
        its own, on a thread. It may block there."""
        return function if runs_a_loop() else ThreadHook(function)

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        raise ProgrammerError(_NO_BROKER)

    def abandon(self) -> None:
        """Let go without awaiting: a cancelled task must not wait for a connection in an unknown state."""
        connection, self._connection = self._connection, None
        transaction, self.transaction = self.transaction, None
        conclude = None if transaction is None else transaction.interrupt()
        if connection is not None or conclude is not None:
            in_background(self._leave(connection, conclude))

    async def _leave(self, connection: AsyncConnection[H] | None, conclude: Callable[[], Flow[None]] | None) -> None:
        try:
            if connection is not None:
                await connection.discard()
        finally:  # only now: hooks hold no connection, and a rollback is reported when it has taken place
            if conclude is not None:
                await run_async(conclude(), self)


class BrokerExecutor(TaskExecutor[H]):
    """An executor that also leads to a broker, for the flows of a relay."""

    __slots__ = ("_broker",)

    def __init__(self, database: AsyncDatabase[H], broker: Broker) -> None:
        super().__init__(database)
        self._broker = broker

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        return await self._broker.publish(messages)


class _FlowParts:
    """A flow in the parts that lie between what it publishes, each of them a flow of database effects."""

    __slots__ = ("_answer", "_flow", "_resume", "result")

    def __init__(self, flow: Flow[Any]) -> None:
        self._flow = flow
        self._resume: Callable[[Any], Any] = flow.send
        self._answer: Any = None
        #: Of the flow, once it has ended.
        self.result: Any = None

    async def go_on(self) -> Publish | None:
        """Up to what it publishes next. None: to its end."""
        while True:
            try:
                effect = self._resume(self._answer)
            except StopIteration as end:
                self.result = end.value
                return None
            if isinstance(effect, Publish):
                return effect
            try:
                self.resume_with(await effect)
            except Exception as error:
                self.fail_with(error)
            except BaseException:  # it is closed where it stands
                self._flow.close()
                raise

    def resume_with(self, answer: Any) -> None:
        self._resume, self._answer = self._flow.send, answer

    def fail_with(self, error: Exception) -> None:
        self._resume, self._answer = self._flow.throw, error


async def run_on(database: AsyncDatabase[Any], flow: Flow[T], broker: AsyncExecutor | None = None) -> T:
    """Run a flow that needs nothing but a database and, if it publishes, an executor that leads to the broker. A
    database may run all up to the next Publish in one go (`run_whole`), where each effect by itself would be a hop to a
    thread and back, or a greenlet. No connection may be held while it publishes."""
    run_whole: RunWhole | None = getattr(database, "run_whole", None)
    if run_whole is None:
        return await run_async(flow, broker or TaskExecutor(database))
    parts = _FlowParts(flow)
    while (publish := await run_whole(parts.go_on())) is not None:
        try:
            if broker is None:
                raise ProgrammerError(_NO_BROKER)
            parts.resume_with(await broker.publish(publish.argument))
        except Exception as error:
            parts.fail_with(error)
        except BaseException:
            flow.close()
            raise
    result: T = parts.result
    return result


def _no_queries(connection: object) -> NoReturn:
    """Not every connection is `Queryable`."""
    raise ProgrammerError(_NO_QUERIES.format(type(connection).__qualname__))


def runs_a_loop() -> bool:
    """Whether this thread runs an event loop, which nothing here may block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def is_async(function: object) -> bool:
    """Whether a function, a partial of one or an object that is called like one is to be awaited."""
    while isinstance(function, functools.partial):
        function = function.func
    if not inspect.isroutine(function) and callable(function):  # an object that can be called like one
        function = function.__call__
    return inspect.iscoroutinefunction(function)


def name_of(function: Callable[[], Any]) -> str:
    """What a function is called, without its arguments: they may be secret."""
    while isinstance(function, functools.partial | ThreadHook):
        function = function.func
    return getattr(function, "__qualname__", type(function).__qualname__)


def in_background(work: Coroutine[Any, Any, Any]) -> None:
    """Clean up after a cancelled request without making it wait. What fails here rolls back by itself."""
    _ = begin_in_background(work)


def begin_in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """`in_background` as a task, for a caller that waits for its end and may be cancelled meanwhile."""
    task = asyncio.get_running_loop().create_task(work)
    _leaving.add(task)
    task.add_done_callback(_forget_left)
    return task


def _forget_left(task: asyncio.Task[Any]) -> None:
    _leaving.discard(task)
    if not task.cancelled():
        task.exception()  # retrieved, or asyncio would log it: a connection that cannot be discarded is closed already
