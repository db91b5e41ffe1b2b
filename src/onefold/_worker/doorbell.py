"""Waking relays and consumers of other processes on SQLite, which has no NOTIFY: a datagram to each of them.

Their sockets have names in Linux's abstract namespace, made of the file's device and inode. So nothing is written to a
disk, a process that is killed leaves nothing behind, and one that waits costs nothing. It is a hint and nothing is
concluded from it: between containers, on other systems, and beyond so many who listen, none comes, and they poll.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final

#: How many can listen on one channel of a file. Each costs those who ring a microsecond.
PLACES: Final = 8

#: What is sent is a name: more is not read.
_BYTES_MAX: Final = 200

#: Rings that are read at once; what is left is read in the loop's next turn. Any process of the machine may send some.
_RINGS_MAX: Final = 1000


class Doorbell:
    """One channel of one SQLite file."""

    def __init__(self, file: str, channel: str) -> None:
        self._file = file
        self._channel = channel

    def ring(self, sender: str) -> None:
        """Have those who listen look, but for `sender`. From any thread; without a wait, and without an error."""
        if sys.platform != "linux":
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sending:
            for address in self._addresses():
                with suppress(OSError):  # no process is there, or it has rings enough to hear
                    sending.sendto(sender.encode(), address)

    @contextmanager
    def listening(self, hear: Callable[[], None], sender: str) -> Iterator[None]:
        """Call `hear`, on the running loop, for each ring but those of `sender`, while the block lasts."""
        listener = self._take_place() if sys.platform == "linux" else None
        if listener is None:
            yield
            return
        loop = asyncio.get_running_loop()

        def read() -> None:
            heard: set[bytes] = set()
            with suppress(OSError):  # until there is none left
                for _ in range(_RINGS_MAX):
                    heard.add(listener.recv(_BYTES_MAX))
            if heard - {sender.encode()}:
                hear()

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
        """A file that was replaced is another file."""
        found = os.stat(self._file)
        for place in range(PLACES):
            yield f"\0{self._channel} {found.st_dev} {found.st_ino} {place}"


def doorbell_of(database: Any, channel: str) -> Doorbell | None:
    """Of a database that is a SQLite file; None: it is another one."""
    if database.dialect != "sqlite":
        return None
    synchronous = getattr(database, "database", database)  # of a ThreadedDatabase
    file: str | None = getattr(synchronous, "path", None)
    return Doorbell(file, channel) if file else None
