"""Waking a relay when events were committed: a hint that may be lost, because polling is the backbone.

In one process a `Signal` does. Between processes on Postgres, `Notifier` sends NOTIFY after commits, from a transaction
of its own and at most once in a few milliseconds: a NOTIFY inside the business transaction makes commits queue up.
`listening` is the other end, where the driver can.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from onefold._kernel.borrow import borrowing
from onefold._kernel.effects import Batch, Statement
from onefold._kernel.lanes import TaskLane
from onefold._kernel.ports import AsyncConnection, AsyncDatabase
from onefold._kernel.runners import run_async
from onefold.errors import OnefoldError

CHANNEL: Final = "onefold_outbox"

#: NOTIFY is sent at most once in this time.
NOTIFY_EVERY_S: Final = 0.005

#: After how long a lost listening connection is replaced.
RELISTEN_S: Final = 1.0

_log = logging.getLogger("onefold")


class Signal:
    """Wakes whoever waits for it on its loop. `set` may be called from any thread, at any time."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None

    def set(self) -> None:
        loop = self._loop
        if loop is None:
            self._event.set()  # nobody waits yet: whoever will, does not
            return
        with suppress(RuntimeError):  # its loop is closed: nobody is left to be woken
            loop.call_soon_threadsafe(self._event.set)

    def clear(self) -> None:
        """To be called before looking for what the signal may be about, so that none is missed."""
        self._loop = asyncio.get_running_loop()
        self._event.clear()

    async def wait(self, timeout_s: float) -> bool:
        """Whether it was set within that time."""
        self._loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return False
        return True


class Notifier:
    """Tells the relays of other processes that something was committed. Append `notify` to `Outbox.committed`."""

    def __init__(self, database: AsyncDatabase[Any]) -> None:
        self._database = database
        self._due = False
        self._sending: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """At once, or soon after the last time: a burst is told twice at most. On the database's own loop."""
        self._due = True
        if self._sending is None or self._sending.done():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def close(self) -> None:
        """What is not sent by now is not sent: relays poll."""
        if self._sending is not None:
            self._sending.cancel()
            await asyncio.gather(self._sending, return_exceptions=True)

    async def _send(self) -> None:
        while self._due:
            self._due = False
            with suppress(OnefoldError):
                await run_async(borrowing(_notified), TaskLane(self._database))
            await asyncio.sleep(NOTIFY_EVERY_S)


async def _notified() -> None:
    await Batch((Statement(f"NOTIFY {CHANNEL}"),))


@asynccontextmanager
async def listening(database: AsyncDatabase[Any], signal: Signal) -> AsyncIterator[None]:
    """Set the signal at every NOTIFY while the block lasts, on a connection of its own, where the driver can."""
    if database.dialect != "postgres":
        yield
        return
    task = asyncio.create_task(_listen(database, signal))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _listen(database: AsyncDatabase[Any], signal: Signal) -> None:
    while True:
        try:
            connection = await database.acquire()
        except OnefoldError:
            await asyncio.sleep(RELISTEN_S)
            continue
        try:
            handle = connection.handle
            if hasattr(handle, "add_listener"):
                await _with_asyncpg(handle, signal)
            elif hasattr(handle, "notifies"):
                await _with_psycopg(handle, signal)
            else:
                return  # this driver cannot: the relay polls
        except Exception as error:  # a vendor's, of any kind: it only costs the hint
            _log.debug("the connection that listens for NOTIFY was lost: %s", error)
        finally:
            await _thrown_away(connection)
        await asyncio.sleep(RELISTEN_S)


async def _with_asyncpg(handle: Any, signal: Signal) -> None:
    lost = asyncio.Event()
    handle.add_termination_listener(lambda *_: lost.set())
    await handle.add_listener(CHANNEL, lambda *_: signal.set())
    await lost.wait()


async def _with_psycopg(handle: Any, signal: Signal) -> None:
    await handle.execute(f"LISTEN {CHANNEL}")
    async for _ in handle.notifies():
        signal.set()


async def _thrown_away(connection: AsyncConnection[Any]) -> None:
    """A session that listens must not go back to the pool."""
    with suppress(OnefoldError):
        await connection.discard()
