"""The spans of messages that other queues bring, and of the steps of sagas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold
from onefold._kernel.messages import Delivery
from onefold._worker.task_queues import in_transaction
from onefold.sagas.dbos import Dbos
from onefold.telemetry import hash_key
from tests.observe.traced import Traced
from tests.saga.conformance.sagas import order
from tests.support.patience import PATIENCE_S

SENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def traced() -> Traced:
    return Traced()


async def test_a_message_by_other_means_is_processed_below_what_it_brought_along(
    sqlite_path: Path, traced: Traced
) -> None:
    once = AsyncOnefold(sqlite_path, source="shop", listener=traced.listener)
    delivery = Delivery(data=b"secret", headers={"traceparent": SENT, "card": "secret"})
    for _ in range(2):
        async with once.handling("mailer", "m-1", delivery=delivery) as tx:
            if tx is not None:
                await tx.publish("mail.sent", {})
    with pytest.raises(LookupError):
        async with once.handling("mailer", "m-2", delivery=delivery):
            raise LookupError("secret")
    await once.close()
    [first, again, failed] = traced.named("process mailer")
    outcomes = [span["onefold.outcome"] for span in (first, again, failed)]
    assert outcomes == ["handled", "duplicate", "failed"]
    assert [span["messaging.message.id"] for span in (first, again, failed)] == ["m-1", "m-1", "m-2"]
    assert (failed.failed, failed["error.type"], first.failed) == (True, "LookupError", False)
    assert {span.parent for span in (first, again, failed)} == {"b7ad6b7169203331"}
    [event] = traced.named("publish mail.sent")
    assert (event.trace, event.parent) == (first.trace, first.id)
    assert "secret" not in str(traced.spans())


def test_a_task_of_a_queue_is_processed_below_the_span_of_its_queue(sqlite_path: Path, traced: Traced) -> None:
    once = Onefold(sqlite_path, source="shop", listener=traced.listener)

    def ship(order_id: int, tx: Any) -> None:
        tx.publish("order.shipped", {"order": order_id})

    task = in_transaction(once, "fulfilment", ship, lambda *_: "task-1", lease_s=60, retention_s=3600)
    with traced.provider.get_tracer("queue").start_as_current_span("run ship") as of_queue:
        task(7)
    task(7)
    once.close()
    [first, again] = traced.named("process fulfilment")
    assert first.parent == f"{of_queue.get_span_context().span_id:016x}"
    assert (first["onefold.outcome"], again["onefold.outcome"]) == ("handled", "duplicate")
    [event] = traced.named("publish order.shipped")
    assert event.parent == first.id


async def test_each_attempt_at_a_step_of_a_saga_is_a_span_and_all_are_found_by_its_id(
    tmp_path: Path, traced: Traced
) -> None:
    async with Dbos(f"sqlite:///{tmp_path / 'sagas.db'}", sagas=[order], listener=traced.listener) as engine:
        await engine.start(order, "saga-of-a-customer", {"item": "book", "fail": {"charge": 1}})
        await engine.result("saga-of-a-customer", timeout_s=PATIENCE_S)
    found = traced.spans(onefold__saga__hash=hash_key("saga-of-a-customer"))
    charges = [span for span in found if span["onefold.step.name"] == "charge"]
    assert [(span["onefold.attempt"], span["onefold.outcome"]) for span in charges] == [(1, "failed"), (2, "done")]
    assert [span.failed for span in charges] == [True, False]
    assert len(found) == 4
    assert len({span["onefold.key.hash"] for span in charges}) == 1
    assert {span["onefold.saga"] for span in found} == {order.name}
    assert "saga-of-a-customer" not in str(traced.spans())
