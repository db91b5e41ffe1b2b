"""Where something was opened: in which process, and on which event loop.

Neither sockets nor threads nor what waits on a loop can be carried over. A child of fork shares its parent's sockets:
two processes that talk over one mix up each other's transactions. And what belongs to an event loop ends with it: tests
have one each, `asyncio.run` makes one, a worker another. So what a driver opens, it opens anew in each place.

What a parent has opened is neither used nor closed nor freed in its child: to close it would end the parent's sessions.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from os import getpid
from typing import Generic, Protocol, TypeVar
from weakref import WeakSet

T = TypeVar("T")


class NotesFork(Protocol):
    """Has something open that a child of this process must not use."""

    def note_fork(self) -> None:
        """This process is a child that was forked just now."""
        ...


_watching: WeakSet[NotesFork] = WeakSet()


def watch_forks(watching: NotesFork) -> None:
    """Have `note_fork` called in each child, before anything else runs there."""
    _watching.add(watching)


def _note_fork_in_child() -> None:
    for each in list(_watching):
        each.note_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork
    os.register_at_fork(after_in_child=_note_fork_in_child)


class Process:
    """Notices that this process is another one than before: a child that was forked. With `known` false also the first
    one is new: what it uses may have been opened before it was forked."""

    __slots__ = ("_inherited", "_locks", "_pid")

    def __init__(self, *, known: bool = True) -> None:
        self._pid = getpid() if known else 0
        #: One for each process: one that a thread of the parent held when it forked would never be released.
        self._locks: dict[int, threading.Lock] = {}
        self._inherited: list[object] = []

    def renew(self, replace: Callable[[], object]) -> bool:
        """Whether this process is new; then `replace` has replaced what its parent had opened. It is known only when
        that is done: of several threads one replaces, and the others wait for it. Raises what `replace` raises, each
        time."""
        pid = getpid()
        if pid == self._pid:
            return False
        with self._locks.setdefault(pid, threading.Lock()):
            if pid == self._pid:
                return False
            replace()
            self._pid = pid
        return True

    def keep(self, *inherited: object) -> None:
        """What the parent has opened stays as it is, to the end of this process."""
        self._inherited += inherited


class PerLoop(Generic[T]):
    """Something for each event loop of this process: `make` makes it when it is first asked for there, and `drop` gets
    it once its loop is closed, where nothing can be awaited any more."""

    __slots__ = ("__weakref__", "_drop", "_made", "_make", "_process")

    def __init__(self, make: Callable[[], T], drop: Callable[[T], object]) -> None:
        self._make = make
        self._drop = drop
        self._made: dict[asyncio.AbstractEventLoop, T] = {}
        self._process = Process()
        watch_forks(self)

    def note_fork(self) -> None:
        """A child may go on with the loop of its parent: what is known for it is not the child's."""
        self._process.renew(self._keep_inherited)

    def here(self) -> T:
        """The running loop's."""
        loop = asyncio.get_running_loop()
        found = self._made.get(loop)
        return self._add(loop) if found is None else found

    def take(self) -> list[T]:
        """The running loop's, if it has one, to be ended by the caller: it is made anew when it is asked for again.
        Those of closed loops are dropped."""
        self._drop_closed()
        found = self._made.pop(asyncio.get_running_loop(), None)
        return [] if found is None else [found]

    def _add(self, loop: asyncio.AbstractEventLoop) -> T:
        self._drop_closed()
        found = self._made[loop] = self._make()
        return found

    def _drop_closed(self) -> None:
        self._process.renew(self._keep_inherited)
        # Other threads run loops too, and add theirs or drop these meanwhile: so over a copy, and each is taken once.
        for loop in list(self._made):
            if loop.is_closed() and (found := self._made.pop(loop, None)) is not None:
                self._drop(found)

    def _keep_inherited(self) -> None:
        self._process.keep(*self._made.items())
        self._made.clear()
