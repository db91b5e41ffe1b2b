"""An engine's pool in a place that it was not opened in: a child of fork, or the next event loop.

It is replaced there, as SQLAlchemy's manual has it, with `dispose(close=False)`. Where the application has done so by
itself nothing is left to do. What a closed loop has left is closed: a socket, or the thread of aiosqlite.
"""

from __future__ import annotations

import asyncio
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import Engine, Pool, QueuePool, event
from sqlalchemy.engine.interfaces import DBAPIConnection

from onefold._kernel.fork_and_loop import Process
from onefold.db._opened_elsewhere import close_quietly


def never_handed_on(pool: Pool) -> bool:
    """Whether a connection that could not be given back is not in the pool: in SQLAlchemy's own classes all hooks of
    the application's are called before it is there. A class of the application's may have failed when it was."""
    return type(pool).__module__.partition(".")[0] == "sqlalchemy"


def fate_of(pool: Pool) -> str:
    """Of a connection whose way back to the pool a hook has cut off, in words for the log."""
    if not never_handed_on(pool):
        return (
            f"onefold did not close it, because the {type(pool).__name__} may have it and have handed it on; if it "
            "does not have it, a place of the pool is lost"
        )
    if not isinstance(pool, QueuePool):
        return "it was closed"
    return "it was closed, and its place in the pool is lost until engine.dispose(): SQLAlchemy does not free it"


class PoolOfProcess:
    """Keeps a forked child from its parent's connections."""

    __slots__ = ("_engine", "_pool", "_process")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process = Process()
        self._pool: Pool = engine.pool

    def check(self) -> bool:
        """Before each connection. Whether this process is new."""
        is_new = self._process.renew(self._replace_inherited)
        self.note()
        return is_new

    def _replace_inherited(self) -> None:
        if self._engine.pool is self._pool:
            self._process.keep(self._pool)
            self._engine.dispose(close=False)

    def note(self) -> None:
        """The pool that is there now is this process's own. A child that has another has seen to it by itself."""
        self._pool = self._engine.pool


class PoolOfLoop:
    """An engine's pool on asyncio, where a pool serves one loop after another."""

    __slots__ = ("_engine", "_loop", "_of_process", "_opened")

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._of_process = PoolOfProcess(engine)
        self._loop: asyncio.AbstractEventLoop | None = None
        #: On which loop each of the driver's connections was opened.
        self._opened: WeakKeyDictionary[Any, asyncio.AbstractEventLoop] = WeakKeyDictionary()
        event.listen(engine, "connect", self._note)

    def check(self) -> None:
        """Before each connection."""
        loop = asyncio.get_running_loop()
        is_new = self._of_process.check()
        if loop is self._loop and not is_new:
            return
        self._loop = loop
        if is_new:
            self._opened.clear()  # its parent's
        stale = [connection for connection, its_loop in self._opened.items() if its_loop.is_closed()]
        if stale:
            self._engine.dispose(close=False)
            self._of_process.note()
        for connection in stale:
            del self._opened[connection]
            close_quietly(connection)

    def _note(self, connection: DBAPIConnection, _: object) -> None:
        self._opened[getattr(connection, "driver_connection", connection)] = asyncio.get_running_loop()
