"""A deadline for a whole question that a thread asks a server, connecting included.

The client has a time-out for each read, and for each address that the server's name has: a server that sends a byte now
and then would be listened to for ever. Only how long the name is looked up is left to the system's resolver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

_LEAST_S: Final = 0.001


class QuestionDeadline:
    """Of the question that a thread asks now. Each thread has its own."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._here = threading.local()

    def set(self, timeout_s: float) -> None:
        self._here.until = self._monotonic() + timeout_s

    def left_s(self) -> float:
        left_s = self._left_s()
        if left_s <= 0:
            raise TimeoutError("the server did not answer in time")
        return left_s

    def limit_connections(self, connection_class: type[Any]) -> type[Any]:
        """A kind of connections of redis-py that are opened, and whose sockets wait, until the deadline."""

        def connect(connection: Any) -> Any:
            return _PunctualSocket(connection_class._connect(connection), self)

        # Read before each address that is tried, and before the handshake of TLS. Above 0, which would mean: no wait.
        left = property(lambda connection: max(_LEAST_S, self._left_s()), lambda connection, given: None)
        limited = {"_connect": connect, "socket_connect_timeout": left, "socket_timeout": left}
        return type(connection_class.__name__, (connection_class,), limited)

    def _left_s(self) -> float:
        until: float = getattr(self._here, "until", 0.0)
        return until - self._monotonic()


class _PunctualSocket:
    """A socket that waits until the deadline, and not for as long from each read on."""

    def __init__(self, socket: Any, deadline: QuestionDeadline) -> None:
        self._socket = socket
        self._deadline = deadline

    def recv(self, *args: Any) -> Any:
        self._limit()
        return self._socket.recv(*args)

    def recv_into(self, *args: Any) -> Any:
        self._limit()
        return self._socket.recv_into(*args)

    def sendall(self, *args: Any) -> Any:
        self._limit()
        return self._socket.sendall(*args)

    def _limit(self) -> None:
        if self._socket.gettimeout() != 0:  # 0: it looks whether there is something, and does not wait
            self._socket.settimeout(self._deadline.left_s())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)
