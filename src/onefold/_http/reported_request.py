"""The telemetry of a guarded request: events for the listener, and its span.

Without a listener a request pays for one look whether there is one, and no more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from onefold._http.request import Request, Response, pick_carried_headers
from onefold._http.route_policy import Route
from onefold._http.stored_response import read_span
from onefold._idempotency.model import Record
from onefold._kernel.clock import monotonic_s
from onefold._kernel.effects import Flow
from onefold._kernel.telemetry import emit
from onefold._kernel.telemetry.request_events import AuthenticationFailed, Outcome, Released, Settled, claimed_event
from onefold._kernel.tracing import Tracer
from onefold.errors import AuthenticationBroken, OnefoldError, StoreUnavailable, TooManyRequests

if TYPE_CHECKING:
    from onefold._http.request_guard import RequestGuard
    from onefold._http.request_trace import RequestTrace
    from onefold._kernel.log_context import LogField


def describe_request(request: Request, operation: str, key: str | None) -> dict[str, LogField]:
    """A request as log lines have it."""
    from onefold._kernel.key_hash import hash_key  # for lines that are written

    found: dict[str, LogField] = {"operation": operation}
    if key is not None:
        found["key_hash"] = hash_key(key)
    if (correlation_id := pick_carried_headers(request.headers).get("correlation-id")) is not None:
        found["correlation_id"] = correlation_id
    return found


class ReportedRequest:
    """What a `GuardedRequest` reports of itself."""

    _began: float
    _guard: RequestGuard
    _key: str | None
    _route: Route
    operation: str
    request: Request
    trace: RequestTrace | None
    """Its span, where traces are made."""

    @property
    def shared(self) -> RequestGuard:
        """What all requests of the application share."""
        return self._guard

    def admit(self, body: bytes) -> Flow[Response | None]:
        raise NotImplementedError

    async def admit_traced(self, body: bytes, tracer: Tracer) -> Response | None:
        """`admit`, in the span of the request. The span of one that does not run ends here."""
        from onefold._http.request_trace import RequestTrace  # most applications make no spans

        trace = RequestTrace(tracer, self.request, operation=self.operation, route=self._route.name, key=self._key)
        self.trace = trace
        try:
            with trace.span.active():
                refusal = await self.admit(body)
        except BaseException as error:
            trace.span.fail(error)
            trace.end()
            raise
        if refusal is not None:
            trace.end(refusal.status)
        return refusal

    def _context(self) -> dict[str, str]:
        """Of its span."""
        return {} if self.trace is None else self.trace.span.carrier()

    def log_fields(self) -> dict[str, LogField]:
        """On log lines that are written while it is under way."""
        return describe_request(self.request, self.operation, self._key)

    def _emit_claimed(self, outcome: Outcome) -> None:
        if self._key is not None and self._guard.listener is not None:
            emit(self._guard.listener, claimed_event(self.operation, outcome))
            if self.trace is not None:
                self.trace.note_claim(outcome)

    def _emit_refused(self, error: OnefoldError) -> None:
        if isinstance(error, TooManyRequests | StoreUnavailable):
            self._emit_claimed("limited" if isinstance(error, TooManyRequests) else "unavailable")
        elif isinstance(error, AuthenticationBroken):
            emit(self._guard.listener, AuthenticationFailed(self.operation))

    def _emit_turned_away(self, status: int) -> None:
        """`principal` or `authorize` answered with this status: 401 and 403 are what they are for."""
        if status >= 500:
            emit(self._guard.listener, AuthenticationFailed(self.operation))

    def _emit_released(self, reason: str) -> None:
        if self._guard.listener is not None:
            emit(self._guard.listener, Released(self.operation, reason, monotonic_s() - self._began))
            if self.trace is not None:
                self.trace.note_end("released", reason)

    def _emit_settled(self, status: int, body_kept: bool) -> None:
        if self._key is not None and self._guard.listener is not None:
            emit(self._guard.listener, Settled(self.operation, status, body_kept, monotonic_s() - self._began))
            if self.trace is not None:
                self.trace.note_end("stored")

    def _link_to(self, record: Record) -> None:
        """The request is answered with this record: its span is linked to the one that the record was made in."""
        if self.trace is not None:
            self.trace.span.link(read_span(record, self._guard.naming.reading))
