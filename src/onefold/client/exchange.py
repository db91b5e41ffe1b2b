"""What the calls of one retrying client share, and how each of them begins: with its key, deadline and attempts."""

from __future__ import annotations

from typing import Any

from onefold._kernel import deadlines
from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Now
from onefold._kernel.events import Listener
from onefold._kernel.ids import new_id
from onefold.client.context import current_intent
from onefold.client.course import Course
from onefold.client.store import JournalStore
from onefold.client.wire import KEY_HEADER, R, Wire, checked
from onefold.errors import BodyNotReplayable
from onefold.policy.attempts import Attempts, Host
from onefold.policy.hosts import Hosts
from onefold.policy.retry import IDEMPOTENT_METHODS


class Exchange:
    """The calls of one retrying client."""

    __slots__ = ("_hosts", "_listener", "_mint", "_quoted", "store")

    def __init__(
        self, *, hosts: Hosts[Host], store: JournalStore, listener: Listener | None, mint: bool, quoted: bool
    ) -> None:
        self._hosts = hosts
        self._listener = listener
        self._mint = mint
        self._quoted = quoted
        self.store = store

    async def run(self, wire: Wire[R]) -> R:
        """The response of the last attempt, or the error it raised."""
        response: R = await self.begin(wire, await Now()).run()
        return response

    def begin(self, wire: Wire[Any], now: float) -> Course:
        """A call that begins now. Nothing is sent, and no intent is claimed yet."""
        host = self._hosts.of(wire.host, now)
        options, intent = wire.options, current_intent()
        deadline_s = attempts_max = None
        if options:
            intent = options.get("intent") or intent
            deadline_s, attempts_max = options.get("deadline_s"), options.get("attempts_max")
            if deadline_s is not None or attempts_max is not None:
                checked(wire, "deadline_s", deadline_s, least=0)
                checked(wire, "attempts_max", attempts_max, least=1)
        idempotent = wire.method in IDEMPOTENT_METHODS
        # What is idempotent by itself needs no key, and nobody looks for one.
        key = None if idempotent and intent is None else wire.header(KEY_HEADER)
        keyed = key is not None or intent is not None or (self._mint and not idempotent)
        if (keyed or idempotent) and (attempts_max or host.policy.attempts_max) > 1 and not wire.replayable():
            raise BodyNotReplayable(
                f"the body of {wire.method} {wire.address()} can be sent only once, so the request cannot be retried: "
                "pass bytes, or say attempts_max=1 for this request"
            )
        until, inherited = now + (host.policy.deadline_s if deadline_s is None else deadline_s), deadlines.current()
        if inherited is not None and inherited < until:
            until = inherited
        attempts = Attempts(host, until, wire.method, keyed, attempts_max)
        course = Course(wire, host, attempts, self.store, self._listener, now)
        course.intent, course.key = intent, key
        # The deadline is told with every write, and by readers who set one. A reader who set none says nothing at
        # first: that header would be most of what the call costs.
        course.tells_deadline = not idempotent or deadline_s is not None or inherited is not None
        course.quoted = self._quoted
        if keyed and key is None and intent is None:
            course.name(new_id(wall_ms()))
        return course
