"""The spans of a saga's steps: one for each attempt, at a step or at its compensation.

An engine may run them in other processes, days apart: they are found together by the hash of the saga's id, and with
what they called by the hash of the step's key, which the calls of a client have, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from onefold._kernel.key_hash import hash_key
from onefold._kernel.tracing import Attribute, Tracer


@contextmanager
def trace_attempt(tracer: Tracer, *, saga: str, saga_id: str, name: str, key: str, attempt: int) -> Iterator[None]:
    """A span around the function of a step. `name` is the step's in the journal."""
    attributes: dict[str, Attribute] = {
        "onefold.saga": saga, "onefold.saga.hash": hash_key(saga_id), "onefold.key.hash": hash_key(key),
        "onefold.step.name": name, "onefold.attempt": attempt,
    }  # fmt: skip
    span = tracer.begin_span(f"step {name}", "internal", attributes)
    try:
        with span.active():
            yield
        span.set("onefold.outcome", "done")
    except BaseException as error:
        span.set("onefold.outcome", "failed")
        span.fail(error)
        raise
    finally:
        span.end()
