"""What a handler may do with the `Connection` it was given, and until when.

SQLAlchemy has one object per connection, and ours is the handler's. A task of an `asyncio.gather()` that failed, or a
thread, may go on with it when the handler has ended: between two of the statements that settle the request, its own
would be committed with them, though the request was refused; after them it would begin a transaction of its own. So
from the end on, every call of the connection but our own is refused, and what is on its way by then is waited for. The
context of the call distinguishes callers: tasks and threads have their own.

The underscored name is SQLAlchemy's own: every statement goes through it, before a transaction is begun for it. Our
tests fail when it changes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from os import getpid
from threading import Condition
from typing import Any, NoReturn

from sqlalchemy import Connection

from onefold._kernel.effects import BatchItem
from onefold.db._left_running import END_S, still_used_error
from onefold.db._opened_elsewhere import inherited_error
from onefold.errors import TransactionMisused

_STATEMENT = "_execute_context"
_GUARDED = (_STATEMENT, "begin", "begin_nested", "commit", "rollback", "close")

#: Whose turn it is in this task or thread, while it is one of ours.
_turn: ContextVar[LentConnection | None] = ContextVar("onefold_turn", default=None)


class LentConnection:
    """One connection in a handler's hands, until `end`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._process = getpid()
        self._ended = False
        #: How many calls of the handler's are on their way.
        self._calls = 0
        self._returned = Condition()
        self._shut = False
        #: Set by the last of them, on asyncio.
        self._idle: asyncio.Event | None = None
        #: How long the end of its transaction waits for them.
        self.patience_s = END_S
        for name in _GUARDED:
            connection.__dict__[name] = partial(self._call, getattr(connection, name))
        dialect = connection.dialect
        if dialect.name == "sqlite" and not dialect.is_async:
            connection.__dict__[_STATEMENT] = partial(self._execute, getattr(connection, _STATEMENT))

    @property
    def is_our_turn(self) -> bool:
        return _turn.get() is self

    @contextmanager
    def our_turn(self) -> Iterator[None]:
        """What is done in here is done by us."""
        token = _turn.set(self)
        try:
            yield
        finally:
            _turn.reset(token)

    def begin(self) -> None:
        """A handler is given the connection."""
        self._ended = False
        self.patience_s = END_S

    def end(self) -> None:
        """No handler has it from now on."""
        with self._returned:  # no call is let through after this
            self._ended = True

    def wait(self, seconds: float) -> bool:
        """Whether what a handler had begun on another thread before `end` has returned, or does so in time."""
        with self._returned:
            return self._returned.wait_for(self._is_idle, seconds)

    async def wait_async(self, seconds: float) -> bool:
        """`wait` for the handler's other tasks."""
        if not self._calls:
            return True
        try:
            async with asyncio.timeout(seconds):
                while self._calls:
                    self._idle = asyncio.Event()
                    await self._idle.wait()
        except TimeoutError:
            return False
        return True

    def check_left(self, has_left: bool, items: Sequence[BatchItem]) -> None:
        """Raises TransactionMisused where the wait was in vain. Whatever undoes the transaction then waits no more."""
        if not has_left:
            waited_s, self.patience_s = self.patience_s, 0.0
            raise still_used_error("SQLAlchemy", waited_s, items)

    def let_go(self) -> None:
        """The connection is about to be closed: it refuses by itself then, and this must not keep it from being freed.
        Statements are still refused with an error that says what happened."""
        for name in _GUARDED:
            self._connection.__dict__.pop(name, None)
        self._connection.__dict__[_STATEMENT] = _refuse

    def _is_idle(self) -> bool:
        return self._calls == 0

    def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if _turn.get() is self:
            return function(*args, **kwargs)
        if self._process != getpid():  # before the lock: a thread of the parent may have held it
            raise inherited_error("SQLAlchemy")
        with self._returned:
            if self._ended:
                _refuse()
            self._calls += 1
        try:
            return function(*args, **kwargs)
        finally:
            with self._returned:
                self._calls -= 1
                self._returned.notify_all()
            if self._idle is not None and not self._calls:
                self._idle.set()

    def _execute(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """To read the rows executes on, in SQLite."""
        result = call(*args, **kwargs)
        if result.cursor is not None and _turn.get() is not self:
            result.cursor = _Rows(result.cursor, self._call, self._call_unless_shut)
        return result

    def shut(self) -> None:
        """The driver's connection is about to be closed: its cursors are not touched any more."""
        with self._returned:
            self._returned.wait_for(self._is_idle, END_S)
            self._shut = True

    def _call_unless_shut(self, close: Callable[[], Any]) -> None:
        """Close a cursor. A thread that was interrupted as it read rows does so outside of any call of the handler's:
        beside the closing of the connection it crashes the process."""
        with self._returned:
            if self._shut:
                return
            self._calls += 1
        try:
            close()
        finally:
            with self._returned:
                self._calls -= 1
                self._returned.notify_all()


class _Rows:
    """A driver's cursor, whose rows are read while the handler has the connection."""

    __slots__ = ("_call", "_call_unless_shut", "_cursor")

    def __init__(
        self, cursor: Any, call: Callable[..., Any], call_unless_shut: Callable[[Callable[[], Any]], None]
    ) -> None:
        self._cursor = cursor
        self._call = call
        self._call_unless_shut = call_unless_shut

    def close(self) -> None:
        self._call_unless_shut(self._cursor.close)

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._cursor, name)
        return partial(self._call, attribute) if name.startswith("fetch") else attribute


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TransactionMisused(
        "the handler that this SQLAlchemy connection or session was given to has ended, and something it left running "
        "(a task of asyncio.gather(), a thread) still uses it; nothing was executed. Finish the work before the "
        "handler returns or raises (asyncio.TaskGroup waits for its tasks), or take a connection of its own for it"
    )
