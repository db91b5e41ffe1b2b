"""Wakes relays of other processes: a hint that may be lost, because polling is the backbone.

In one process a `Signal` does. Between processes on Postgres, writers send NOTIFY after commits, from a transaction of
its own and at most once in a few milliseconds: a NOTIFY inside the business transaction makes commits queue up.
`notify_listener.py` is the other end. On SQLite processes have a doorbell (`doorbell.py`).
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from os import getpid
from typing import Any, Final
from uuid import uuid4

from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Statement
from onefold._kernel.executors import ThreadExecutor, run_on
from onefold._kernel.fork_and_loop import Process
from onefold._kernel.pg_catalog import qualified
from onefold._kernel.ports import AsyncDatabase, Database
from onefold._kernel.runners import run
from onefold._kernel.wakeup_signals import OUTBOX_CHANNEL
from onefold.errors import OnefoldError

#: NOTIFY is sent at most once in this time.
NOTIFY_EVERY_S: Final = 0.005

#: It does not wait for the disk: a hint may be lost, and other senders of NOTIFY wait until it is committed.
_NOTIFY: Final = qualified(
    f"SELECT set_config('synchronous_commit', 'off', true), pg_notify('{OUTBOX_CHANNEL}', $1::text)"
)

#: How long a notifier that is closed waits for what it is just sending.
_CLOSE_S: Final = 1.0

_log = logging.getLogger("onefold.worker")


class _NotifySender:
    """Names the sender of a NOTIFY: a relay with the same sender got a signal already, and ignores it."""

    def __init__(self) -> None:
        self._name = uuid4().hex

    @property
    def sender(self) -> str:
        """With the process id: a child of fork must not ignore its parent's NOTIFY, since no signal reaches it."""
        return f"{self._name}.{getpid()}"

    async def _notify(self) -> None:
        await Batch((Statement(_NOTIFY, (self.sender,)),))


class Notifier(_NotifySender):
    """Notifies relays of other processes of commits. Append `notify` to `Outbox.committed`."""

    def __init__(self, database: AsyncDatabase[Any]) -> None:
        super().__init__()
        self._database = database
        self._due = False
        self._sending: asyncio.Task[None] | None = None

    def notify(self) -> None:
        """Notify at once, or soon after the last time: a burst is notified twice at most. On the database's own
        loop."""
        self._due = True
        if not self._is_sending():
            self._sending = asyncio.get_running_loop().create_task(self._send())

    async def close(self) -> None:
        """Drop what is not sent yet: relays poll."""
        from onefold._kernel.foreign_cancellations import cancel_until_ended  # for applications that end

        if self._sending is not None and self._is_sending():
            await cancel_until_ended(self._sending)

    def _is_sending(self) -> bool:
        """Whether the task still sends: one of a closed loop never ends, and sends nothing."""
        task = self._sending
        return task is not None and not task.done() and task.get_loop() is asyncio.get_running_loop()

    async def _send(self) -> None:
        while self._due:
            self._due = False
            try:
                await run_on(self._database, with_connection(self._notify))
            except Exception as error:
                _note_failure(error)
            await asyncio.sleep(NOTIFY_EVERY_S)


class ThreadNotifier(_NotifySender):
    """`Notifier` for threads: a thread of its own sends, for as long as there is something to send."""

    def __init__(self, database: Database[Any]) -> None:
        super().__init__()
        self._database = database
        self._process = Process()
        self._turn = threading.Lock()
        self._due = False
        self._sending: threading.Thread | None = None

    def notify(self) -> None:
        """From any thread."""
        self._process.renew(self._forget)
        with self._turn:
            self._due = True
            if self._sending is None:
                self._sending = threading.Thread(target=self._send, name="onefold-notifier", daemon=True)
                self._sending.start()

    def _forget(self) -> None:
        """Reset after a fork, which copies no threads: one of them may have held the lock."""
        self._turn, self._sending = threading.Lock(), None

    def close(self) -> None:
        with self._turn:
            self._due, sending = False, self._sending
        if sending is not None:
            sending.join(_CLOSE_S)

    def _send(self) -> None:
        while True:
            with self._turn:
                if not self._due:
                    self._sending = None
                    return
                self._due = False
            try:
                run(with_connection(self._notify), ThreadExecutor(self._database))
            except Exception as error:
                _note_failure(error)
            time.sleep(NOTIFY_EVERY_S)


def _note_failure(error: Exception) -> None:
    """Relays poll, so that only a hint is lost; the next one must be sent all the same."""
    if not isinstance(error, OnefoldError):
        _log.error(
            "relays of other processes could not be notified of a commit, and find its events at their next poll: %s",
            error, exc_info=error,
        )  # fmt: skip
