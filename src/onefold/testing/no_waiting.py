"""Clients that retry at once: tests of what happens after the third attempt need not wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onefold._client.call_executors import Waits

__all__ = ["no_waiting"]


@contextmanager
def no_waiting() -> Iterator[None]:
    """In this block no client of this process waits between attempts, on any thread. All else is as ever: attempts are
    counted, budgets are spent, and what would not fit into the deadline is not tried."""
    before, Waits.skipped = Waits.skipped, True
    try:
        yield
    finally:
        Waits.skipped = before
