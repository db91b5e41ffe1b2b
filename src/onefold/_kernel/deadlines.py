"""The moment by which the work under way must be over, for everything that is called on its behalf.

A server puts it here when a request says how long its client still waits; a client finds it here and forwards what is
left. It travels in a ContextVar, so it is there in tasks, and in threads that were started with a copy of the context.

On the wire it is a number of milliseconds, not a moment: the clocks of two hosts never agree. What the
request spent on its way is not counted: the server is late by a network's delay, and not by a wrong clock's hours.

Invariant: whoever sets a deadline can only shorten the one that is there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from math import ceil

from onefold._kernel.clock import monotonic_s
from onefold.errors import ConfigurationError

HEADER = "request-timeout-ms"
"""How long the client still waits, in whole milliseconds from now. 0 is: it does not wait any more."""

LONGEST_S = 24 * 3600.0
"""A wait that is longer is none that a server could be told to keep to."""

_DIGITS_MAX = len(str(int(LONGEST_S * 1000)))

_current: ContextVar[float | None] = ContextVar("onefold_deadline", default=None)


#: The moment on the monotonic clock (`time.monotonic`) by which all must be over; None: there is none.
current: Callable[[], float | None] = _current.get


def left_s() -> float | None:
    """What is left until then: never negative. None: there is no deadline."""
    at = _current.get()
    return None if at is None else max(0.0, at - monotonic_s())


@contextmanager
def deadline(seconds: float) -> Iterator[float]:
    """Everything in this block is to be over after so many seconds, or sooner, where a deadline was set already.

    Nothing is interrupted: clients of onefold send what is left along and give up in time; other code asks `left_s`.
    Yields the moment on the monotonic clock.
    """
    if not 0 <= seconds <= LONGEST_S:
        raise ConfigurationError(f"deadline({seconds!r}) is out of range: choose 0 to {LONGEST_S:g} seconds")
    at = shortened(monotonic_s() + seconds)
    token = begin(at)
    try:
        yield at
    finally:
        end(token)


def shortened(at: float) -> float:
    """This moment, or the one that is set already if that comes first."""
    outer = _current.get()
    return at if outer is None or at < outer else outer


def begin(at: float) -> Token[float | None]:
    """Set the deadline of what is called from here, for rims that have no block: take it off with `end`."""
    return _current.set(at)


def end(token: Token[float | None]) -> None:
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
    # Rounded before, so that 0.3 s, which is no binary fraction, is not 301 ms.
    return str(max(0, ceil(round(min(seconds, LONGEST_S) * 1000, 6))))
