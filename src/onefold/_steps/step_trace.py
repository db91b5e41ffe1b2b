"""The spans of recorded steps, performed or answered from their record, and of a work that is not a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from onefold._kernel.effects import Flow
from onefold._kernel.key_hash import hash_key
from onefold._kernel.telemetry.request_events import StepKind
from onefold._kernel.tracing import Span, Tracer

if TYPE_CHECKING:
    from onefold._steps.work_attempt import WorkAttempt

T = TypeVar("T")


async def trace_step(tracer: Tracer, kind: StepKind, name: str, step: Flow[T]) -> T:
    """Perform a step in a span of its own."""
    span = _begin(tracer, kind, name)
    try:
        with span.active():
            value = await step
        span.set("onefold.outcome", "done")
        return value
    except BaseException as error:
        span.set("onefold.outcome", "failed")
        span.fail(error)
        raise
    finally:
        span.end()


def trace_recorded(tracer: Tracer, kind: StepKind, name: str) -> None:
    """A step was answered from its record."""
    span = _begin(tracer, kind, name)
    span.set("onefold.outcome", "recorded")
    span.end()


class WorkBlock:
    """A block of `once.work(...)`, for its span."""

    #: None: its work is not claimed (yet).
    attempt: WorkAttempt | None = None


@contextmanager
def trace_work(tracer: Tracer, name: str) -> Iterator[WorkBlock]:
    """A block of `once.work(...)`: its name is its intent. All blocks of a work have the same hash."""
    span = tracer.begin_span("onefold work", "internal", {"onefold.intent": name, "onefold.key.hash": hash_key(name)})
    block = WorkBlock()
    try:
        with span.active():
            yield block
    except BaseException as error:
        span.fail(error)
        raise
    finally:
        attempt = block.attempt
        span.set("onefold.outcome", "replay" if attempt is not None and attempt.was_done else "run")
        span.set("onefold.end", "stored" if attempt is not None and attempt.is_over else "released")
        span.end()


def _begin(tracer: Tracer, kind: StepKind, name: str) -> Span:
    attributes = {"onefold.step.kind": kind, "onefold.step.name": name}
    return tracer.begin_span(kind if kind == "finish" else f"{kind} {name}", "internal", attributes)
