"""What waits for the end of a transaction: events for COMMIT, hooks, conditions, and the sessions that joined.

Invariant: what was published or asked for in a part that is rolled back is not left to the end: `retract` cuts it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from onefold._kernel.effects import Statement
from onefold._kernel.end_hooks import Due, Hooks
from onefold._kernel.ports import Joined, Outgoing


class Mark(NamedTuple):
    """A place in a transaction that its work can be undone to."""

    published: int
    hooks: int
    held: int


class PendingWork:
    """The events, hooks, conditions and sessions of one transaction."""

    __slots__ = ("_hooks", "_new_buffer", "_outgoing", "held", "joined")

    def __init__(self, new_buffer: Callable[[], Outgoing]) -> None:
        self._new_buffer = new_buffer
        self._outgoing: Outgoing | None = None
        self._hooks: Hooks | None = None
        #: How many conditions of its request were found to hold, by rows that are still locked: a savepoint that is
        #: rolled back takes its locks with it.
        self.held = 0
        #: The sessions that work inside the transaction.
        self.joined: list[Joined] = []

    def __bool__(self) -> bool:
        """Whether there is something to do after the end."""
        return bool(self._hooks or self.joined)

    @property
    def events(self) -> Outgoing:
        if self._outgoing is None:
            self._outgoing = self._new_buffer()
        return self._outgoing

    @property
    def published(self) -> int:
        """How many events wait for COMMIT."""
        return 0 if self._outgoing is None else len(self._outgoing)

    def add_hook(self, due: Due, call: Callable[[], Any]) -> None:
        if self._hooks is None:
            self._hooks = Hooks()
        self._hooks.add(due, call)

    def take_hook(self, due: Due) -> Callable[[], Any] | None:
        """The next hook that this end brings. It is forgotten: nothing is called twice."""
        return None if self._hooks is None else self._hooks.take_next(due)

    def mark(self) -> Mark:
        """Where events, hooks and conditions stand now."""
        return Mark(self.published, 0 if self._hooks is None else len(self._hooks), self.held)

    def retract(self, mark: Mark) -> None:
        """Forget the events, the commit hooks and the conditions since then: what they stand for was rolled back."""
        self.held = mark.held
        if self._outgoing is not None:
            self._outgoing.cut(mark.published)
        if self._hooks is not None:
            self._hooks.cut(mark.hooks)

    def flush(self) -> tuple[Statement, ...]:
        """What writes the events, to go in front of COMMIT."""
        return () if self._outgoing is None else self._outgoing.flush()

    def announce(self) -> None:
        """COMMIT was answered: the relay of this process may publish the events."""
        if self._outgoing is not None and len(self._outgoing):
            self._outgoing.announce()
