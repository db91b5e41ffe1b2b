"""Traces for OpenTelemetry, by its API alone: which SDK exports them, and where to, is the application's choice.

Contexts of HTTP requests are read and written in the form that the process has chosen (`OTEL_PROPAGATORS`). Those of
events and records are W3C's in any case: the process that reads them may have chosen another.

What comes from outside is data. A context that cannot be read is none, and a header that is longer than any that is
allowed is not looked at.

Invariant: what a sampler, a processor or a propagator raises stays here. The SDK lets it through, into the handler
whose span begins or ends; a request must not fail, and nothing be rolled back, because it could not be watched.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, Final, TypeVar, cast
from weakref import WeakKeyDictionary

from onefold._kernel.extras import missing_extra

try:
    from opentelemetry import trace
    from opentelemetry.context import Context, attach, detach
    from opentelemetry.propagate import extract, inject
    from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise missing_extra(error, "otel") from None

from onefold._kernel import tracing
from onefold._kernel.messages import pick_carried
from onefold._kernel.telemetry.client_events import RetryPlanned
from onefold._kernel.telemetry.every_event import Event
from onefold._kernel.tracing import Attribute, Attributes, Carrier

_log = logging.getLogger("onefold.telemetry")

M = TypeVar("M", bound=Callable[..., None])

#: Of a header that may hold a context. W3C allows baggage this much, which is the most of all.
_HEADER_CHARS_MAX: Final = 8192

_KINDS: Final[Mapping[tracing.SpanKind, SpanKind]] = {
    "internal": SpanKind.INTERNAL,
    "server": SpanKind.SERVER,
    "client": SpanKind.CLIENT,
    "producer": SpanKind.PRODUCER,
    "consumer": SpanKind.CONSUMER,
}

_W3C: Final = TraceContextTextMapPropagator()
_NOWHERE: Final = Context()
_NO_ATTRIBUTES: Final[Attributes] = {}


class SpanFailures:
    """What OpenTelemetry has raised: the first of a kind is logged, for it may come with every span."""

    __slots__ = ("_logged",)

    def __init__(self) -> None:
        self._logged: set[tuple[str, type[Exception]]] = set()

    def report(self, doing: str, error: Exception) -> None:
        if (doing, type(error)) not in self._logged:
            self._logged.add((doing, type(error)))
            _log.warning(
                "OpenTelemetry raised %r at a span's %s: the work goes on, and its span may be missing. Logged once",
                error,
                doing,
                exc_info=error,
            )


def _report_failures(method: M) -> M:
    """What the method raises is reported, and nothing else."""

    @functools.wraps(method)
    def guarded(span: OtelSpan, *args: Any) -> None:
        try:
            method(span, *args)
        except Exception as error:
            span.failures.report(method.__name__, error)

    return cast("M", guarded)


class OtelSpan:
    """A span of OpenTelemetry."""

    __slots__ = ("_span", "failures")

    def __init__(self, span: trace.Span, failures: SpanFailures) -> None:
        self._span = span
        self.failures = failures

    @_report_failures
    def set(self, name: str, value: Attribute) -> None:
        self._span.set_attribute(name, value)

    @_report_failures
    def link(self, carrier: Carrier) -> None:
        if (found := _read(carrier)) is not None:
            self._span.add_link(found)

    def carrier(self) -> dict[str, str]:
        written: dict[str, str] = {}
        _W3C.inject(written, trace.set_span_in_context(self._span, _NOWHERE))
        return pick_carried(written)

    def inject(self, set_header: Callable[[str, str], None]) -> None:
        written: dict[str, str] = {}
        try:
            inject(written, trace.set_span_in_context(self._span))
        except Exception as error:
            self.failures.report("inject", error)
        for name, value in written.items():
            set_header(name, value)

    @contextmanager
    def active(self) -> Iterator[None]:
        token = attach(trace.set_span_in_context(self._span))
        try:
            yield
        finally:
            detach(token)

    @_report_failures
    def fail(self, error: BaseException | str) -> None:
        text = error if isinstance(error, str) else type(error).__name__
        self._span.set_attribute("error.type", text)
        self._span.set_status(Status(StatusCode.ERROR))

    @_report_failures
    def end(self) -> None:
        self._span.end()


class OtelTraces:
    """A listener that is a tracer, too. One of them may serve any number of applications and clients in a process."""

    def __init__(self, provider: TracerProvider) -> None:
        self._tracer = provider.get_tracer("onefold")
        self._failures = SpanFailures()

    def __call__(self, event: Event) -> None:
        if isinstance(event, RetryPlanned):
            waits = {"onefold.wait_s": round(event.wait_s, 6), "onefold.throttled": event.throttled}
            trace.get_current_span().add_event("onefold.retry", waits)

    def begin_span(
        self,
        name: str,
        kind: tracing.SpanKind = "internal",
        attributes: Attributes = _NO_ATTRIBUTES,
        *,
        parent: Carrier | None = None,
        links: Iterable[Carrier] = (),
        inherits: bool = True,
    ) -> OtelSpan:
        context: Context | None = None  # what is active here
        if not inherits:
            context = _NOWHERE if parent is None else _extract_w3c(parent)
        elif parent is not None and not self.is_inside():
            context = _extract(parent)
        found = [link for each in links if (link := _read(each)) is not None]
        linked = [Link(each) for each in found] or None
        try:
            span = self._tracer.start_span(name, context, _KINDS[kind], dict(attributes), linked)
        except Exception as error:
            self._failures.report("begin", error)
            # Its parent's context flows on through it.
            span = trace.NonRecordingSpan(trace.get_current_span(context).get_span_context())
        return OtelSpan(span, self._failures)

    def is_inside(self) -> bool:
        return trace.get_current_span().get_span_context().is_valid


def _extract(carrier: Carrier) -> Context | None:
    """What the headers of a request say, in the form that the process has chosen. None: what is active here."""
    short = {name: value for name, value in carrier.items() if len(value) <= _HEADER_CHARS_MAX}
    try:
        return extract(short)
    except Exception:  # a propagator that trips over what came from outside must not fail the request
        return None


def _extract_w3c(carrier: Carrier) -> Context:
    return _W3C.extract(pick_carried(carrier), _NOWHERE)


def _read(carrier: Carrier) -> SpanContext | None:
    found = trace.get_current_span(_extract_w3c(carrier)).get_span_context()
    return found if found.is_valid else None


_tracers: Final[WeakKeyDictionary[TracerProvider, OtelTraces]] = WeakKeyDictionary()
_making: Final = Lock()


def otel_traces(provider: TracerProvider | None = None) -> OtelTraces:
    """A listener that makes spans of OpenTelemetry: `AsyncOnefold(..., listener=otel_traces())`, and the same for
    Retrying. They belong to the process's tracer provider, unless another is given; one provider has one listener."""
    given = trace.get_tracer_provider() if provider is None else provider
    with _making:
        if given not in _tracers:
            _tracers[given] = OtelTraces(given)
        return _tracers[given]
