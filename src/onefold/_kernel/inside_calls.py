"""Flows that a handler runs inside of its transaction: at once on a thread, and on asyncio when they are awaited.

Invariant: what was asked for and never awaited, and so never happened, does not commit as if it had.

An interruption (a time-out around the call) leaves the transaction as one of the handler's own statements would: it is
the handler's, or its savepoint's, to say what becomes of it. So, unlike with the flows that own their connection,
nothing is abandoned here.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NoReturn

from onefold._kernel.effects import Flow
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.ports import Connection
from onefold._kernel.runners import run, run_async
from onefold.errors import ProgrammerError, TransactionMisused


class InsideCalls(dict["PendingCall", None]):
    """The calls of one transaction that were not awaited yet, in their order."""

    __slots__ = ()

    def check_end(self) -> None:
        """Raises TransactionMisused where there is one."""
        for pending in self:
            raise TransactionMisused(
                f"{pending.call} was not awaited, and so has done nothing; nothing was committed. Write `await "
                f"{pending.call}`"
            )


def perform(
    asked: InsideCalls,
    executor: ThreadExecutor[Any] | TaskExecutor[Any],
    call: str,
    make: Callable[[], Flow[Any]],
) -> Any:
    """What the flow answers; on asyncio to be awaited. `call` is what its user has written."""
    if isinstance(executor, ThreadExecutor):
        return run(make(), executor, keeps=True)
    own = executor.on_this_thread()
    if own is not None:
        return run(make(), _OnConnection(own), keeps=True)
    pending = _InsideCall(call, make, executor, asked)
    asked[pending] = None
    return pending


class PendingCall:
    """What is awaited. Used as if it were the answer, it says what is missing."""

    __slots__ = ("_make", "call")

    def __init__(self, call: str, make: Callable[[], Flow[Any]]) -> None:
        self.call = call
        self._make = make

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._make().__await__()

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


class _InsideCall(PendingCall):
    """One that its transaction waits for."""

    __slots__ = ("_asked", "_executor")

    def __init__(
        self, call: str, make: Callable[[], Flow[Any]], executor: TaskExecutor[Any], asked: InsideCalls
    ) -> None:
        self.call = call
        self._make = make
        self._executor = executor
        self._asked = asked

    def __await__(self) -> Generator[Any, Any, Any]:
        self._asked.pop(self, None)
        return run_async(self._make(), self._executor, keeps=True).__await__()

    def forget(self) -> None:
        """It is refused: nothing more is to be told of it."""
        self._asked.pop(self, None)


class _OnConnection(ThreadExecutor[Any]):
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
        if isinstance(entered, _InsideCall):
            entered.forget()  # it is told here, and not once more at the end
            raise ProgrammerError(
                f"this transaction belongs to asyncio: write `async with {self._call}`, in an `async def`"
            )

    def __exit__(self, *_: object) -> None:
        """The lock stays until COMMIT or ROLLBACK: before that no other transaction can see what was done under it."""

    async def __aenter__(self) -> None:
        entered = self._enter()
        if not isinstance(entered, _InsideCall):
            raise ProgrammerError(f"this transaction belongs to a thread: write `with {self._call}`")
        await entered

    async def __aexit__(self, *_: object) -> None:
        """See `__exit__`."""
