"""Which request runs now, which waits, and which is turned away: the queue in front of the application, as a machine.

A request that finds room enters at once. One that does not waits in a bounded queue, the most important first. Among
equals it is first come, first served, until the queue never empties (`Shedder.overloaded`); from then on the newest
goes first: the oldest are the next to be given up by their clients, and to serve them in order would serve all of them
too late. When the queue is full, the request that would be served last is turned away: the newcomer, or the one that it
displaces.

Whenever a slot is free, first those are shed who have waited too long, the oldest before the others, and whatever
their importance: their clients are hardly there any more. The shedder gets the wait of the oldest, not of the one that
enters: else newest-first would hide the queue it is the remedy for.

It gets the time as an argument, and neither waits nor wakes: `leave` and its like return the tickets that have got
their verdict, and the adapters wake those who hold them. Shared by threads.

Invariants: never more run than the limit allows; every ticket gets one verdict; no request waits while there is room.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import inf
from threading import Lock
from typing import Literal, TypeAlias

from onefold._kernel.telemetry.shedding_events import ShedReason
from onefold._policy.limiter import Limiter
from onefold._policy.shedder import Shedder

Verdict: TypeAlias = Literal["enter", "gone"] | ShedReason


def _no_waiter() -> None:
    """Before its adapter waits there is nothing to wake: the adapter looks at the verdict before it waits."""


class Ticket:
    """One request in the queue, or turned away from it."""

    __slots__ = ("arrived_at", "deadline", "instead_of", "priority", "until", "verdict", "wake")

    def __init__(self, arrived_at: float, priority: int, deadline: float, until: float) -> None:
        self.arrived_at = arrived_at
        self.priority = priority
        self.deadline = deadline
        self.until = until
        """The moment its wait is over in any case: the adapter then calls `AdmissionQueue.time_out`."""
        self.verdict: Verdict | None = None
        """None while it waits."""
        self.instead_of: Ticket | None = None
        """The ticket that it displaced, and that is to be woken."""
        self.wake: Callable[[], object] = _no_waiter


class AdmissionQueue:
    """The way into one application."""

    def __init__(self, limiter: Limiter, shedder: Shedder, *, queue_most: int, wait_most_s: float) -> None:
        self._limiter = limiter
        self._shedder = shedder
        self._queue_most = queue_most
        self._wait_most_s = wait_most_s
        self._waiting = 0
        self._levels: dict[int, OrderedDict[Ticket, None]] = {}
        self._lock = Lock()

    @property
    def limit(self) -> int:
        """How many may run at once."""
        return self._limiter.limit

    @property
    def running(self) -> int:
        """How many run now."""
        return self._limiter.in_flight

    @property
    def waiting(self) -> int:
        """How many wait."""
        return self._waiting

    def arrive(self, now: float, *, priority: int = 0, deadline: float | None = None) -> Ticket | None:
        """A request comes. None: it enters. A ticket without a verdict waits; one with it was turned away."""
        at = inf if deadline is None else deadline
        with self._lock:
            if at > now and self._limiter.enter():
                self._shedder.admit(0.0, now)  # a request that enters at once in this interval: the queue is empty
                return None
            ticket = Ticket(now, priority, at, min(at, now + self._wait_most_s))
            if at <= now:
                ticket.verdict = "deadline"
            else:
                self._line_up(ticket)
            return ticket

    def leave(self, now: float, latency_s: float | None, *, dropped: bool = False, late: bool = False) -> list[Ticket]:
        """A request that had entered is done, in this time without its wait; None: there is no latency to measure.
        `late`: after its client's deadline. That is the service's fault only while all are slower than they were: a
        client that grants less than the work takes would else have the limit shrink for all clients."""
        with self._lock:
            dropped = dropped or (late and self._limiter.crowded)
            if latency_s is not None and not dropped:
                self._shedder.serve(latency_s)
            self._limiter.leave(now, latency_s, dropped=dropped)
            return self._fill(now) if self._waiting else []

    def time_out(self, ticket: Ticket, now: float) -> None:
        """The wait of a ticket is over, unless it has got its verdict already."""
        with self._lock:
            if ticket.verdict is None and now >= ticket.until:
                self._shedder.admit(
                    now - ticket.arrived_at, now
                )  # its answer is ignored: the ticket has waited, however it ends
                self._decide(ticket, "deadline" if now >= ticket.deadline else "waited too long")

    def give_up(self, ticket: Ticket, now: float) -> list[Ticket]:
        """The request does not want to enter any more, though it may have been admitted in this moment."""
        with self._lock:
            if ticket.verdict is None:
                self._decide(ticket, "gone")
            elif ticket.verdict == "enter":
                ticket.verdict = "gone"
                self._limiter.leave(now, None)
                return self._fill(now)
            return []

    def _line_up(self, ticket: Ticket) -> None:
        self._levels.setdefault(ticket.priority, OrderedDict())[ticket] = None
        self._waiting += 1
        if self._waiting <= self._queue_most:
            return
        last = self._last()
        self._decide(last, "queue full" if last is ticket else "displaced")
        if last is not ticket:
            ticket.instead_of = last

    def _fill(self, now: float) -> list[Ticket]:
        decided = []
        while self._waiting and self._limiter.in_flight < self._limiter.limit:
            oldest = min((next(iter(level)) for level in self._levels.values()), key=lambda ticket: ticket.arrived_at)
            if not self._shedder.admit(now - oldest.arrived_at, now):
                decided.append(self._decide(oldest, "waited too long"))
                continue
            first = self._first()
            if now >= first.deadline:
                decided.append(self._decide(first, "deadline"))
            elif self._limiter.enter():
                decided.append(self._decide(first, "enter"))
        return decided

    def _first(self) -> Ticket:
        level = self._levels[max(self._levels)]
        return next(reversed(level)) if self._shedder.overloaded else next(iter(level))

    def _last(self) -> Ticket:
        level = self._levels[min(self._levels)]
        return next(iter(level)) if self._shedder.overloaded else next(reversed(level))

    def _decide(self, ticket: Ticket, verdict: Verdict) -> Ticket:
        level = self._levels[ticket.priority]
        del level[ticket]
        if not level:
            del self._levels[ticket.priority]
        self._waiting -= 1
        ticket.verdict = verdict
        return ticket
