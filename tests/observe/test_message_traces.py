"""The spans of messages: sent by a relay, processed by a consumer, tried again, redriven; in one trace."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Message, Transaction
from onefold._inbox.handling import Inbox
from onefold._inbox.redrive import Filter, redrive
from onefold._kernel.messages import read, write, write_structured
from tests.inbox.backends import Backend, message
from tests.inbox.conftest import backend, inbox_database, inbox_dsn
from tests.observe.traced import SeenSpan, Traced
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

__all__ = ["backend", "inbox_database", "inbox_dsn"]

TOPIC = "order.placed"
TRACE, CREATOR = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CAME_WITH = {"traceparent": f"00-{TRACE}-{CREATOR}-01", "correlation-id": "case-7"}


@pytest.fixture
def traced() -> Traced:
    return Traced()


class Consumers:
    """Consumers of a database whose handler fails for what is in `bad`."""

    def __init__(self, backend: Backend, traced: Traced) -> None:
        self._backend = backend
        self._traced = traced
        self.bad: set[str] = set()

    async def handle(self, message: Message) -> None:
        if message.id in self.bad:
            raise LookupError("secret-reason")

    def inbox(self, **settings: Any) -> Inbox:
        consumer = self._backend.consumer(self.handle, **settings)
        listener = self._traced.listener
        return Inbox(consumer, self._backend.dialect, draw=random.random, listener=listener, tracer=listener)


@pytest.fixture
def consumers(backend: Backend, traced: Traced) -> Consumers:
    return Consumers(backend, traced)


def outcomes(spans: Sequence[SeenSpan]) -> list[tuple[str, int]]:
    return [(span["onefold.outcome"], span["onefold.attempt"]) for span in spans]


async def test_all_attempts_at_a_message_are_in_the_trace_it_came_with(
    backend: Backend, consumers: Consumers, traced: Traced
) -> None:
    inbox = consumers.inbox(attempts=2)
    consumers.bad = {"m1"}
    await backend.deliver(inbox, message("m1", data=b"secret-data", headers=CAME_WITH))
    await backend.hours_pass()
    await backend.run_due(inbox)
    await backend.flow(redrive(backend.dialect, Filter(consumer="billing"), actor="secret-actor"))
    await backend.hours_pass()
    consumers.bad = set()
    await backend.run_due(inbox)
    await backend.deliver(inbox, message("m1", headers=CAME_WITH))
    spans = traced.spans()
    assert outcomes(spans) == [("failed", 1), ("dead", 2), ("handled", 1), ("duplicate", 1)]
    assert [span["onefold.redriven"] for span in spans] == [None, None, True, None]
    assert [span.failed for span in spans] == [True, True, False, False]
    assert spans[0]["error.type"] == "LookupError"
    assert {(span.name, span.kind, span.trace, span.parent) for span in spans} == {
        ("process order.placed", "consumer", TRACE, CREATOR)
    }
    assert {span.links for span in spans} == {((TRACE, CREATOR),)}
    assert {span["messaging.message.id"] for span in spans} == {"m1"}
    assert {span["messaging.consumer.group.name"] for span in spans} == {"billing"}
    assert {span["onefold.correlation_id"] for span in spans} == {"case-7"}
    assert "secret" not in repr(spans)


async def test_a_message_without_a_trace_begins_one(backend: Backend, consumers: Consumers, traced: Traced) -> None:
    for headers in ({}, {"traceparent": "garbage"}, {"traceparent": "0" * 9999}):
        await backend.deliver(consumers.inbox(), message(f"m{len(str(headers))}", headers=headers))
    assert len({span.trace for span in traced.spans()}) == 3
    assert {(span.parent, span.links) for span in traced.spans()} == {(None, ())}


def test_the_tracing_extension_of_cloudevents_is_read_and_written() -> None:
    foreign = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-traceparent": "x", "ce-tracestate": "y"}
    assert read(foreign, b"").headers == {"traceparent": "x", "tracestate": "y"}
    assert read({**foreign, "traceparent": "transport"}, b"").headers["traceparent"] == "transport"
    ours = message("m1", headers=CAME_WITH)
    assert read(write(ours), ours.data) == ours
    headers, body = write_structured(ours)
    assert read(headers, body) == ours
    assert read({"content-type": headers["content-type"]}, body).headers["traceparent"] == CAME_WITH["traceparent"]


@asynccontextmanager
async def working(work: Callable[[asyncio.Event], Coroutine[Any, Any, None]]) -> AsyncIterator[None]:
    """A relay, or consumers, for as long as the block lasts."""
    stop = asyncio.Event()
    task = asyncio.create_task(work(stop))
    try:
        yield
    finally:
        stop.set()
        await asyncio.wait_for(task, PATIENCE_S)


async def test_an_event_is_sent_and_processed_in_the_trace_that_published_it(sqlite_path: Path, traced: Traced) -> None:
    once = AsyncOnefold(sqlite_path, source="shop", listener=traced.listener)

    @once.consumer("stock", topic="placed")
    async def take(message: Message, tx: Transaction[Any]) -> None:
        await tx.publish("taken", {"id": message.id})

    tracer = traced.provider.get_tracer("application")
    async with once.transaction() as tx:
        with tracer.start_as_current_span("checkout"):
            await tx.publish("placed", {"order": 1}, key="secret-key")

    # What is started inside of a span for the life of the process has no part in it.
    with tracer.start_as_current_span("start-up"):
        async with working(once.relay):
            await until(lambda: len(traced.named("send placed")) > 0)  # in vain: it has no consumer yet
            async with working(once.consume):
                await until(lambda: len(traced.named("send taken")) > 0)
    await once.close()
    [outer] = traced.named("checkout")
    [published] = traced.named("publish placed")
    sent = traced.named("send placed")
    [processed] = traced.named("process placed")
    [caused] = traced.named("publish taken")
    assert published.parent == outer.id
    assert {(span.kind, span.parent, span.links) for span in sent} == {("client", published.id, (published.context,))}
    assert (sent[0].failed, sent[0]["onefold.attempt"], sent[0]["messaging.system"]) == (True, 1, "local")
    assert not sent[-1].failed
    assert (processed.kind, processed.parent, processed.links) == ("consumer", published.id, (published.context,))
    assert caused.parent == processed.id
    in_trace = [span for span in traced.spans() if span.trace == outer.trace]
    assert {span.name for span in traced.spans()} - {span.name for span in in_trace} == {"start-up"}
    assert "secret" not in repr(traced.spans())


async def test_a_batch_is_linked_to_each_of_its_messages(sqlite_path: Path, traced: Traced) -> None:
    once = AsyncOnefold(sqlite_path, source="shop", listener=traced.listener)
    sizes: list[int] = []

    @once.consumer("stock", topic="placed", batch=10)
    async def take(messages: list[Message]) -> None:
        sizes.append(len(messages))

    async with once.transaction() as tx:
        for number in range(6):
            await tx.publish("placed", {"order": number})
    async with working(once.relay), working(once.consume):
        await until(lambda: sum(sizes) == 6)
    await once.close()
    published = {span.context for span in traced.named("publish placed")}
    linked = [link for span in traced.named("process placed") for link in span.links]
    assert len(linked) == 6
    assert set(linked) == published
    for span in traced.named("process placed"):
        assert (span.parent is None) is (len(span.links) > 1)
        assert span["messaging.batch.message_count"] == (len(span.links) if len(span.links) > 1 else None)
