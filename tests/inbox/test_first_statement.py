"""A consumer does not look before it writes: what docs/answer-cache.md says of caches before the ledger rests on it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from onefold import Onefold, single_principal
from onefold._inbox.consumer import Consumer
from onefold._inbox.handling import Inbox
from onefold._inbox.stored_message import stored_from_delivery
from onefold._kernel.effects import Boundary
from onefold._kernel.messages import Delivery, Message
from tests.support.crash import Boundaries


def test_a_new_message_asks_the_ledger_nothing_before_its_insert(sqlite_path: Path) -> None:
    boundaries = Boundaries()
    once = Onefold(sqlite_path, principal=single_principal)
    real = once._database
    once._database = boundaries.around(real)
    seen: list[list[str]] = []
    for _ in range(2):
        boundaries.crossings.clear()
        with once.handling("billing", "m1") as tx:
            seen.append([crossing.verb for crossing in boundaries.crossings if crossing.edge == "before"])
        assert (tx is None) is (len(seen) == 2)
    assert seen == [
        ["acquire", "batch (begin as chosen)"],
        ["acquire", "batch (begin as chosen)", "batch (rollback)", "release"],
    ]
    real.close()
    once.close()


def test_a_transaction_is_opened_by_its_claim_and_one_without_a_claim_is_opened_for_what_follows() -> None:
    """Each statement is a round trip through an engine, and what stays open must be bounded in any case."""

    async def handle(message: Message) -> None: ...

    inbox = Inbox(Consumer(name="billing", topics=("order.placed",), handler=handle), "postgres", draw=lambda: 0.5)
    message = Message(id="m1", source="shop", topic="order.placed", data=b"{}")
    stored = stored_from_delivery(Delivery(data=b"{}", headers={}, message=message))
    flow: Any = inbox._open(stored)
    begin, claim = flow.send(None).argument
    assert begin is Boundary.BEGIN_AS_CHOSEN
    assert claim.values[-1] == "60000ms"
    assert "INSERT INTO onefold_inbox" in claim.sql
    assert "transaction_timeout" in claim.sql
    assert flow.send(0).argument == inbox.sql.opening(60_000), "it was not claimed"
    flow.close()
