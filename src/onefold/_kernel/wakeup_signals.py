"""Signals: waking those who wait for news, on whatever thread and loop. A hint that may be lost: a waiter also
looks by itself from time to time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from onefold._kernel.pg_catalog import qualified

# What is written by a statement that stands in a transaction of its own (an operator's, a relay's) is told on these
# channels of Postgres' NOTIFY by that statement; writers of events tell after their COMMIT (`_worker/wakeup.py`).

#: Events may be claimed: for relays.
OUTBOX_CHANNEL: Final = "onefold_outbox"

#: Messages wait at the local broker: for its consumers.
DELIVERY_CHANNEL: Final = "onefold_delivery"

#: What is told of an operator's action, on both: it may be about failed messages, which no delivery tells of.
ACTION: Final = "action"

NOTIFY_RELAYS: Final = qualified(f"SELECT pg_notify('{OUTBOX_CHANNEL}', '')")

#: A CTE and what has it evaluated once, for a statement that makes events claimable.
RELAYS_TOLD: Final = f"WITH told AS MATERIALIZED (SELECT pg_notify('{OUTBOX_CHANNEL}', '') AS heard)"
ARE_TOLD: Final = "EXISTS (SELECT 1 FROM told)"


class Signal:
    """Wakes the task that waits for it on its loop. `set` may be called from any thread, at any time."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        loop = self._loop
        if loop is None:
            self._event.set()  # no task waits yet: the next one that does returns at once
            return
        with suppress(RuntimeError):  # its loop is closed: no task is left to be woken
            loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """To be called before looking for what the signal may be about, so that none is missed."""
        self._loop = asyncio.get_running_loop()
        self._event.clear()

    def is_set(self) -> bool:
        return self._event.is_set()

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was set within that time."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Signals:
    """One signal for each who listens, all set together."""

    def __init__(self) -> None:
        self._signals: tuple[Signal, ...] = ()

    def listen(self) -> Signal:
        signal = Signal()
        self._signals = (*self._signals, signal)
        return signal

    def leave(self, signal: Signal) -> None:
        self._signals = tuple(other for other in self._signals if other is not signal)

    def set(self) -> None:
        for signal in self._signals:
            signal.set()


class News(Signals):
    """What there is to do, told to those who do it."""

    def __init__(self) -> None:
        super().__init__()
        #: Those whose listening is known to work: what other processes have for us is heard here. While there is one,
        #: looking by oneself is a precaution.
        self.heard: set[object] = set()
        #: Whose NOTIFY need not be heard by those who listen here.
        self.sender = ""
        #: Tells those who wait for these news in other processes, where their database does not.
        self.tell_others: Callable[[], object] = _nothing
        #: Set when an operator did something, in whichever process.
        self.actions = Signals()


def _nothing() -> None:
    """There is no other way to tell them, or no need."""
