"""An HTTP call: what the retry loop needs of a request of some HTTP client, and the key it is sent under.

Failure windows. The journal has the key before the first byte leaves, so a process that starts after a crash at any
later moment finds it and sends the same one. The intent is marked resolved after the answer; a crash in between sends
the request again, and the server replays. Nothing is resolved by an answer that may still change (a 503, a key in
flight) or by none.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from math import inf
from typing import Any, Final

from onefold._client.call_report import CallReport, LayerReport, attach, was_retried_below
from onefold._client.call_trace import CallTrace
from onefold._client.context import Redirect, remember_redirect
from onefold._client.host_log import log_layers, log_success
from onefold._client.journal_notes import note_end
from onefold._client.journal_store import JournalStore
from onefold._client.outgoing_request import (
    KEY_HEADER,
    OutgoingRequest,
    fetches_token,
    fingerprint,
    meaning_of,
    normalize_url,
    target,
)
from onefold._client.retry_conditions import HttpAnswer, RetryIf, apply_to_answer, apply_to_error
from onefold._client.retry_loop import Raised, RetryLoop
from onefold._kernel import deadlines
from onefold._kernel.call_blocks import Block
from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Call, Flow, Now
from onefold._kernel.ids import new_id
from onefold._kernel.telemetry import Listener
from onefold._policy.attempts import Attempts, HostHealth
from onefold._policy.outcome import Answered, Outcome
from onefold._policy.retry import Reason, RetryAfter, Stop
from onefold.errors import CallNotMade

#: Answers that send the client elsewhere with the same request, which the client then sends as another call.
_ELSEWHERE: Final = frozenset({307, 308})
#: The same, and those that do so with some methods and some clients.
_REDIRECTS: Final = frozenset({301, 302, 307, 308})
#: Answers that require credentials. The client adds them and sends the same call again.
_CREDENTIALS_MISSING: Final = frozenset({401, 407})


class HttpCall(RetryLoop):
    """One request, from before its first attempt to after its last."""

    __slots__ = (
        "_store",
        "attempt_s",
        "block",
        "generates",
        "held",
        "key",
        "quoted",
        "redirect",
        "request",
        "retry_if",
        "tells_deadline",
        "trace",
    )

    # Set by its factory.
    block: Block | None
    key: str | None
    quoted: bool
    retry_if: RetryIf | None
    """The user's judgement of answers and errors."""
    tells_deadline: bool

    def __init__(
        self,
        request: OutgoingRequest[Any],
        host: HostHealth,
        attempts: Attempts,
        store: JournalStore,
        listener: Listener | None,
        now: float,
    ) -> None:
        # As RetryLoop.__init__ does: every request would pay for another call.
        self._host = host
        self._attempts = attempts
        self._listener = listener
        self._began = now
        self._method = request.method
        self.request = request
        self._store = store
        self.attempt_s = inf
        self.redirect: Redirect | None = None
        self.generates = False
        #: Its spans, where traces are made.
        self.trace: CallTrace | None = None
        #: The response of the last attempt, until the caller has it: what breaks the flow off has to free it.
        self.held: Any = None

    @property
    def intent(self) -> str | None:
        """The name under which the journal has it, if it does."""
        return None if self.block is None else self.block.intent

    @property
    def attempts_made(self) -> int:
        return self._attempts.made

    def name(self, key: str) -> None:
        """Send it under this key."""
        self.key = key
        self.request.set_header(KEY_HEADER, f'"{key}"' if self.quoted else key)

    # --- the first attempt, before the flow --------------------------------------------------------------

    def begin_first(self) -> float | None:
        """How long the first attempt may take. None: the flow has to begin, with a name or with a refusal."""
        attempts = self._attempts
        if self.block is not None or self.redirect is not None or attempts.begin(self._began) is not None:
            return None
        if self.tells_deadline:
            return self._send_deadline(self._began)
        left_s = attempts.deadline_at - self._began
        return left_s if left_s < self.attempt_s else self.attempt_s

    def succeeds(self, response: Any, now: float) -> bool:
        """Whether the first attempt was all; then it is counted. False: the flow finishes the call."""
        status = self.request.status(response)
        if status >= 300 and (status >= 400 or self.key is not None):
            return False
        if self.retry_if is not None:
            return False
        self._attempts.succeed(now)
        if self._listener is not None or self._host.troubled:
            self._emit_attempt(now, status, None, succeeded=True)
            if self._host.troubled:
                self._emit_breaker(now)
                log_success(self._host, now)
            self._emit_end(None, succeeded=True)
        response.onefold_report = self._report_so_far()  # as `attach` does, without checking whether it can be done
        return True

    def release_without_verdict(self) -> None:
        """The caller cancelled the call: the attempt says nothing about the host."""
        self._attempts.release_without_verdict()

    # --- in the flow -------------------------------------------------------------------------------------

    async def _prepare(self) -> float:
        if self.block is None and self.redirect is None:
            return self._began
        await self._find_key()
        return await Now()

    def _sender(self, now: float) -> Callable[[], Any]:
        send = partial(self.request.send, self._send_deadline(now))
        return send if self.trace is None else partial(self.trace.attempt, send)

    def _send_deadline(self, now: float) -> float:
        """The time that the attempt that begins now may take; its header has it for the server."""
        left_s = self._attempts.deadline_at - now
        if left_s > self.attempt_s and not self._attempts.is_last:
            left_s = self.attempt_s
        if self.tells_deadline or self._attempts.made > 1:
            self.request.set_header(deadlines.HEADER, deadlines.format_ms(self.request.patience_s(left_s)))
        return left_s

    async def _decide(self, ended: Any, now: float) -> RetryAfter | None:
        self.held = None if isinstance(ended, Raised) else ended
        decision = await super()._decide(ended, now)
        self.held = None
        return decision

    def _outcome(self, ended: Any, now: float) -> Outcome | None:
        request, retry_if = self.request, self.retry_if
        if isinstance(ended, Raised):
            outcome = request.classify_error(ended.error)
            return outcome if retry_if is None else apply_to_error(outcome, retry_if, ended.error)
        status, header = request.status(ended), partial(request.answer_header, ended)
        body = partial(request.content, ended)
        answered = Answered(status=status) if status < 400 else meaning_of(status, header, body)
        if retry_if is None:
            return answered
        received = HttpAnswer(
            method=request.method, address=request.address(), status=status, header=header, body=body()
        )
        return apply_to_answer(answered, retry_if, received)

    def _status(self, result: Any) -> int | None:
        return self.request.status(result)

    def _failure(self, result: Any) -> str:
        return f"status {self.request.status(result)}"

    def _not_made_error(self, again: str, why: str) -> CallNotMade:
        return self.request.not_made_error(f"{self._method} to {self._host.name} was not sent{again}: {why}")

    def _reconsider(self, ended: Any, decision: RetryAfter | Stop) -> RetryAfter | Stop:
        """Another layer that retries has used up its attempts for this one: they would multiply."""
        if isinstance(decision, Stop):
            return decision
        if not was_retried_below(ended.error if isinstance(ended, Raised) else ended, self._began):
            return decision
        log_layers(self._host)
        return Stop(Reason.ATTEMPTS)

    async def _drop(self, result: Any) -> None:
        await Call(partial(self.request.discard, result))

    async def _end(self, ended: Any, outcome: Outcome | None, stop: Stop, now: float) -> None:
        if isinstance(ended, Raised):
            if self.intent is not None:
                reason = f"{type(ended.error).__name__}: {stop.reason.value}"
                note = self._store.journal.leave(self.intent, reason, until=self._attempts.deadline_at)
                await note_end(self.intent, note)
            self._report_error(ended.error, stop, now)
            return
        status, given_up = self.request.status(ended), None if stop.reason is Reason.FINAL else stop
        if status in _REDIRECTS and self.key is not None:
            await self._remember_redirect(ended, self.key)
        if self.intent is not None and status not in _ELSEWHERE:
            await note_end(self.intent, self._intent_note(self.intent, status, given_up))
        if given_up is None and status < 500:
            self._log_success(now)
        attach(LayerReport(self._report(given_up, now), now), ended)
        self._emit_end(given_up, succeeded=status < 400)

    def _intent_note(self, intent: str, status: int, given_up: Stop | None) -> Flow[None]:
        """Note an answer in the journal: the intent is resolved by it, or stays open."""
        journal, until = self._store.journal, self._attempts.deadline_at
        if given_up is not None:
            return journal.leave(intent, f"{status}: {given_up.reason.value}", until=until)
        if status in _CREDENTIALS_MISSING:
            return journal.leave(intent, f"{status}: the server asks for other credentials", until=until)
        if status in self._host.policy.statuses:
            # No retry can help, as where a database was not migrated: what becomes of the call is still open.
            return journal.leave(intent, f"{status}: {Reason.FINAL.value}", until=until)
        return journal.resolve(intent, status, until=until)

    # --- the name ----------------------------------------------------------------------------------------

    async def _find_key(self) -> None:
        """Use the key that exists for this call: of its block, of the journal, of the redirect it follows."""
        request, before = self.request, self.redirect
        body = await Call(request.body)
        if before is not None and before.body == _hash(body):
            self.block = before.block
            self.name(before.key)
            return
        block = self.block
        if block is not None and not fetches_token(request, body):
            printed = fingerprint(request, body)
            block.used = True
            if block.intent is None:
                block.bind(printed, target(request))
            else:
                entry = await self._store.journal.claim(
                    block.intent, printed, target(request), block.key, until=self._attempts.deadline_at
                )
                block.key = entry.key
            # An SDK may have set a key of its own, another one for each of its attempts: this one is the call's.
            self.name(block.key)
            return
        self.block = None
        if self.key is None and self.generates:
            self.name(new_id(wall_ms()))
        self._attempts.has_key = self.key is not None

    async def _remember_redirect(self, response: Any, key: str) -> None:
        request = self.request
        if (location := request.answer_header(response, "Location")) is not None and request.can_be_resent():
            body = _hash(await Call(request.body))
            remember_redirect(
                Redirect(normalize_url(request.address(), location), request.method, body, key, self.block)
            )

    def _report_so_far(self) -> partial[CallReport]:
        intent = None if self.block is None else self.block.intent
        return partial(CallReport, attempts=self._attempts.made, key=self.key, intent=intent)


def _hash(body: bytes) -> bytes:
    return blake2b(body, digest_size=16).digest()
