"""One connection, and the inbox that collects the confirms of what is sent over it.

Invariant: a connection is never renewed. One that is lost stays lost, so that nothing waits for it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from onefold.brokers.nats import _fast_publish, _publish
from onefold.brokers.nats._publish import EncodedMessage, Refusals

#: How late a lost connection is noticed without an error from the socket.
LOOK_S: Final = 0.5
#: So many bytes may wait for a socket that takes none, before a publish waits for it.
_PENDING_BYTES_MAX: Final = 2_097_152
_FLUSH_S: Final = 86_400
#: A connection that does not take what is left for it is given up after so long.
CLOSE_S: Final = 5.0
#: What a message's place holds until its confirm is there.
OPEN: Final = object()
#: What the client raises when it, or its connection, has failed.
TROUBLE: Final = (nats.errors.Error, OSError, TimeoutError)


class PublishCall:
    """The answers that one call to `publish` waits for."""

    def __init__(self, count: int) -> None:
        self.answers: list[Any] = [OPEN] * count
        self._left = count
        self._all = asyncio.Event()

    def settle(self, index: int, answer: object) -> None:
        if self.answers[index] is OPEN:
            self.answers[index] = answer
            self._left -= 1
            if not self._left:
                self._all.set()

    def settle_all(self, answers: Iterable[tuple[int, object]]) -> None:
        for index, answer in answers:
            self.settle(index, answer)

    async def wait(self, connection: NatsConnection) -> None:
        """Until all are there, or the connection is not."""
        while self._left and connection.alive:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._all.wait()


class NatsConnection:
    """One connection, never renewed, and the inbox that collects the confirms of everything sent over it."""

    def __init__(self) -> None:
        self.client = Client()
        self.jetstream = self.client.jetstream()
        self._send = _fast_publish.send if _fast_publish.works_with(self.client) else _publish.send
        self._inbox = ""
        self._calls: dict[str, PublishCall] = {}
        self._numbers = itertools.count()
        self._closing: asyncio.Task[None] | None = None

    async def connect(self, servers: list[str], options: Mapping[str, Any]) -> None:
        # Past `pending_size` the client flushes by itself, for ten seconds each time, and swallows a cancellation
        # meanwhile: no time limit around it would hold. 0 turns that off, and `send` waits instead.
        settings = {"connect_timeout": 5, "ping_interval": 20, "pending_size": 0, **options}
        again: Mapping[str, Any] = {"reconnect_time_wait": 0.05}  # seconds; declared as whole ones, and slept as it is
        await self.client.connect(
            servers=servers,
            error_cb=self._notice,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # per server, before it gives up; less than one is for ever
            **again,
            **settings,
        )
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*.*", cb=self._note_confirm)

    @property
    def alive(self) -> bool:
        return self.client.is_connected

    def begin(self, call: PublishCall) -> str:
        """The reply subject for the confirms of this call; each adds the index of its message."""
        inbox = f"{self._inbox}.{next(self._numbers)}"
        self._calls[inbox] = call
        return inbox

    def end(self, inbox: str) -> None:
        del self._calls[inbox]

    async def send(self, batch: Sequence[EncodedMessage]) -> Refusals:
        """Write these out and give the loop a turn, to read confirms. The messages that the client itself refuses are
        returned, and the others sent."""
        if not self.alive:
            raise ConnectionResetError("the connection was lost")
        refused = await self._send(self.client, batch)
        await asyncio.sleep(0)
        if self.client.pending_data_size > _PENDING_BYTES_MAX:
            await self.client.flush(timeout=_FLUSH_S)  # until the caller's own time is over
        return refused

    async def _note_confirm(self, msg: Msg) -> None:
        inbox, _, index = msg.subject.rpartition(".")
        if (call := self._calls.get(inbox)) is not None:
            call.settle(int(index), msg)

    async def _notice(self, error: Exception) -> None:
        """Ignore the client's error: calls that fail because of it raise, and a log entry for each attempt would be
        noise. But a connection that the server has ended is closed here, by a task of our own: before 2.15 the client
        closes it in its task that reads, which it cancels on the way, and the socket stays open until it is collected
        as garbage."""
        if isinstance(error, nats.errors.UnexpectedEOF) and self.alive:
            self._closing = asyncio.create_task(self.close())
            await asyncio.sleep(0)

    async def close(self) -> None:
        # The client asserts that it was connected before; before 2.15 it closes a writer that is None. One that refuses
        # its own options, or finds no server, never is connected, and why must not be hidden.
        with suppress(*TROUBLE, AssertionError, AttributeError):
            async with asyncio.timeout(CLOSE_S):
                await self.client.close()
