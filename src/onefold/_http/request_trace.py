"""The span of a request: from before its claim to its answer.

It is a child of the span that is active: that of the application's own instrumentation, where there is one. Else it is
the server's span itself, and its parent is what the request's headers say.

The record of a request has the context of the span that it ran in, so that a replay can link to it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Literal

from onefold._http.request import Request, completing_of, pick_carried_headers
from onefold._kernel.key_hash import hash_key
from onefold._kernel.telemetry.request_events import Outcome
from onefold._kernel.tracing import Attribute, Span, Tracer


class RequestTrace:
    """One request."""

    __slots__ = ("_block", "is_over", "span")

    def __init__(self, tracer: Tracer, request: Request, *, operation: str, route: str, key: str | None) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(request.headers)}
        attributes: dict[str, Attribute] = {"onefold.operation": operation}
        if key is not None:
            attributes["onefold.key.hash"] = hash_key(key)
        if (correlation_id := pick_carried_headers(request.headers).get("correlation-id")) is not None:
            attributes["onefold.correlation_id"] = correlation_id
        name = f"onefold {operation}"
        inside = tracer.is_inside()
        if not inside:
            name = operation
            scheme = request.source.get("scheme") or request.source.get("wsgi.url_scheme") or "http"
            attributes |= {"http.request.method": request.method, "http.route": route, "url.scheme": scheme}
        completing = completing_of(request.source) is not None
        if completing:
            attributes["onefold.completing"] = True
        # What is kept of a request that was left has the context of the attempt that left it.
        links = (headers,) if completing else ()
        self.span: Span = tracer.begin_span(
            name, "internal" if inside else "server", attributes, parent=headers, links=links
        )
        self._block: AbstractContextManager[object] | None = None
        self.is_over = False

    def enter(self) -> None:
        """What runs from here on, in this task or thread, is part of its span."""
        self._block = self.span.active()
        self._block.__enter__()

    def leave(self, error: BaseException | None, *, is_over: bool) -> None:
        """The application has returned, or raised. Where it has not answered, what becomes of its claim follows."""
        if self._block is not None:
            self._block.__exit__(None, None, None)
        if not self.is_over and error is not None:
            self.span.fail(error)
        if is_over or error is not None:
            self.end()

    def note_claim(self, outcome: Outcome) -> None:
        if not self.is_over:
            self.span.set("onefold.outcome", outcome)

    def note_end(self, end: Literal["stored", "released"], reason: str | None = None) -> None:
        """Note the outcome of its claim."""
        if not self.is_over:
            self.span.set("onefold.end", end)
            if reason is not None:
                self.span.set("onefold.reason", reason)

    def end(self, status: int | None = None) -> None:
        """It is answered with this status, or not at all. What follows the answer is part of the trace, and not of this
        span."""
        if self.is_over:
            return
        self.is_over = True
        if status is not None:
            self.span.set("http.response.status_code", status)
            if status >= 500:
                self.span.fail(str(status))
        self.span.end()
