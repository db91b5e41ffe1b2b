"""The port of traces: what begins, links and ends spans. OpenTelemetry is behind it (`_observe/otel_traces.py`).

A tracer comes as one of the listeners: what has a listener has its tracer, and where there is none nothing is done but
to look whether it is None.

Invariant: a key is in no attribute but as its hash, and neither a principal nor a body is in any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, runtime_checkable

from onefold._kernel.telemetry import split_listeners

if TYPE_CHECKING:
    from onefold._kernel.telemetry import Listeners

Attribute: TypeAlias = str | int | float | bool
Attributes: TypeAlias = Mapping[str, Attribute]
SpanKind: TypeAlias = Literal["internal", "server", "client", "producer", "consumer"]

#: Headers by name, in lower case, among which a context may be. It came from outside: what cannot be read is ignored.
Carrier: TypeAlias = Mapping[str, str]


class Span(Protocol):
    """Something that is under way. It ends once."""

    def set(self, name: str, value: Attribute) -> None: ...

    def link(self, carrier: Carrier) -> None:
        """Link it to the span that this carrier names, if it names one."""
        ...

    def carrier(self) -> dict[str, str]:
        """Its context as events and records have it: `traceparent`, and `tracestate` where there is one."""
        ...

    def inject(self, set_header: Callable[[str, str], None]) -> None:
        """Write its context into the headers of an HTTP request, in the form that the process has chosen."""
        ...

    def active(self) -> AbstractContextManager[object]:
        """A block in which spans that begin are its children. It is left in the task or thread that entered it."""
        ...

    def fail(self, error: BaseException | str) -> None:
        """Mark the span as failed. Of an exception only the class is recorded: its text may hold anything."""
        ...

    def end(self) -> None: ...


@runtime_checkable
class Tracer(Protocol):
    """What begins spans."""

    def begin_span(
        self,
        name: str,
        kind: SpanKind = "internal",
        attributes: Attributes = ...,
        *,
        parent: Carrier | None = None,
        links: Iterable[Carrier] = (),
        inherits: bool = True,
    ) -> Span:
        """`parent` is for where no span is active. With `inherits` False it is the parent in any case, and without it
        the span has none: what works for as long as its process lives has no part in the span it was started in."""
        ...

    def is_inside(self) -> bool:
        """Whether a span is active here, ours or another's."""
        ...


def tracer_of(listener: Listeners | None) -> Tracer | None:
    """The tracer among the listeners, if there is one."""
    for each in split_listeners(listener):
        if isinstance(each, Tracer):
            return each
    return None
