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
from typing import Any, Final

from onefold._kernel import deadlines
from onefold._kernel.effects import Call, Flow, Now, Sleep
from onefold._kernel.events import AttemptEnded, BreakerMoved, CallEnded, Listener, RetryPlanned, tell
from onefold.client.journal import intent_of
from onefold.client.report import CallReport, attach, attach_to_error, moment
from onefold.client.store import JournalStore
from onefold.client.wire import KEY_HEADER, Wire, fingerprint, target
from onefold.errors import CallNotMade, ConfigurationError, OnefoldError
from onefold.policy.attempts import Attempts, Host
from onefold.policy.outcome import Answered
from onefold.policy.retry import Reason, RetryAfter, Stop
from onefold.policy.retry_after import retry_after_s

#: Answers that send the client elsewhere with the same request, which the client then sends as another call.
_ELSEWHERE: Final = frozenset({307, 308})
_CONFLICT: Final = 409

_log = logging.getLogger("onefold")


class Course:
    """One call, from before its first attempt to after its last."""

    __slots__ = (
        "_attempts",
        "_began",
        "_host",
        "_listener",
        "_store",
        "_wire",
        "intent",
        "key",
        "quoted",
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
        self.intent: str | None = None
        self.key: str | None = None
        self.quoted = False
        self.tells_deadline = True

    def name(self, key: str) -> None:
        """Send it under this key."""
        self.key = key
        self._wire.set_header(KEY_HEADER, f'"{key}"' if self.quoted else key)

    # --- the first attempt, outside of the flow ----------------------------------------------------------

    def begin_first(self) -> float | None:
        """How long the first attempt may take. None: the flow has to begin, with an intent or with a refusal."""
        attempts = self._attempts
        if self.intent is not None or attempts.begin(self._began) is not None:
            return None
        return self._told_deadline(self._began) if self.tells_deadline else attempts.deadline_at - self._began

    def succeeded(self, response: Any, now: float) -> bool:
        """Whether that was all. False: the flow finishes it."""
        status = self._wire.status(response)
        if status >= 400:
            return False
        self._attempts.succeed(now)
        if self._listener is not None:
            self._tell_attempt(now, status=status, succeeded=True)
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
            if self.intent is not None:
                await self._ask_journal(self.intent)
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
            decision = await self._judged(ended, await Now())
            if decision is None:
                if isinstance(ended, Exception):
                    raise ended
                return ended
            if not isinstance(ended, Exception):
                await Call(partial(self._wire.discard, ended))
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
            if outcome is None:
                raise ended
            decision = attempts.end(outcome, now)
            if self._listener is not None:
                self._tell_attempt(now, error=type(ended).__name__)
            if isinstance(decision, Stop):
                await self._failed(decision, now, ended)
                return None
            return decision
        status = wire.status(ended)
        decision = attempts.end(self._meaning(ended, status), now)
        if self._listener is not None:
            self._tell_attempt(now, status=status, succeeded=status < 400)
        if isinstance(decision, Stop):
            await self._answered(ended, status, None if decision.reason is Reason.FINAL else decision, now)
            return None
        return decision

    def _told_deadline(self, now: float) -> float:
        left_s = self._attempts.deadline_at - now
        if self.tells_deadline or self._attempts.made > 1:
            self._wire.set_header(deadlines.HEADER, deadlines.format_ms(self._wire.patience_s(left_s)))
        return left_s

    def _meaning(self, response: Any, status: int) -> Answered:
        if status < 400:
            return Answered(status=status)
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
        if self.intent is not None and status not in _ELSEWHERE:
            journal = self._store.journal
            if stop is None:
                await self._noted(journal.resolve(self.intent, status))
            else:
                await self._noted(journal.leave(self.intent, f"{status}: {stop.reason.value}"))
        attach(self._report(stop, now), response)
        self._tell_end(stop, succeeded=status < 400)

    async def _failed(self, stop: Stop, now: float, error: Exception) -> None:
        """The caller gets this error."""
        if self.intent is not None:
            reason = f"{type(error).__name__}: {stop.reason.value}"
            await self._noted(self._store.journal.leave(self.intent, reason))
        attach_to_error(self._report(stop, now)(), error)
        self._tell_end(stop, succeeded=False)

    async def _refused(self, stop: Stop, now: float) -> CallNotMade:
        again = " again" if self._attempts.made else ""
        error = self._wire.not_made(
            f"{self._wire.method} to {self._host.name} was not sent{again}: {stop.reason.value}"
        )
        await self._failed(stop, now, error)
        return error

    # --- the journal -------------------------------------------------------------------------------------

    async def _ask_journal(self, intent: str) -> None:
        """The key of the intent. It goes together with a key that was given only where that is the intent's own: where
        a redirect sends the call elsewhere."""
        wire, journal = self._wire, self._store.journal
        if self.key is None:
            named = await journal.claim(intent, fingerprint(wire, await Call(wire.body)), target(wire))
            self.name(named.key)
            return
        known = await intent_of(journal.dialect, intent)
        if known is None or self.key.strip('"') != known.key:
            raise ConfigurationError(
                f"{wire.method} {wire.address()} has the header {KEY_HEADER}: {self.key!r} and the intent {intent!r}: "
                "give one of them; an intent's key is made by its journal"
            )

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
        if (state := self._host.moved(now)) is not None:
            tell(self._listener, BreakerMoved(name, state))

    def _tell_end(self, stop: Stop | None, *, succeeded: bool) -> None:
        reason = None if stop is None else stop.reason.name.lower()
        ended = CallEnded(self._host.name, self._wire.method, self._attempts.made, succeeded, reason)
        tell(self._listener, ended)
