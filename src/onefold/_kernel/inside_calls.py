"""Flows that a handler runs inside of its transaction: at once on a thread, and on asyncio when they are awaited.

Invariant: a call that was made and never awaited, and so did nothing, does not commit as if it had.

An interruption (a time-out around the call) leaves the transaction as one of the handler's own statements would: it is
committed or rolled back by the handler, or its savepoint. So, unlike with the flows that own their connection, nothing
is abandoned here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NoReturn, Protocol

from onefold._kernel.effects import Batch, BatchItem, Effect, Fetch, Flow, Query, Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.ports import Connection
from onefold._kernel.runners import not_an_effect, run, run_async
from onefold.errors import ProgrammerError, TransactionMisused


class InsideCalls(dict["InsideCall", None]):
    """The calls of one transaction that were not awaited yet, in their order."""

    __slots__ = ()

    def check_end(self) -> None:
        """Raises TransactionMisused where there is one."""
        for pending in self:
            raise TransactionMisused(
                f"{pending.call} was not awaited, and so has done nothing; nothing was committed. Write `await "
                f"{pending.call}`"
            )


class PendingCall:
    """What is awaited. Used as if it were the answer, it raises an error that says so."""

    __slots__ = ("_make", "call")

    def __init__(self, call: str, make: Callable[[], Any]) -> None:
        self.call = call
        self._make = make

    def __await__(self) -> Generator[Any, Any, Any]:
        steps: Generator[Any, Any, Any] = self._make().__await__()
        return steps

    def _refuse(self) -> NoReturn:
        raise ProgrammerError(f"{self.call} has to be awaited in async code: `await {self.call}`")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("__"):  # asked by Python itself, and by inspect
            raise AttributeError(name)
        self._refuse()

    def __bool__(self) -> bool:
        self._refuse()

    def __iter__(self) -> NoReturn:
        self._refuse()


class CallingTransaction(Protocol):
    """The transaction that a call is one of."""

    _executor: Any
    _begun: bool
    _touched: bool
    _over: Any

    def _check(self) -> None:
        """Raises where it is over, or doomed."""
        ...

    def _note_failure(self, error: Exception, begins: bool) -> None:
        """A call has failed."""
        ...


class InsideCall(PendingCall):
    """A call that its transaction waits for: until it is awaited, it is among those `unawaited`. `begins`: whether the
    database's transaction has begun by it."""

    __slots__ = ("_begins", "_tx", "_unawaited")

    def __init__(
        self, call: str, make: Callable[[], Flow[Any]], tx: CallingTransaction, unawaited: InsideCalls, begins: bool
    ) -> None:
        self.call = call
        self._make = make
        self._tx = tx
        self._begins = begins
        self._unawaited = unawaited
        unawaited[self] = None

    def __await__(self) -> Generator[Any, Any, Any]:
        """`run_inside`, as one generator that every answer goes through."""
        self._unawaited.pop(self, None)
        tx = self._tx
        tx._check()
        executor, flow = tx._executor, self._make()
        query = getattr(executor.connection, "query", executor.query)
        send: Any = flow.send
        resume, answer = send, None
        while True:
            try:
                effect = resume(answer)
            except StopIteration as end:
                tx._begun = tx._begun or self._begins
                return end.value
            except Exception as error:
                tx._note_failure(error, self._begins)
                raise
            try:
                if effect.__class__ is Query:
                    if tx._over is not None:  # since the last statement: the task of this call was left behind
                        tx._check()
                    answer = yield from query(effect.argument).__await__()
                else:
                    verb, argument = getattr(executor, effect.verb), effect.argument
                    answer = yield from (verb() if argument is None else verb(argument)).__await__()
                resume = send
            except Exception as error:
                resume, answer = flow.throw, error if isinstance(effect, Effect) else not_an_effect(effect)
            except BaseException:
                flow.close()
                raise

    def forget(self) -> None:
        """It is refused: do not report it again at the end."""
        self._unawaited.pop(self, None)


def run_inside(flow: Flow[Any], executor: Any) -> Any:
    """`run` for a flow on a thread whose connection is another's, and stays whatever interrupts. Nearly all it asks
    for is a Query: the connection is asked at once."""
    query = getattr(executor.connection, "query", executor.query)
    send: Any = flow.send
    resume, answer = send, None
    while True:
        try:
            effect = resume(answer)
        except StopIteration as end:
            return end.value
        try:
            if effect.__class__ is Query:
                answer = query(effect.argument)
            else:
                verb, argument = getattr(executor, effect.verb), effect.argument
                answer = verb() if argument is None else verb(argument)
            resume = send
        except Exception as error:
            resume, answer = flow.throw, error if isinstance(effect, Effect) else not_an_effect(effect)
        except BaseException:
            flow.close()
            raise


def perform_inside(tx: CallingTransaction, flow: Flow[Any]) -> Any:
    """Run a flow of onefold on the connection of an open transaction; on asyncio to be awaited."""
    tx._check()
    tx._touched = True
    if isinstance(tx._executor, ThreadExecutor):
        return run(flow, tx._executor)
    return run_async(flow, tx._executor)


class OnConnection(ThreadExecutor[Any]):
    """For a plain `def` that may use the connection of a task on its own thread."""

    __slots__ = ()

    def __init__(self, connection: Connection[Any]) -> None:
        self._connection = connection


class Exclusive:
    """A lock on a natural key, until the transaction ends: `with tx.exclusive(...)`, or `async with`."""

    __slots__ = ("_call", "_enter")

    def __init__(self, call: str, enter: Callable[[], Any]) -> None:
        self._call = call
        self._enter = enter

    def __enter__(self) -> None:
        entered = self._enter()
        if isinstance(entered, InsideCall):
            entered.forget()  # the mistake is raised here, and not once more at the end
            raise ProgrammerError(
                f"this transaction belongs to asyncio: write `async with {self._call}`, in an `async def`"
            )

    def __exit__(self, *_: object) -> None:
        """The lock stays until COMMIT or ROLLBACK: before that no other transaction can see what was done under it."""

    async def __aenter__(self) -> None:
        entered = self._enter()
        if not isinstance(entered, InsideCall):
            raise ProgrammerError(f"this transaction belongs to a thread: write `with {self._call}`")
        await entered

    async def __aexit__(self, *_: object) -> None:
        """See `__exit__`."""


async def take_back(items: bool | tuple[BatchItem, ...]) -> bool:
    """Execute what `tx.cancel` has left to do, if anything. Whether an event was taken back."""
    match items:
        case bool(known):
            return known
        case (Statement() as alone,):  # fetched: a batch is for our own role and limits, and this is the handler's
            return len(await Fetch(alone)) > 0
        case _:
            return await Batch(items) > 0
