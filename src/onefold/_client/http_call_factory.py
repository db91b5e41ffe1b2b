"""What the calls of one retrying client share, and how each of them begins: with its key, deadline and attempts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from onefold._client.call_options import OPTIONS, check_options
from onefold._client.call_trace import CallTrace
from onefold._client.context import (
    SAFE_METHODS,
    Redirect,
    current_options,
    pending_redirect,
    remember_redirect,
)
from onefold._client.http_call import HttpCall
from onefold._client.journal_store import JournalStore
from onefold._client.key_hosts import KeyHosts
from onefold._client.outgoing_request import KEY_HEADER, OutgoingRequest, R, normalize_url, target
from onefold._client.retry_conditions import RetryIf
from onefold._client.retry_loop import unwrap
from onefold._kernel import deadlines
from onefold._kernel.call_blocks import Block, current_block
from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Now
from onefold._kernel.ids import new_id
from onefold._kernel.telemetry import Listener
from onefold._kernel.tracing import tracer_of
from onefold._policy.attempts import Attempts, HostHealth
from onefold._policy.hosts import Hosts
from onefold._policy.retry import IDEMPOTENT_METHODS
from onefold.errors import BodyNotReplayable, ConfigurationError


class HttpCallFactory:
    """The calls of one retrying client."""

    __slots__ = ("_hosts", "_key_hosts", "_listener", "_quoted", "_remake", "_retry_if", "_tracer", "store")

    def __init__(
        self,
        *,
        hosts: Hosts[HostHealth],
        store: JournalStore,
        listener: Listener | None,
        key_hosts: KeyHosts,
        quoted: bool,
        retry_if: RetryIf | None = None,
        remake: Callable[[], HttpCallFactory] | None = None,
    ) -> None:
        self._hosts = hosts
        self._listener = listener
        self._tracer = tracer_of(listener)
        self._key_hosts = key_hosts
        self._quoted = quoted
        self._retry_if = retry_if
        self._remake = remake
        self.store = store

    def __reduce__(self) -> tuple[Any, ...]:
        """For pickle: the settings. What was learned about hosts, and open journals, belong to a process."""
        return _remake_factory, (self._remake,)

    async def run(self, request: OutgoingRequest[R]) -> R:
        """The response of the last attempt, or the error it raised."""
        call = self.begin(request, await Now())
        response: R = unwrap(await (call.run() if call.trace is None else call.trace.follow(call.run())))
        return response

    def begin(self, request: OutgoingRequest[Any], now: float) -> HttpCall:
        """A call that begins now. Nothing is sent, and no intent is claimed yet."""
        host = self._hosts.of(request.host, now)
        options, block = request.options, current_block()
        deadline_s = attempts_max = attempt_s = retry_if = None
        if (around := current_options()) is not None:
            options = {**around, **options}
        if not OPTIONS.isdisjoint(options):  # a client has some of its own among them
            if (intent := options.get("intent")) is not None:
                block = Block(intent)
            try:
                check_options(options)
            except ConfigurationError as error:
                raise ConfigurationError(f"{target(request)}: {error}") from None
            retry_if, attempts_max = options.get("retry_if"), options.get("attempts_max")
            deadline_s, attempt_s = options.get("deadline_s"), options.get("attempt_s")
            if options.get("stream"):
                request.streams = True
            if (hedge_s := options.get("hedge_s")) is not None:
                _hedge(request, host, hedge_s)
        idempotent = request.method in IDEMPOTENT_METHODS
        if block is not None and request.method in SAFE_METHODS:
            block = None
        # What is idempotent by itself needs no key, so none is looked for.
        key = None if idempotent and block is None else request.header(KEY_HEADER)
        generates = not idempotent and self._key_hosts.covers(request.host)
        keyed = generates or key is not None or block is not None
        again = (keyed or idempotent) and (attempts_max or host.policy.attempts_max) > 1
        if (again or block is not None) and not request.can_be_resent():
            why = (
                "so the request cannot be retried" if again else "so it cannot be compared with what its key stands for"
            )
            raise BodyNotReplayable(
                f"the body of {target(request)} can be sent only once, {why}: pass bytes, or set attempts_max=1 for "
                "this request and make it outside of onefold.call() and onefold.intent()"
            )
        until, inherited = now + (host.policy.deadline_s if deadline_s is None else deadline_s), deadlines.current()
        if inherited is not None and inherited < until:
            until = inherited
        attempts = Attempts(host, until, request.method, keyed, attempts_max)
        call = HttpCall(request, host, attempts, self.store, self._listener, now)
        if self._tracer is not None:
            call.trace = CallTrace(self._tracer, call)
        # The deadline is sent with every write, and with reads that set one. A read that set none sends nothing at
        # first: that header would be most of what the call costs.
        call.tells_deadline = not idempotent or deadline_s is not None or inherited is not None
        if attempt_s is not None:
            call.attempt_s = attempt_s
        elif again:
            call.attempt_s = host.policy.attempt_limit_s(deadline_s)
        call.retry_if = retry_if or self._retry_if
        call.quoted = self._quoted
        call.block, call.key = block, key
        if not idempotent or block is not None:
            self._name(call, request, generates)
        return call

    def _name(self, call: HttpCall, request: OutgoingRequest[Any], generates: bool) -> None:
        """Give it a key of its own, unless its block has one, or it follows a redirect and had one before."""
        call.generates = generates
        if (before := pending_redirect()) is not None:
            remember_redirect(None)
            # Its body is compared. One that can be sent once is no redirect's, and reading it would be its end.
            if _follows(call, before) and before.url == normalize_url(request.address()) and request.can_be_resent():
                call.redirect = before
        if generates and call.key is None and call.block is None and call.redirect is None:
            call.name(new_id(wall_ms()))


def _follows(call: HttpCall, before: Redirect) -> bool:
    """Whether a call may be the one that was sent elsewhere: it is in the same block, with the same key or none. A
    client that follows stays in its block; a later call elsewhere may well have the same address and body."""
    if before.method != call.request.method:
        return False
    block = before.block
    if call.block is None or block is None:
        return call.block is block and call.key in (None, before.key)
    return call.block is block or (block.intent is not None and call.intent == block.intent)


def _hedge(request: OutgoingRequest[Any], host: HostHealth, after_s: Any) -> None:
    """Only reads may be sent twice at once. Everything else is not, also where its block has `hedge_s`."""
    hedge: Any = getattr(request, "hedge", None)
    if hedge is None:
        raise ConfigurationError(
            f"hedge_s={after_s!r} of {target(request)}: this client cannot send a second attempt beside the first, "
            "only httpx.AsyncClient can. Around a coroutine function every client can be hedged: "
            "Retrying.calls(..., hedge_s=...)"
        )
    if request.method in SAFE_METHODS:
        hedge(after_s, host)


def _remake_factory(remake: Callable[[], HttpCallFactory]) -> HttpCallFactory:
    return remake()
