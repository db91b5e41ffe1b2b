"""Wakes relays and consumers of other processes on SQLite, which has no NOTIFY: a datagram to each of them.

Their sockets have names in Linux's abstract namespace, made of the file's device and inode. So nothing is written to a
disk, a process that is killed leaves nothing behind, and one that waits costs nothing. It is a hint only: between
containers, on other systems, and with more than PLACES listeners, none arrives, and they poll.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: How many processes can listen on one channel of a file. Each costs a sender a microsecond.
PLACES: Final = 8

#: A datagram contains the sender's name: longer ones are cut.
_BYTES_MAX: Final = 200

#: Rings that are read at once; what is left is read in the loop's next turn. Any process of the machine may send some.
_RINGS_MAX: Final = 1000


class Doorbell:
    """One channel of one SQLite file."""

    def __init__(self, file: str, channel: str) -> None:
        self._file = file
        self._channel = channel

    def ring(self, sender: str) -> None:
        """Wake all listeners but `sender`. From any thread; neither waits nor raises."""
        if sys.platform != "linux":
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            for address in self._addresses():
                with suppress(OSError):  # no process listens there, or its buffer is full
                    sending.sendto(sender.encode(), address)

    @contextmanager
    def listening(self, on_ring: Callable[[], None], sender: str) -> Iterator[None]:
        """Call `on_ring`, on the running loop, for each ring but those of `sender`, while the block lasts."""
        listener = self._take_place() if sys.platform == "linux" else None
        if listener is None:
            yield
            return
        loop = asyncio.get_running_loop()

        def read() -> None:
            senders: set[bytes] = set()
            with suppress(OSError):  # until there is none left
                for _ in range(_RINGS_MAX):
                    senders.add(listener.recv(_BYTES_MAX))
            if senders - {sender.encode()}:
                on_ring()

        with listener:
            loop.add_reader(listener, read)
            try:
                yield
            finally:
                loop.remove_reader(listener)

    def _take_place(self) -> socket.socket | None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        with suppress(OSError):  # the file is gone
            for address in self._addresses():
                with suppress(OSError):  # it is taken
                    listener.bind(address)
                    return listener
        listener.close()
        return None

    def _addresses(self) -> Iterator[str]:
        """The addresses by device and inode: a file that was replaced has others."""
        status = os.stat(self._file)
        for place in range(PLACES):
            yield f"\0{self._channel} {status.st_dev} {status.st_ino} {place}"


def doorbell_of(database: Any, channel: str) -> Doorbell | None:
    """The doorbell of a SQLite file; None for any other database."""
    if database.dialect != "sqlite":
        return None
    synchronous = getattr(database, "database", database)  # of a ThreadedDatabase
    file: str | None = getattr(synchronous, "path", None)
    return Doorbell(file, channel) if file else None
