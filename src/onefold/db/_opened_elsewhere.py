"""Connections and pools that were opened in another process or on another event loop: how they are dropped, and the
errors for them (see `_kernel/fork_and_loop.py`)."""

from __future__ import annotations

import threading
from contextlib import suppress
from os import getpid
from typing import Any
from weakref import WeakSet

from onefold.errors import ConfigurationError, TransactionMisused


class Connections:
    """The connections that a pool of our own has opened, noted by its hook for new ones."""

    __slots__ = ("_open",)

    def __init__(self) -> None:
        self._open: WeakSet[Any] = WeakSet()

    async def note(self, connection: Any) -> None:
        self._open.add(connection)

    def drop(self) -> None:
        """Their loop is closed."""
        for connection in list(self._open):
            close_quietly(connection)


def fork_error(kind: str) -> ConfigurationError:
    """The error for a pool that the application opened in another process."""
    return ConfigurationError(
        f"the {kind} was opened before this process ({getpid()}) was forked: both would talk over the same sockets. "
        "Open it in each worker (gunicorn: in post_fork, or without --preload; FastAPI: in the lifespan), or give "
        "onefold the address instead of a pool"
    )


def inherited_error(driver: str) -> TransactionMisused:
    """The error for a connection that was given to a handler in the process that this one was forked from."""
    return TransactionMisused(
        f"this {driver} connection was taken in another process and came here ({getpid()}) by a fork; its transaction "
        "belongs to that process. Do the work there, or take a connection here"
    )


def elsewhere(kind: str) -> ConfigurationError:
    """The error for a pool that the application opened on another event loop."""
    return ConfigurationError(
        f"the {kind} belongs to another event loop, or to the process that this one ({getpid()}) was forked from. Open "
        "it on the loop that uses it (FastAPI: in the lifespan), or give AsyncOnefold the address instead of a pool: "
        "it opens one on each loop"
    )


def close_quietly(connection: Any) -> None:
    """Close a driver's own connection whose event loop is closed: what is left of it is its socket, or its thread."""
    if hasattr(connection, "pgconn"):  # psycopg
        connection.pgconn.finish()
    elif hasattr(connection, "terminate"):  # asyncpg
        transport: Any = getattr(connection, "_transport", None)
        try:
            connection.terminate()
        except RuntimeError:  # it schedules a call on its loop, which is closed
            with suppress(AttributeError):
                connection._protocol = None
        # asyncio's transport would close its socket when it is freed, and complain. Private names, whose absence harms
        # nothing but the silence.
        socket = getattr(transport, "_sock", None)
        if socket is not None:
            socket.close()
            transport._sock = None
    elif hasattr(connection, "stop"):  # aiosqlite
        # From a thread that runs no loop: it would call the loop later, when that may be closed as well.
        stopping = threading.Thread(target=connection.stop, name="onefold-stop")
        stopping.start()
        stopping.join()
