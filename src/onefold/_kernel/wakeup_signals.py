"""Signals: they wake loops that wait for work, on whatever thread. A signal is a hint that may be lost: a waiter also
polls from time to time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from onefold._kernel.pg_catalog import qualified

# A statement in a transaction of its own (an operator's, a relay's) notifies these channels of Postgres itself; writers
# of events notify after their COMMIT (`_worker/wakeup.py`).

#: Events may be claimed: for relays.
OUTBOX_CHANNEL: Final = "onefold_outbox"

#: Messages wait at the local broker: for its consumers.
DELIVERY_CHANNEL: Final = "onefold_delivery"

#: The payload for an operator's action, on both: it may be about failed messages, which no delivery announces.
ACTION: Final = "action"

NOTIFY_RELAYS: Final = qualified(f"SELECT pg_notify('{OUTBOX_CHANNEL}', '')")

#: A CTE and what has it evaluated once, for a statement that makes events claimable.
RELAYS_NOTIFIED: Final = f"WITH told AS MATERIALIZED (SELECT pg_notify('{OUTBOX_CHANNEL}', '') AS heard)"
NOTIFIED: Final = "EXISTS (SELECT 1 FROM told)"


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
    """One signal for each listener, all set together."""

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


class Wakeups(Signals):
    """Wakes the loops of this process when there is work for them, and those of other processes."""

    def __init__(self) -> None:
        super().__init__()
        #: The listeners whose connection is known to work: notifications of other processes arrive here. While there
        #: is one, polling is a precaution.
        self.listeners: set[object] = set()
        #: The sender whose NOTIFY the listeners of this process ignore: itself.
        self.sender = ""
        #: Notifies the loops of other processes, where the database does not.
        self.notify_others: Callable[[], object] = _nothing
        #: Set when an operator did something, in whichever process.
        self.actions = Signals()


def _nothing() -> None:
    """Other processes cannot be notified in another way, or need not be."""
