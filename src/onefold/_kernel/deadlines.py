"""The moment by which the work under way must be over, for everything that is called on its behalf.

A server puts it here when a request says how long its client still waits; a client finds it here and forwards what is
left. It travels in a ContextVar, so it is there in tasks, and in threads that were started with a copy of the context.

On the wire it is a number of milliseconds, not a moment: the clocks of two hosts never agree. What the
request spent on its way is not counted: the server is late by a network's delay, and not by a wrong clock's hours.

A caller's deadline ends with the response to it: what goes on afterwards, in background tasks or in tasks that were
begun before, is waited for by no client. So what travels is not the moment but a `Granted`, which the code that granted
it can lift, for all contexts at once.

Invariant: setting a deadline can only shorten the one that is there; `no_deadline` is for work of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from math import ceil

from onefold._kernel.arguments import named_arguments
from onefold._kernel.clock import monotonic_s
from onefold.errors import ConfigurationError

HEADER = "request-timeout-ms"
"""How long the client still waits, in whole milliseconds from now. 0 is: it does not wait any more."""

LONGEST_S = 24 * 3600.0
"""A longer wait is no deadline that a server could keep to."""

_DIGITS_MAX = len(str(int(LONGEST_S * 1000)))


class Granted:
    """A deadline in force, until it is lifted."""

    __slots__ = ("_at", "_outer")

    def __init__(self, at: float, outer: Granted | None = None) -> None:
        self._at: float | None = at
        self._outer = outer

    @property
    def at(self) -> float | None:
        """The first moment of those in force; None: all of them are lifted."""
        at, outer = self._at, self._outer
        if outer is None or (outer_at := outer.at) is None:
            return at
        return outer_at if at is None or outer_at < at else at

    def lift(self) -> None:
        """The client has its answer, or is gone: the deadline has no meaning any more."""
        self._at = None


_current: ContextVar[Granted | None] = ContextVar("onefold_deadline", default=None)


def current() -> float | None:
    """The moment on the monotonic clock (`time.monotonic`) by which all must be over; None: there is none."""
    granted = _current.get()
    return None if granted is None else granted.at


def left_s() -> float | None:
    """What is left until then: never negative. None: there is no deadline."""
    at = current()
    return None if at is None else max(0.0, at - monotonic_s())


@named_arguments("onefold.deadline")
@contextmanager
def deadline(seconds: float) -> Iterator[float]:
    """Everything in this block is to be over after so many seconds, or sooner, where a deadline was set already.

    Nothing is interrupted: clients of onefold send what is left along and give up in time; other code asks `left_s`.
    Yields the moment on the monotonic clock.
    """
    given: object = seconds
    if isinstance(given, bool) or not isinstance(given, int | float):
        raise ConfigurationError(f"deadline({given!r}) is not a number: choose 0 to {LONGEST_S:g} seconds")
    if not 0 <= seconds <= LONGEST_S:
        raise ConfigurationError(f"deadline({seconds!r}) is out of range: choose 0 to {LONGEST_S:g} seconds")
    at = monotonic_s() + seconds
    shortest = shorten(at)
    token = begin(Granted(at, _current.get()))
    try:
        yield shortest
    finally:
        end(token)


@contextmanager
def no_deadline() -> Iterator[None]:
    """What is called in this block is not bound by the caller's deadline: work that has to be done although no client
    waits for it, such as an audit record, or a task that outlives its request."""
    token = _current.set(None)
    try:
        yield
    finally:
        _current.reset(token)


def shorten(at: float) -> float:
    """This moment, or the one that is set already if that comes first."""
    granted = _current.get()
    if granted is None or (outer := granted.at) is None:
        return at
    return at if at < outer else outer


def begin(granted: Granted) -> Token[Granted | None]:
    """Set the deadline of what is called from here, for adapters that have no block: take it off with `end`."""
    return _current.set(granted)


def end(token: Token[Granted | None]) -> None:
    """Put back what was there before `begin`."""
    _current.reset(token)


def parse_s(value: str | bytes | None) -> float | None:
    """The seconds a header grants. What is absent, no whole number or longer than `LONGEST_S` is None: no deadline."""
    if value is None:
        return None
    text = value.decode("latin-1") if isinstance(value, bytes) else value
    text = text.strip(" \t")
    # Measured before it is read: Python refuses to read numbers of thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return None
    seconds = int(text) / 1000
    return seconds if seconds <= LONGEST_S else None


def format_ms(seconds: float) -> str:
    """The header for what is left, rounded up: what still has time must not arrive as expired."""
    # Rounded before, so that 0.3 s, which is not a binary fraction, is not 301 ms.
    return str(max(0, ceil(round(min(seconds, LONGEST_S) * 1000, 6))))
