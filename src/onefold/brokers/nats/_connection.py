"""One connection, and the inbox that collects the confirms of what is sent over it.

Invariant: a link is never renewed. One that is lost stays lost, so that nothing waits for it.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final

import nats.errors
from nats.aio.client import Client
from nats.aio.msg import Msg

#: How late a lost connection is noticed where nothing tells of it.
LOOK_S: Final = 0.5
#: What a message's place holds until its confirm is there.
OPEN: Final = object()
#: What the client raises when it, or its connection, is in trouble.
TROUBLE: Final = (nats.errors.Error, OSError, TimeoutError)


class Call:
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

    async def wait(self, link: Link) -> None:
        """Until all are there, or the connection is not."""
        while self._left and link.alive:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._all.wait(), LOOK_S)


class Link:
    """One connection, never renewed, and the inbox that collects the confirms of everything sent over it."""

    def __init__(self) -> None:
        self.client = Client()
        self.jetstream = self.client.jetstream()
        self._inbox = ""
        self._calls: dict[str, Call] = {}
        self._numbers = itertools.count()

    async def connect(self, servers: list[str], options: Mapping[str, Any]) -> None:
        settings = {"connect_timeout": 5, "ping_interval": 20, **options}
        await self.client.connect(
            servers=servers,
            error_cb=_silent,
            allow_reconnect=False,
            max_reconnect_attempts=1,  # per server, before it gives up; less than one is for ever
            reconnect_time_wait=0.05,  # type: ignore[arg-type]  # seconds, and a fraction will do
            **settings,
        )
        self._inbox = self.client.new_inbox()
        await self.client.subscribe(f"{self._inbox}.*.*", cb=self._confirmed)

    @property
    def alive(self) -> bool:
        return self.client.is_connected

    def begin(self, call: Call) -> str:
        """Where the confirms of this call are to go; each adds the index of its message."""
        inbox = f"{self._inbox}.{next(self._numbers)}"
        self._calls[inbox] = call
        return inbox

    def end(self, inbox: str) -> None:
        del self._calls[inbox]

    async def send(self, frames: list[bytes]) -> None:
        """Write out what is framed already. The client's own `publish` frames one message at a time, and a message with
        an envelope costs it twice as long; for bytes that are ready it has no public name."""
        if not self.alive:
            raise ConnectionResetError("the connection was lost")
        await self.client._send_command(b"".join(frames))
        await self.client._flush_pending()
        await asyncio.sleep(0)

    async def _confirmed(self, msg: Msg) -> None:
        inbox, _, index = msg.subject.rpartition(".")
        if (call := self._calls.get(inbox)) is not None:
            call.settle(int(index), msg)

    async def close(self) -> None:
        # The client asserts that it was connected before. One that refuses its own options never is, and why it does
        # must not be hidden.
        with suppress(*TROUBLE, AssertionError):
            await self.client.close()


async def _silent(error: Exception) -> None:
    """Whoever is concerned is told by the call that fails; a log entry for each attempt would be noise."""
