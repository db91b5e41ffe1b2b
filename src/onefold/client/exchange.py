"""An HTTP call and its attempts, as a flow: the same lines for every HTTP client, on threads and on asyncio.

A client's adapter brings a `Wire`: its request, how to send it once, and what its answers and errors mean. All the rest
is here: the key, the journal, the deadline, when to try again, and what is told about it.

Failure windows. The journal has the key before the first byte leaves, so whoever dies at any later moment finds it and
sends the same one. It is marked resolved after the answer; who dies in between sends the request again, and the server
replays. Nothing is resolved by an answer that may still change (a 503, a key in flight) or by none.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from functools import cache, partial
from hashlib import blake2b
from typing import Any, Final, Protocol, TypeVar

from onefold._kernel import deadlines
from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Call, Flow, Now, Sleep
from onefold._kernel.events import AttemptEnded, BreakerMoved, CallEnded, Event, Listener, RetryPlanned, tell
from onefold._kernel.ids import new_id
from onefold.client.context import current_intent, refuse_nesting
from onefold.client.journal import Journal, intent_of
from onefold.client.report import CallReport, attach, attach_to_error, moment
from onefold.client.store import JournalStore
from onefold.errors import BodyNotReplayable, CallNotMade, ConfigurationError, OnefoldError
from onefold.policy.attempts import Attempts, Host
from onefold.policy.hosts import Hosts
from onefold.policy.outcome import Answered, Unanswered
from onefold.policy.retry import IDEMPOTENT_METHODS, Reason, Stop
from onefold.policy.retry_after import retry_after_s

KEY_HEADER: Final = "Idempotency-Key"

#: An answer of up to this length is read within its attempt, so that one that breaks off is retried like one that
#: never came. Longer ones, and those that do not say how long they are, are handed on while they arrive.
READ_WHOLE_MAX: Final = 1 << 20

#: Answers that send the client elsewhere with the same request, which the client then sends as another call.
_ELSEWHERE: Final = frozenset({307, 308})
_CONFLICT: Final = 409

R = TypeVar("R")
R_contra = TypeVar("R_contra", contravariant=True)

_log = logging.getLogger("onefold")


class Wire(Protocol[R_contra]):
    """One request of some HTTP client. What may wait returns an awaitable on asyncio, and the value on threads."""

    method: str
    host: str

    @property
    def options(self) -> Mapping[str, Any]:
        """What the caller said about this very request, where the client has a place for it: "intent", "deadline_s",
        "attempts_max". Empty where nothing was said."""
        ...

    def address(self) -> str:
        """The whole URL."""
        ...

    def header(self, name: str) -> str | None: ...
    def set_header(self, name: str, value: str) -> None: ...

    def replayable(self) -> bool:
        """The body can be sent more than once."""
        ...

    def body(self) -> Any:
        """The whole body, as bytes; it can still be sent afterwards."""
        ...

    def patience_s(self, left_s: float) -> float:
        """How long an attempt waits for its answer: what is left, or the client's own limit where that is shorter."""
        ...

    def send(self, seconds: float) -> Any:
        """One attempt, which takes no longer than this; the response."""
        ...

    def status(self, response: R_contra) -> int: ...
    def answer_header(self, response: R_contra, name: str) -> str | None: ...

    def problem(self, response: R_contra) -> str | None:
        """The `type` in the body of an application/problem+json response that `send` has read (see `reads_whole`)."""
        ...

    def discard(self, response: R_contra) -> Any:
        """Nobody will read it: free its connection."""
        ...

    def unanswered(self, error: Exception) -> Unanswered | None:
        """What an error of the network means; None for every other error, which is not retried."""
        ...

    def not_made(self, message: str) -> CallNotMade:
        """The error for an attempt that is not made, as one of the client's own: see `not_made_as`."""
        ...


class Exchange:
    """What the exchanges of one retrying client share."""

    __slots__ = ("_hosts", "_listener", "_mint", "_quoted", "heard", "store")

    def __init__(
        self, *, hosts: Hosts[Host], store: JournalStore, listener: Listener | None, mint: bool, quoted: bool
    ) -> None:
        self._hosts = hosts
        self.store = store
        self._listener = listener
        self.heard = listener is not None
        self._mint = mint
        self._quoted = quoted

    async def run(self, wire: Wire[R]) -> R:
        """The response of the last attempt, or the error it raised."""
        refuse_nesting(wire.host)
        now = await Now()
        host = self._hosts.of(wire.host, now)
        idempotent = wire.method in IDEMPOTENT_METHODS
        intent, deadline_s, attempts_max = current_intent(), None, None
        if wire.options:
            deadline_s, attempts_max = _checked(wire, "deadline_s", least=0), _checked(wire, "attempts_max", least=1)
            intent = wire.options.get("intent") or intent
        # What is idempotent by itself needs no key, and nobody looks for one.
        given = None if idempotent and intent is None else wire.header(KEY_HEADER)
        keyed = given is not None or intent is not None or (self._mint and not idempotent)
        if (keyed or idempotent) and (attempts_max or host.policy.attempts_max) > 1 and not wire.replayable():
            raise BodyNotReplayable(
                f"the body of {wire.method} {wire.address()} can be sent only once, so the request cannot be retried: "
                "pass bytes or a file that can be read again, or say attempts_max=1 for this request"
            )
        if keyed and given is None:
            given = new_id(wall_ms()) if intent is None else await self._journalled(wire, intent)
            wire.set_header(KEY_HEADER, f'"{given}"' if self._quoted else given)
        elif intent is not None:
            await self._same_call(wire, intent, given)
        until = now + (host.policy.deadline_s if deadline_s is None else deadline_s)
        attempts = Attempts(host, deadlines.shortened(until), wire.method, keyed, attempts_max)
        # The deadline is told with every write, and to readers who set one. A reader who set none says nothing at
        # first: that header would be most of what the call costs.
        told = not idempotent or deadline_s is not None or deadlines.current() is not None
        try:
            response: R = await _Course(self, wire, host, attempts, given, intent, told).run(now)
            return response
        finally:
            # Whoever breaks off, at whatever effect, leaves no attempt behind that the breaker waits for.
            attempts.excuse()

    async def _journalled(self, wire: Wire[R], intent: str) -> str:
        body = await Call(wire.body)
        named = await self.journal.claim(intent, fingerprint(wire, body), target(wire))
        return named.key

    async def _same_call(self, wire: Wire[R], intent: str, given: str | None) -> None:
        """An intent and a key go together only where the key is the intent's: a redirect sends the call elsewhere."""
        known = await intent_of(self.journal.dialect, intent)
        if given is None or known is None or given.strip('"') != known.key:
            raise ConfigurationError(
                f"{wire.method} {wire.address()} has the header {KEY_HEADER}: {given!r} and the intent {intent!r}: "
                "give one of them; an intent's key is made by its journal"
            )

    @property
    def journal(self) -> Journal:
        return self.store.journal

    def tell(self, event: Event) -> None:
        tell(self._listener, event)


class _Course:
    """One call on its way through its attempts."""

    __slots__ = ("_attempts", "_exchange", "_host", "_intent", "_key", "_tells_deadline", "_wire")

    def __init__(
        self,
        exchange: Exchange,
        wire: Wire[Any],
        host: Host,
        attempts: Attempts,
        key: str | None,
        intent: str | None,
        tells_deadline: bool,
    ) -> None:
        self._exchange = exchange
        self._wire = wire
        self._host = host
        self._attempts = attempts
        self._key = key
        self._intent = intent
        self._tells_deadline = tells_deadline

    async def run(self, now: float) -> Any:
        wire, attempts = self._wire, self._attempts
        last: Exception | None = None
        while True:
            stop = attempts.begin(now)
            if stop is not None:
                raise await self._refused(stop, now) from last
            began = now
            left_s = attempts.deadline_at - now
            if attempts.made > 1 or self._tells_deadline:
                wire.set_header(deadlines.HEADER, deadlines.format_ms(wire.patience_s(left_s)))
            try:
                response = await Call(partial(wire.send, left_s))
            except Exception as error:
                now = await Now()
                outcome = wire.unanswered(error)
                if outcome is None:
                    raise
                decision = attempts.end(outcome, now)
                if self._exchange.heard:
                    self._told_attempt(began, now, error=type(error).__name__)
                if isinstance(decision, Stop):
                    await self._failed(decision, now, error)
                    raise
                last = error
            else:
                now = await Now()
                status = wire.status(response)
                if status < 400:
                    attempts.succeed(now)
                    if self._exchange.heard:
                        self._told_attempt(began, now, status=status, succeeded=True)
                    await self._answered(response, status, None, now)
                    return response
                decision = attempts.end(self._meaning(response, status), now)
                if self._exchange.heard:
                    self._told_attempt(began, now, status=status)
                if isinstance(decision, Stop):
                    await self._answered(response, status, decision, now)
                    return response
                await Call(partial(wire.discard, response))
                last = None
            if self._exchange.heard:
                self._exchange.tell(
                    RetryPlanned(self._host.name, wire.method, attempts.made, decision.wait_s, decision.throttled)
                )
            await Sleep(decision.wait_s)
            now = await Now()

    def _meaning(self, response: Any, status: int) -> Answered:
        wire = self._wire
        return Answered(
            status=status,
            problem_type=wire.problem(response) if status == _CONFLICT else None,
            retry_after_s=retry_after_s(
                wire.answer_header(response, "Retry-After"),
                date=wire.answer_header(response, "Date"),
                wall_s=time.time(),
            ),
        )

    async def _answered(self, response: Any, status: int, stop: Stop | None, now: float) -> None:
        """The caller gets this response."""
        if stop is not None and stop.reason is Reason.FINAL:
            stop = None
        if self._intent is not None and status not in _ELSEWHERE:
            if stop is None:
                await self._noted(self._exchange.journal.resolve(self._intent, status))
            else:
                await self._noted(self._exchange.journal.leave(self._intent, f"{status}: {stop.reason.value}"))
        attach(partial(self._report, stop, now, time.time()), response)
        if self._exchange.heard:
            self._told_end(stop, succeeded=status < 400)

    async def _failed(self, stop: Stop, now: float, error: Exception) -> None:
        """The caller gets this error."""
        if self._intent is not None:
            reason = f"{type(error).__name__}: {stop.reason.value}"
            await self._noted(self._exchange.journal.leave(self._intent, reason))
        attach_to_error(self._report(stop, now, time.time()), error)
        if self._exchange.heard:
            self._told_end(stop, succeeded=False)

    async def _refused(self, stop: Stop, now: float) -> CallNotMade:
        made = self._attempts.made
        error = self._wire.not_made(
            f"{self._wire.method} to {self._host.name} was not sent{' again' if made else ''}: {stop.reason.value}"
        )
        await self._failed(stop, now, error)
        return error

    async def _noted(self, note: Flow[None]) -> None:
        """What cannot be noted costs at most a replay: it must not cost the caller his answer."""
        try:
            await note
        except OnefoldError:
            _log.warning("intent %r: how its call ended could not be noted", self._intent, exc_info=True)

    def _report(self, stop: Stop | None, now: float, wall_s: float) -> CallReport:
        return CallReport(
            attempts=self._attempts.made,
            key=self._key,
            intent=self._intent,
            reason=None if stop is None else stop.reason,
            retry_at=None if stop is None else moment(stop.retry_at, now, wall_s),
        )

    def _told_attempt(
        self, began: float, now: float, *, status: int | None = None, error: str | None = None, succeeded: bool = False
    ) -> None:
        exchange, name = self._exchange, self._host.name
        exchange.tell(AttemptEnded(name, self._wire.method, self._attempts.made, now - began, status, error, succeeded))
        if (state := self._host.moved(now)) is not None:
            exchange.tell(BreakerMoved(name, state))

    def _told_end(self, stop: Stop | None, *, succeeded: bool) -> None:
        reason = None if stop is None else stop.reason.name.lower()
        self._exchange.tell(CallEnded(self._host.name, self._wire.method, self._attempts.made, succeeded, reason))


def fingerprint(wire: Wire[Any], body: bytes) -> bytes:
    """What is asked: the same request has the same one, in every process. The boundary of a multipart body is drawn
    anew each time, and means nothing."""
    content_type = wire.header("Content-Type") or ""
    _, found, boundary = content_type.partition("boundary=")
    if found and (mark := boundary.partition(";")[0].strip().strip('"').encode()):
        body = body.replace(mark, b"")
    hashed = blake2b(digest_size=16)
    for part in (wire.method.encode(), wire.address().encode(), body):
        hashed.update(len(part).to_bytes(8, "big") + part)
    return hashed.digest()


def _checked(wire: Wire[Any], name: str, *, least: int) -> Any:
    """An option of this request, if it is a number that makes sense; refused before anything is sent."""
    value = wire.options.get(name)
    if value is None or (isinstance(value, int | float) and value >= least):
        return value
    raise ConfigurationError(f"{name}={value!r} of {wire.method} {wire.address()} must be a number, {least} or more")


def target(wire: Wire[Any]) -> str:
    """Where a request goes, for people: without the query, which may hold what nobody else should read."""
    return f"{wire.method} {wire.address().partition('?')[0].partition('#')[0]}"


def reads_whole(length: str | None, content_type: str | None) -> bool:
    """An answer with these headers is read within its attempt. A problem is, whether or not it says how long it is:
    whether to try again may depend on it."""
    if length is None:
        return is_problem(content_type)
    return length.isdecimal() and len(length) < 12 and int(length) <= READ_WHOLE_MAX


def is_problem(content_type: str | None) -> bool:
    """It is a problem document."""
    return (content_type or "").partition(";")[0].strip().lower() == "application/problem+json"


def problem_type(body: bytes) -> str | None:
    """The `type` of a problem document."""
    try:
        found = json.loads(body)
    except ValueError:
        return None
    named = found.get("type") if isinstance(found, dict) else None
    return named if isinstance(named, str) else None


@cache
def not_made_as(kind: type[Exception]) -> Any:
    """CallNotMade as an error of some HTTP client as well: who handles that client's errors handles this one."""
    return type("CallNotMade", (CallNotMade, kind), {"__module__": CallNotMade.__module__})
