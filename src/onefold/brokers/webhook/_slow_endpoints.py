"""Slow endpoints, which leave requests unanswered: their answers are awaited beside the relay's rounds, not by them.

A relay waits for all answers of a round. An endpoint that answers nothing until the time limit would hold up the events
of all others for as long, each time it is tried. So one that did not take an event and was long about it is slow: one
request to it is under way at a time, and a round waits for that for a moment only. What has no answer by then was not
taken now; its request goes on, and if it is taken, that is the answer when the relay sends the event again. The first
request that does not end like this makes the endpoint one like any other.

Failure window: a relay that dies meanwhile sends the event again, under the same id and the same key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from onefold._kernel.foreign_cancellations import cancel_until_ended
from onefold._kernel.messages import Confirm, NotSent
from onefold.errors import BrokerUnavailable

#: An endpoint that took so long to take nothing is slow.
SLOW_S: Final = 1.0
#: How long a round waits for the answer of a slow endpoint: one that is well again mostly has it by then.
ROUND_WAIT_S: Final = 0.2


class SlowEndpoints:
    """The slow endpoints of one broker, by name."""

    def __init__(self, requests_max: int) -> None:
        self._requests_max = requests_max
        self._slow: set[str] = set()
        #: The message that each has been sent, and its request.
        self._pending: dict[str, tuple[str, asyncio.Task[Confirm]]] = {}
        #: The message that each has taken while no round waited for it.
        self._taken: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._slow

    def note(self, name: str, confirm: Confirm, took_s: float) -> None:
        """Record the end of one request."""
        if isinstance(confirm, BrokerUnavailable) and took_s >= SLOW_S:
            self._slow.add(name)
        else:
            self._slow.discard(name)

    def has_taken(self, name: str, message_id: str) -> bool:
        """Whether it took this message after its round; reading it resets it."""
        if self._taken.get(name) != message_id:
            return False
        del self._taken[name]
        return True

    async def send(self, name: str, message_id: str, post: Callable[[], Awaitable[Confirm]]) -> Confirm:
        """Send a request, and return its confirm if it comes soon."""
        if name not in self._pending and len(self._pending) < self._requests_max:
            self._pending[name] = (message_id, asyncio.create_task(self._finish(name, message_id, post)))
        pending_id, request = self._pending.get(name, (None, None))
        if request is None or pending_id != message_id:
            return self.unavailable(name)
        done, _ = await asyncio.wait((request,), timeout=ROUND_WAIT_S)
        if not done:
            return self.unavailable(name)
        self.has_taken(name, message_id)
        return request.result()

    def unavailable(self, name: str) -> NotSent:
        return NotSent(f"endpoint {name} has left requests unanswered and gets one event at a time")

    async def close(self) -> None:
        requests = [request for _, request in self._pending.values()]
        await cancel_until_ended(*requests)

    async def _finish(self, name: str, message_id: str, post: Callable[[], Awaitable[Confirm]]) -> Confirm:
        try:
            confirm = await post()
            if confirm is None:
                self._taken[name] = message_id
            return confirm
        finally:
            del self._pending[name]
