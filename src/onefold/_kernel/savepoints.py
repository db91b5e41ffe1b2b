"""The handler's savepoints: parts of its transaction that can be undone alone, with the events published in them.

Theory of operation. Each has a number, and so a name of its own. A part that raises, or is interrupted, is rolled back.
The rollback waits its turn behind a statement that was abandoned half-way, in a task of its own that further
cancellations do not reach, and not for ever. Where it cannot be done, it is not known what of the part is there: the
transaction is doomed. It is refused from then on, and cannot be settled; its end rolls all of it back.

Sessions that have joined the transaction hold work back, and know objects whose rows a rollback takes away. Each has a
part of its own for every block: what it held before is written in front of the savepoint, what it holds at the end
goes with the block, and after a rollback it has forgotten what was undone. A session that joined inside the block has
nothing from before.
"""

from __future__ import annotations

import asyncio
import inspect
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from onefold._kernel.effects import Boundary, Nested
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, begin_in_background
from onefold._kernel.ports import Connection
from onefold.errors import ConnectionLost, ProgrammerError, TransactionMisused

if TYPE_CHECKING:
    from onefold._kernel.pending_work import Mark, PendingWork
    from onefold._kernel.ports import Joined

#: How long an interrupted part waits for its rollback. It is one short statement, behind one that is being cancelled.
UNDO_S_MAX: Final = 5.0

#: What has to be in one part, and was not.
DIVIDED: Final = (
    "a tx.savepoint() block began or ended in the middle of {what}, as happens when several tasks of a handler share "
    "its transaction: undone alone, the block would take a half of it away. Nothing of the transaction is kept: let "
    "one task at a time work with tx"
)
_OVERLAP = (
    "tx.savepoint() blocks overlap: one was left while a later one was still open, as happens when several tasks of a "
    "handler share its transaction. Nothing of the transaction is kept: let one task at a time work with tx"
)
_STILL_OPEN = (
    "the handler answered while a tx.savepoint() block was still open, so that its part is neither done nor undone. "
    "Nothing of the transaction is kept: leave the block before the handler returns"
)
_END_INTERRUPTED = (
    "the end of a tx.savepoint() block was interrupted (a time-out, a cancellation): its part looks undone, but may "
    "not be. Nothing of the transaction is kept"
)
_NOT_UNDONE = (
    "a tx.savepoint() block was interrupted (a time-out, a cancellation) and could not be undone alone: {why}. Nothing "
    "of the transaction is kept. Some drivers give a connection up whose statement is cancelled: there let the server "
    "end the statement (SET LOCAL statement_timeout), or put the time-out around other things than statements"
)


class Savepoints:
    """All savepoints of one transaction."""

    __slots__ = ("_count", "_open", "doomed", "edges", "executor")

    def __init__(self, executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> None:
        self.executor = executor
        self._count = 0
        self._open: list[int] = []
        #: Rises before and after each beginning and each end of a block: what saw none of them was in one part.
        self.edges = 0
        #: Why nothing of the transaction may be kept.
        self.doomed: str | None = None

    def check_end(self, *, keep_rows: bool) -> None:
        """Raises TransactionMisused where the transaction must not be settled like this."""
        if keep_rows and self._open:
            self.doom(_STILL_OPEN)
        self.check()

    def check(self) -> None:
        if self.doomed is not None:
            raise TransactionMisused(self.doomed)

    def doom(self, why: str) -> None:
        self.doomed = self.doomed or why

    def take_number(self) -> int:
        self._count += 1
        return self._count

    def enter(self, number: int) -> None:
        self.edges += 1
        self._open.append(number)

    def leave(self, number: int) -> None:
        """Raises TransactionMisused, and dooms the transaction, where that is not the innermost."""
        self.edges += 1
        if not self._open or self._open[-1] != number:
            self.doom(_OVERLAP)
        if number in self._open:
            del self._open[self._open.index(number) :]
        self.check()


class Savepoint:
    """A part of the transaction that can be undone alone, with the events published in it."""

    __slots__ = ("_mark", "_number", "_parts", "_pending", "savepoints")

    def __init__(self, savepoints: Savepoints, pending: PendingWork) -> None:
        #: All of its transaction.
        self.savepoints = savepoints
        self._pending = pending
        self._number = savepoints.take_number()
        self._mark: Mark | None = None
        #: The sessions that had joined when it began, and the part that each has in it.
        self._parts: list[tuple[Joined, Any]] = []

    def __enter__(self) -> None:
        executor = self._thread_executor()
        for joined in self._pending.joined:
            self._parts.append((joined, joined.begin_part()))
        self.savepoints.edges += 1
        executor.batch(self._items(Boundary.SAVEPOINT))
        self._enter()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        executor = self._thread_executor()
        if not self._leave(kind):
            return
        unwritten: Exception | None = None
        if kind is None:
            try:
                self._end_parts(keep=True)
            except Exception as failure:
                unwritten = failure
                self._retract()
        try:
            if kind is not None or unwritten is not None:
                self._end_parts(keep=False)
            executor.batch(self._end_items(kind if unwritten is None else type(unwritten)))
            self.savepoints.edges += 1
        except Exception as failure:
            self._fail(failure)
        if unwritten is not None:
            raise unwritten

    async def __aenter__(self) -> None:
        executor = self._task_executor()
        for joined in self._pending.joined:
            self._parts.append((joined, await _answer(joined.begin_part())))
        self.savepoints.edges += 1
        await executor.batch(self._items(Boundary.SAVEPOINT))
        self._enter()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        executor = self._task_executor()
        if not self._leave(kind):
            return
        if kind is None:
            try:
                unwritten = await self._keep(executor)
            except Exception as failure:
                self._fail(failure)
            except BaseException:
                self.savepoints.doom(_END_INTERRUPTED)
                raise
            if unwritten is not None:
                self._retract()
                await self._undo_refused(executor)
                raise unwritten
        elif issubclass(kind, Exception):
            await self._undo_refused(executor)
        elif issubclass(kind, asyncio.CancelledError):
            refused, _ = await self._undo(executor)
            if refused is not None:
                self.savepoints.doom(_NOT_UNDONE.format(why=refused))
        else:  # the loop is on its way out, or the coroutine is being closed: nothing more can be awaited
            self.savepoints.doom(_NOT_UNDONE.format(why=kind.__name__))

    async def _keep(self, executor: TaskExecutor[Any]) -> Exception | None:
        """Release. Where a session could not write what it holds, nothing was released: why it could not."""
        try:
            for joined, part in self._all_parts():
                await _answer(joined.end_part(part, keep=True))
        except Exception as failure:
            return failure
        await executor.batch(self._end_items(None))
        self.savepoints.edges += 1
        return None

    async def _undo_refused(self, executor: TaskExecutor[Any]) -> None:
        refused, cancelled = await self._undo(executor)
        if cancelled is not None:
            raise cancelled
        if refused is not None:
            self._fail(refused)

    async def _roll_back(self, executor: TaskExecutor[Any]) -> None:
        for joined, part in self._all_parts():
            await _answer(joined.end_part(part, keep=False))
        await executor.batch(self._end_items(Exception))
        self.savepoints.edges += 1

    async def _undo(self, executor: TaskExecutor[Any]) -> tuple[Exception | None, asyncio.CancelledError | None]:
        """Roll back. Why that failed, if it did, and whether the task was cancelled meanwhile."""
        loop = asyncio.get_running_loop()
        until = loop.time() + UNDO_S_MAX
        task = begin_in_background(self._roll_back(executor))
        cancelled: asyncio.CancelledError | None = None
        while not task.done() and (left_s := until - loop.time()) > 0:
            try:
                await asyncio.wait({task}, timeout=left_s)
            except asyncio.CancelledError as again:  # some cancel at every await, until the block is left
                cancelled = again
        if not task.done():
            task.cancel()
            return TimeoutError(f"its rollback was not answered within {UNDO_S_MAX:g} s"), cancelled
        failure = asyncio.CancelledError() if task.cancelled() else task.exception()
        if failure is None or isinstance(failure, Exception):
            return failure, cancelled
        return RuntimeError(f"its rollback was interrupted ({type(failure).__name__})"), cancelled

    def _enter(self) -> None:
        self.savepoints.enter(self._number)
        self._mark = self._pending.mark()

    def _all_parts(self) -> list[tuple[Joined, Any]]:
        """The sessions that are in the transaction now, the last to join first, and the part each has in the block."""
        known = {id(joined): part for joined, part in self._parts}
        return [(joined, known.get(id(joined))) for joined in reversed(self._pending.joined)]

    def _end_parts(self, *, keep: bool) -> None:
        for joined, part in self._all_parts():
            joined.end_part(part, keep=keep)

    def _retract(self) -> None:
        if self._mark is not None:
            self._pending.retract(self._mark)

    def _leave(self, kind: type[BaseException] | None) -> bool:
        """Whether there is something to end. In a doomed transaction there is not."""
        if kind is not None:
            self._retract()
        try:
            self.savepoints.leave(self._number)
        except TransactionMisused:
            if kind is None:
                raise
            return False  # the exception that is rising already says more
        return True

    def _fail(self, failure: Exception) -> None:
        if not isinstance(failure, ConnectionLost):  # a lost connection is found by the settle itself
            self.savepoints.doom(f"a tx.savepoint() block could not be ended, so nothing is kept: {failure}")
        raise failure

    def _end_items(self, kind: type[BaseException] | None) -> tuple[Nested, ...]:
        if kind is None:
            return self._items(Boundary.RELEASE_SAVEPOINT)
        return self._items(Boundary.ROLLBACK_TO_SAVEPOINT, Boundary.RELEASE_SAVEPOINT)

    def _items(self, *boundaries: Boundary) -> tuple[Nested, ...]:
        return tuple([Nested(boundary, self._number) for boundary in boundaries])

    def _thread_executor(self) -> ThreadExecutor[Any] | Connection[Any]:
        executor = self.savepoints.executor
        if isinstance(executor, ThreadExecutor):
            return executor
        connection = executor.on_this_thread()
        if connection is not None:
            return connection
        raise ProgrammerError(
            "this transaction belongs to asyncio: write `async with tx.savepoint()`, in an `async def`"
        )

    def _task_executor(self) -> TaskExecutor[Any]:
        if isinstance(self.savepoints.executor, TaskExecutor):
            return self.savepoints.executor
        raise ProgrammerError("this transaction belongs to a thread: write `with tx.savepoint()`")


async def _answer(given: Any) -> Any:
    """What a session of either colour answers."""
    return await given if inspect.isawaitable(given) else given
