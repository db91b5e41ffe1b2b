"""An HTTP call on its way through its attempts, as a flow: the same lines for every HTTP client, threads and asyncio.

Failure windows. The journal has the key before the first byte leaves, so whoever dies at any later moment finds it and
sends the same one. It is marked resolved after the answer; who dies in between sends the request again, and the server
replays. Nothing is resolved by an answer that may still change (a 503, a key in flight) or by none.

The first attempt may be made outside of the flow: `begin_first`, then `succeeded`, and `finish` only where there is
more to do. Nearly all calls need no second attempt, and a flow costs more than all that is decided about them.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from hashlib import blake2b
from math import inf
from typing import Any, Final

from onefold._client.call_report import CallReport, Left, attach, attach_to_error, moment, retried_below
from onefold._client.context import Block, Moved, remember_move
from onefold._client.host_log import log_breaker, log_layers, log_retry, log_success
from onefold._client.journal_store import JournalStore
from onefold._client.retry_conditions import HttpAnswer, RetryIf, as_said, error_as_said
from onefold._client.wire import (
    KEY_HEADER,
    Wire,
    fetches_token,
    fingerprint,
    meaning_of,
    place,
    target,
)
from onefold._kernel import deadlines
from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Call, Flow, Now, Sleep
from onefold._kernel.ids import new_id
from onefold._kernel.telemetry import AttemptEnded, BreakerMoved, CallEnded, Listener, RetryPlanned, tell
from onefold._policy.attempts import Attempts, Host
from onefold._policy.outcome import Answered
from onefold._policy.retry import Reason, RetryAfter, Stop
from onefold.errors import CallNotMade, OnefoldError

#: Answers that send the client elsewhere with the same request, which the client then sends as another call.
_ELSEWHERE: Final = frozenset({307, 308})
#: The same, and those that do so with some methods and some clients.
_REDIRECTS: Final = frozenset({301, 302, 307, 308})
#: Answers that ask who is calling. The client knows, or finds out, and sends the same call again.
_CREDENTIALS_ASKED: Final = frozenset({401, 407})

_log = logging.getLogger("onefold.client")


class RetryFlow:
    """One call, from before its first attempt to after its last."""

    __slots__ = (
        "_attempts",
        "_began",
        "_host",
        "_listener",
        "_store",
        "_wire",
        "attempt_s",
        "block",
        "generates",
        "held",
        "key",
        "moved",
        "quoted",
        "retry_if",
        "tells_deadline",
    )

    def __init__(
        self,
        wire: Wire[Any],
        host: Host,
        attempts: Attempts,
        store: JournalStore,
        listener: Listener | None,
        now: float,
    ) -> None:
        self._wire = wire
        self._host = host
        self._attempts = attempts
        self._store = store
        self._listener = listener
        self._began = now
        self.attempt_s = inf
        self.block: Block | None = None
        self.moved: Moved | None = None
        self.generates = False
        #: The response of the last attempt, until the caller has it: who breaks the flow off has to free it.
        self.held: Any = None
        self.key: str | None = None
        self.quoted = False
        #: What the user says of answers and errors.
        self.retry_if: RetryIf | None = None
        self.tells_deadline = True

    @property
    def deadline_at(self) -> float:
        """On the monotonic clock."""
        return self._attempts.deadline_at

    @property
    def intent(self) -> str | None:
        """The name under which the journal has it, if it does."""
        return None if self.block is None else self.block.intent

    def name(self, key: str) -> None:
        """Send it under this key."""
        self.key = key
        self._wire.set_header(KEY_HEADER, f'"{key}"' if self.quoted else key)

    # --- the first attempt, outside of the flow ----------------------------------------------------------

    def begin_first(self) -> float | None:
        """How long the first attempt may take. None: the flow has to begin, with a name or with a refusal."""
        attempts = self._attempts
        if self.block is not None or self.moved is not None or attempts.begin(self._began) is not None:
            return None
        if self.tells_deadline:
            return self._told_deadline(self._began)
        left_s = attempts.deadline_at - self._began
        return left_s if left_s < self.attempt_s else self.attempt_s

    def succeeded(self, response: Any, now: float) -> bool:
        """Whether that was all. False: the flow finishes it."""
        status = self._wire.status(response)
        if status >= 300 and (status >= 400 or self.key is not None):
            return False
        if self.retry_if is not None:
            return False
        self._attempts.succeed(now)
        if self._listener is not None:
            self._tell_attempt(now, status=status, succeeded=True)
        if self._host.troubled:
            self._tell_breaker(now)
            log_success(self._host)
        if self._listener is not None:
            self._tell_end(None, succeeded=True)
        response.onefold_report = self._report(None, now)  # as `attach` does, without asking whether it can be done
        return True

    def excuse(self) -> None:
        """The caller broke off: the attempt says nothing about the host."""
        self._attempts.excuse()

    # --- the flow ----------------------------------------------------------------------------------------

    async def run(self) -> Any:
        """The response of the last attempt, or the error it raised."""
        try:
            now = self._began
            if self.block is not None or self.moved is not None:
                await self._take_name()
                now = await Now()
            return await self._finish(await self._attempt(now, None))
        finally:
            # Whoever breaks off, at whatever effect, leaves no attempt behind that the breaker waits for.
            self._attempts.excuse()

    async def finish(self, ended: Any) -> Any:
        """The same, where the first attempt has ended already: with a response, or with an error."""
        try:
            return await self._finish(ended)
        finally:
            self._attempts.excuse()

    async def _finish(self, ended: Any) -> Any:
        while True:
            self.held = None if isinstance(ended, Exception) else ended
            decision = await self._judged(ended, await Now())
            self.held = None
            if decision is None:
                if isinstance(ended, Exception):
                    raise ended
                return ended
            if not isinstance(ended, Exception):
                await Call(partial(self._wire.discard, ended))
            failure = type(ended).__name__ if isinstance(ended, Exception) else f"status {self._wire.status(ended)}"
            log_retry(self._host, failure, decision)
            if self._listener is not None:
                planned = (self._attempts.made, decision.wait_s, decision.throttled)
                tell(self._listener, RetryPlanned(self._host.name, self._wire.method, *planned))
            await Sleep(decision.wait_s)
            ended = await self._attempt(await Now(), ended)

    async def _attempt(self, now: float, last: Any) -> Any:
        """Send it: the response, or the error."""
        self._began = now
        stop = self._attempts.begin(now)
        if stop is not None:
            raise await self._refused(stop, now) from (last if isinstance(last, Exception) else None)
        try:
            return await Call(partial(self._wire.send, self._told_deadline(now)))
        except Exception as error:
            return error

    async def _judged(self, ended: Any, now: float) -> RetryAfter | None:
        """What comes next; None: the caller gets what the attempt ended with."""
        wire, attempts = self._wire, self._attempts
        if isinstance(ended, Exception):
            outcome = wire.unanswered(ended)
            if self.retry_if is not None:
                outcome = error_as_said(outcome, self.retry_if, ended)
            if outcome is None:
                raise ended
            decision = self._unless_given_up_below(ended, attempts.end(outcome, now))
            if self._listener is not None:
                self._tell_attempt(now, error=type(ended).__name__)
            self._tell_breaker(now)
            if isinstance(decision, Stop):
                await self._failed(decision, now, ended)
                return None
            return decision
        status = wire.status(ended)
        decision = self._unless_given_up_below(ended, attempts.end(self._meaning(ended, status), now))
        if self._listener is not None:
            self._tell_attempt(now, status=status, succeeded=status < 400)
        self._tell_breaker(now)
        if isinstance(decision, Stop):
            await self._answered(ended, status, None if decision.reason is Reason.FINAL else decision, now)
            return None
        return decision

    def _unless_given_up_below(self, ended: Any, decision: RetryAfter | Stop) -> RetryAfter | Stop:
        """Another layer that retries has used up its attempts for this one: they would multiply."""
        if isinstance(decision, Stop) or not retried_below(ended, self._began):
            return decision
        log_layers(self._host)
        return Stop(Reason.ATTEMPTS)

    def _told_deadline(self, now: float) -> float:
        left_s = self._attempts.deadline_at - now
        if left_s > self.attempt_s and not self._attempts.is_last:
            left_s = self.attempt_s
        if self.tells_deadline or self._attempts.made > 1:
            self._wire.set_header(deadlines.HEADER, deadlines.format_ms(self._wire.patience_s(left_s)))
        return left_s

    def _meaning(self, response: Any, status: int) -> Answered:
        wire, header = self._wire, partial(self._wire.answer_header, response)
        if status < 400:
            answered = Answered(status=status)
        else:
            answered = meaning_of(status, header, partial(wire.content, response))
        if self.retry_if is None:
            return answered
        seen = HttpAnswer(
            method=wire.method, address=wire.address(), status=status, header=header, body=wire.content(response)
        )
        return as_said(answered, self.retry_if, seen)

    async def _answered(self, response: Any, status: int, stop: Stop | None, now: float) -> None:
        """The caller gets this response."""
        if status in _REDIRECTS and self.key is not None:
            await self._remember_move(response, self.key)
        if self.intent is not None and status not in _ELSEWHERE:
            journal, until = self._store.journal, self._attempts.deadline_at
            if stop is not None:
                await self._noted(journal.leave(self.intent, f"{status}: {stop.reason.value}", until=until))
            elif status in _CREDENTIALS_ASKED:
                await self._noted(
                    journal.leave(self.intent, f"{status}: the server asks for other credentials", until=until)
                )
            elif status in self._host.policy.statuses:
                # No retry can help, as where a database was not migrated: what becomes of the call is still open.
                await self._noted(journal.leave(self.intent, f"{status}: {Reason.FINAL.value}", until=until))
            else:
                await self._noted(journal.resolve(self.intent, status, until=until))
        if stop is None and status < 500 and self._attempts.made == 1 and self._host.troubled:
            log_success(self._host)
        attach(Left(self._report(stop, now), now), response)
        self._tell_end(stop, succeeded=status < 400)

    async def _failed(self, stop: Stop, now: float, error: Exception) -> None:
        """The caller gets this error."""
        if self.intent is not None:
            reason = f"{type(error).__name__}: {stop.reason.value}"
            await self._noted(self._store.journal.leave(self.intent, reason, until=self._attempts.deadline_at))
        attach_to_error(self._report(stop, now)(), error, now)
        self._tell_end(stop, succeeded=False)

    async def _refused(self, stop: Stop, now: float) -> CallNotMade:
        again = " again" if self._attempts.made else ""
        error = self._wire.not_made(
            f"{self._wire.method} to {self._host.name} was not sent{again}: {stop.reason.value}"
        )
        await self._failed(stop, now, error)
        return error

    # --- the name ----------------------------------------------------------------------------------------

    async def _take_name(self) -> None:
        """The key that others have for this call: the block it is made in, the journal, the redirect it follows."""
        wire, before = self._wire, self.moved
        body = await Call(wire.body)
        if before is not None and before.body == _hashed(body):
            self.block = before.block
            self.name(before.key)
            return
        block = self.block
        if block is not None and not fetches_token(wire, body):
            asked = fingerprint(wire, body)
            block.used = True
            if block.intent is None:
                block.bind(asked, target(wire))
            else:
                named = await self._store.journal.claim(
                    block.intent, asked, target(wire), block.key, until=self._attempts.deadline_at
                )
                block.key = named.key
            # An SDK may have set a key of its own, another one for each of its attempts: this one is the call's.
            self.name(block.key)
            return
        self.block = None
        if self.key is None and self.generates:
            self.name(new_id(wall_ms()))
        self._attempts.has_key = self.key is not None

    async def _remember_move(self, response: Any, key: str) -> None:
        wire = self._wire
        if (location := wire.answer_header(response, "Location")) is not None and wire.replayable():
            body = _hashed(await Call(wire.body))
            remember_move(Moved(place(wire.address(), location), wire.method, body, key, self.block))

    async def _noted(self, note: Flow[None]) -> None:
        """What cannot be noted costs at most a replay: it must not cost the caller his answer."""
        try:
            await note
        except OnefoldError:
            _log.warning("intent %r: how its call ended could not be noted", self.intent, exc_info=True)

    # --- what is told ------------------------------------------------------------------------------------

    def _report(self, stop: Stop | None, now: float) -> partial[CallReport]:
        """How it went. Not a method that would be asked later: the course knows the request and what it came through,
        and a response must not hold on to them."""
        known = partial(CallReport, attempts=self._attempts.made, key=self.key, intent=self.intent)
        if stop is None:
            return known
        return partial(known, reason=stop.reason, retry_at=moment(stop.retry_at, now, time.time()))

    def _tell_attempt(
        self, now: float, *, status: int | None = None, error: str | None = None, succeeded: bool = False
    ) -> None:
        name, elapsed_s = self._host.name, now - self._began
        made = self._attempts.made
        tell(self._listener, AttemptEnded(name, self._wire.method, made, elapsed_s, status, error, succeeded))

    def _tell_breaker(self, now: float) -> None:
        if (state := log_breaker(self._host, now)) is not None:
            tell(self._listener, BreakerMoved(self._host.name, state))

    def _tell_end(self, stop: Stop | None, *, succeeded: bool) -> None:
        reason = None if stop is None else stop.reason.name.lower()
        ended = CallEnded(self._host.name, self._wire.method, self._attempts.made, succeeded, reason)
        tell(self._listener, ended)


def _hashed(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()
