"""Receives the wake-ups of relays and consumers from other processes: NOTIFY of Postgres, or a doorbell on SQLite.

On Postgres one connection listens, with asyncpg or psycopg, by themselves or under SQLAlchemy, or with psycopg2; a
synchronous driver waits on a thread. A lost wake-up costs nothing but time: polling is the backbone.
"""

from __future__ import annotations

import asyncio
import logging
import select
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final
from uuid import uuid4

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.foreign_cancellations import cancel_until_ended, resist
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.ports import AsyncConnection, AsyncDatabase, Connection, Database
from onefold._kernel.runners import run, run_async
from onefold._kernel.wakeup_signals import ACTION, OUTBOX_CHANNEL, Wakeups
from onefold._worker.doorbell import doorbell_of
from onefold.db._threaded import ThreadedDatabase
from onefold.errors import OnefoldError

_NOTIFY: Final = qualified("SELECT pg_notify($1::text, $2::text)")

#: Prefix of the NOTIFY by which a listener tests whether notifications arrive.
_PROBE: Final = "probe "

#: After how long a lost listening connection is replaced.
RELISTEN_S: Final = 1.0

#: How long a listening thread waits before it checks `stop`. Nothing is sent for that.
_WAIT_S: Final = 0.1

#: How long the server may take to end the listening of a session, and how long a thread that listens is waited for.
_UNLISTEN_S: Final = 1.0
_LEAVE_S: Final = 10.0

_LOST: Final = "nothing listens for NOTIFY at the moment, until a new connection does: %s"

_log = logging.getLogger("onefold.worker")


@asynccontextmanager
async def listening(
    database: AsyncDatabase[Any],
    on_notify: Callable[[], None],
    *,
    channel: str = OUTBOX_CHANNEL,
    sender: str = "",
    wakeups: Wakeups | None = None,
) -> AsyncIterator[None]:
    """Call `on_notify` at every NOTIFY on the channel while the block lasts, where the driver can, but for those of
    `sender`. It is called from any thread. `wakeups.listeners` is not empty while NOTIFY is known to arrive here; on
    SQLite, where a datagram may get lost unnoticed, it stays empty, and waiting loops poll as often as without."""
    if (doorbell := doorbell_of(database, channel)) is not None:
        with doorbell.listening(on_notify, sender):
            yield
        return
    if database.dialect != "postgres":
        yield
        return
    listener = _NotifyListener(channel, sender, on_notify, Wakeups() if wakeups is None else wakeups)
    if isinstance(database, ThreadedDatabase):
        stop = threading.Event()
        thread = threading.Thread(
            target=listener.listen, args=(database.database, stop), name="onefold-listen", daemon=True
        )
        thread.start()
        try:
            yield
        finally:
            stop.set()
            await asyncio.to_thread(thread.join, _LEAVE_S)
        return
    task = asyncio.create_task(listener.listen_async(database))
    try:
        yield
    finally:
        await cancel_until_ended(task)


class _NotifyListener:
    """Listens on one channel, on one connection after the other."""

    def __init__(self, channel: str, sender: str, on_notify: Callable[[], None], wakeups: Wakeups) -> None:
        self._channel = channel
        self._sender = sender
        self._on_notify = on_notify
        self._wakeups = wakeups
        self._probe = f"{_PROBE}{uuid4().hex}"

    async def listen_async(self, database: AsyncDatabase[Any]) -> None:
        while True:
            try:
                if not await resist(self._listen_once(database)):
                    return
            except Exception as error:  # of a vendor or of a pool's hook: it only costs the hint
                _log.debug(_LOST, error)
            await asyncio.sleep(RELISTEN_S)

    async def _listen_once(self, database: AsyncDatabase[Any]) -> bool:
        """Listen until the connection is lost. False: this driver cannot listen, and the caller polls."""
        connection = await database.acquire()
        try:
            driver = await _async_driver(connection.handle)
            if hasattr(driver, "add_listener"):
                await self._with_asyncpg(driver, database)
            elif callable(getattr(driver, "notifies", None)):
                await self._with_psycopg(driver, database)
            else:
                return False
        finally:
            await self._release_async(connection)
        return True

    def listen(self, database: Database[Any], stop: threading.Event) -> None:
        """Listen on this thread, with a synchronous driver."""
        while not stop.is_set():
            try:
                connection = database.acquire()
            except Exception as error:
                _log.debug(_LOST, error)
                stop.wait(RELISTEN_S)
                continue
            try:
                driver = _driver(connection.handle)
                if not hasattr(driver, "notifies"):
                    return
                wait = _wait if callable(driver.notifies) else _wait_psycopg2
                driver.rollback()
                driver.autocommit = True
                driver.cursor().execute(f"LISTEN {self._channel}")
                self._on_notify()
                with suppress(OnefoldError):
                    run(with_connection(self._send_probe), ThreadExecutor(database))
                try:
                    while not stop.is_set():
                        self._dispatch(*wait(driver))
                finally:
                    self._wakeups.listeners.discard(self)
            except Exception as error:
                _log.debug(_LOST, error)
            finally:
                self._release(connection)
            stop.wait(RELISTEN_S)

    async def _with_asyncpg(self, driver: Any, database: AsyncDatabase[Any]) -> None:
        lost = asyncio.Event()
        driver.add_termination_listener(lambda *_: lost.set())
        await driver.add_listener(self._channel, lambda *about: self._dispatch(about[-1]))
        self._on_notify()  # from here on nothing is missed; earlier commits are looked for once
        async with self._proving(database):
            await lost.wait()

    async def _with_psycopg(self, driver: Any, database: AsyncDatabase[Any]) -> None:
        await driver.rollback()
        await driver.set_autocommit(True)
        await driver.execute(f"LISTEN {self._channel}")
        self._on_notify()  # from here on nothing is missed; earlier commits are looked for once
        async with self._proving(database):
            async for notification in driver.notifies():
                self._dispatch(notification.payload)

    @asynccontextmanager
    async def _proving(self, database: AsyncDatabase[Any]) -> AsyncIterator[None]:
        """Send the probe beside listening: where no other connection is free, that takes its time, or fails."""
        work = run_async(with_connection(self._send_probe), TaskExecutor(database))
        proving = asyncio.create_task(work)
        try:
            yield
        finally:
            self._wakeups.listeners.discard(self)
            # A probe that is cut off costs its connection, of which psycopg's pool warns: it is given time to end.
            try:
                await asyncio.wait([proving], timeout=_UNLISTEN_S)
            finally:  # also where its listener is cancelled once more
                await cancel_until_ended(proving)

    async def _send_probe(self) -> None:
        """NOTIFY this listener, on another session. A LISTEN may succeed and nothing arrive, as through a pooler that
        shares sessions between clients: `wakeups.listeners` has this listener only once its probe has arrived."""
        await Batch((Statement(_NOTIFY, (self._channel, self._probe)),))

    def _dispatch(self, *payloads: str) -> None:
        """Handle the notifications of the channel."""
        if self._probe in payloads:
            self._wakeups.listeners.add(self)
        if ACTION in payloads:
            self._wakeups.actions.set()
        others = [payload for payload in payloads if not payload.startswith(_PROBE)]
        if any(not payload or payload != self._sender for payload in others):
            self._on_notify()

    async def _release_async(self, connection: AsyncConnection[Any]) -> None:
        """Discard the connection: a session that listens must not go back to its pool. psycopg's pool warns of one that
        comes back closed: there it is unlistened and goes back."""
        unlistened = False
        try:
            if _is_psycopg(connection.handle):
                async with asyncio.timeout(_UNLISTEN_S):
                    await connection.handle.execute(f"UNLISTEN {self._channel}")
                unlistened = True
        except Exception as error:
            _log.debug("the connection that listened for NOTIFY is closed: %s", error)
        finally:  # also where its listener is cancelled once more: its pool would miss it for ever
            with suppress(OnefoldError):
                await (connection.release() if unlistened else connection.discard())

    def _release(self, connection: Connection[Any]) -> None:
        """`_release_async` on a thread."""
        try:
            if _is_psycopg(connection.handle):
                connection.handle.execute(f"UNLISTEN {self._channel}")
                connection.release()
                return
        except Exception as error:
            _log.debug("the connection that listened for NOTIFY is closed: %s", error)
        with suppress(OnefoldError):
            connection.discard()


def _is_psycopg(handle: Any) -> bool:
    """Whether it is psycopg's own connection, not inside of SQLAlchemy's."""
    return callable(getattr(handle, "notifies", None))


def _wait(driver: Any) -> list[str]:
    """The notifications of psycopg's connection: returned at once, and not when the time is over."""
    return [notification.payload for notification in driver.notifies(timeout=_WAIT_S, stop_after=1)]


def _wait_psycopg2(driver: Any) -> list[str]:
    """The notifications of psycopg2; its socket is read only when it has data."""
    if select.select([driver], [], [], _WAIT_S)[0]:
        driver.poll()
    payloads = [notification.payload for notification in driver.notifies]
    driver.notifies.clear()
    return payloads


async def _async_driver(handle: Any) -> Any:
    """The driver's connection, also where it is SQLAlchemy's."""
    if hasattr(handle, "get_raw_connection"):
        return (await handle.get_raw_connection()).driver_connection
    return handle


def _driver(handle: Any) -> Any:
    return getattr(getattr(handle, "connection", None), "driver_connection", None) or handle
