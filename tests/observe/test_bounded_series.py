"""However many paths, methods, keys, topics and destinations strangers make up: the series stay few."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from onefold._inbox.handling import Inbox
from onefold._kernel.telemetry import join
from onefold._observe.recorder import OTHER, VALUES_MAX
from onefold.telemetry import Claimed, OutboxMeasured
from tests.inbox.backends import Backend, message
from tests.inbox.conftest import backend, inbox_database, inbox_dsn
from tests.observe.measured import Measured
from tests.observe.test_requests import PAY, Shop, pay, serving

__all__ = ["backend", "inbox_database", "inbox_dsn"]

FEW = 20
MANY = pytest.param(10_000, marks=pytest.mark.soak)


def series(measured: Measured) -> int:
    return len(measured.prometheus())


async def strike(shop: Shop, names: range) -> None:
    """What a hostile client sends: paths, methods and keys of its own making, and bodies that make the handler fail."""
    async with serving(shop) as client:
        for name in names:
            await pay(client, f"key-{name}", f"account-{name}")
            await pay(client, f"key-{name}", f"account-{name}", another="body")
            await pay(client, f"bad-{name}", f"account-{name}", do="raise", card=f"card-{name}")
            for method in ("POST", f"METHOD{name}"):
                await client.request(method, f"/made/up/{name}", headers={"Idempotency-Key": f"other-{name}"})
            await client.request(f"METHOD{name}", f"/payments/{name}", headers={"Idempotency-Key": f"method-{name}"})


@pytest.mark.parametrize("requests", [FEW, MANY])
async def test_requests_of_a_hostile_client_make_no_series(
    sqlite_path: Path, measured: Measured, requests: int
) -> None:
    shop = Shop(sqlite_path, measured)
    await strike(shop, range(2))
    before = series(measured)
    await strike(shop, range(2, requests))
    assert series(measured) == before
    assert measured.value("onefold_requests_total", operation=PAY, outcome="run") == 2 * requests, "all were seen"


async def test_a_label_that_a_client_could_choose_is_found(sqlite_path: Path, measured: Measured) -> None:
    """The control: what the test above counts grows where a path is a label."""
    tell = join(measured.listeners)
    assert tell is not None
    for number in range(2):
        tell(Claimed(f"POST /payments/account-{number}", "run"))
    before = series(measured)
    for number in range(2, FEW):
        tell(Claimed(f"POST /payments/account-{number}", "run"))
    assert series(measured) == before + FEW - 2


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
@pytest.mark.parametrize("messages", [VALUES_MAX + FEW, MANY])
async def test_topics_of_a_hostile_publisher_make_no_more_series_than_a_label_has_values(
    backend: Backend, measured: Measured, messages: int
) -> None:
    async def handle(_: object) -> None: ...

    inbox = Inbox(backend.consumer(handle), backend.dialect, draw=random.random, listener=join(measured.listeners))
    for number in range(messages):
        await backend.deliver(inbox, message(f"m{number}", topic=f"made-up-{number}"))
    counted = measured.values("onefold_messages_total")
    assert len(counted) == VALUES_MAX + 1
    assert counted["billing", "handled", OTHER] == messages - VALUES_MAX


def test_destinations_beyond_the_limit_are_one_series_which_has_their_sum(measured: Measured) -> None:
    """Endpoints of webhooks are as many as there are customers, and come and go."""
    tell = join(measured.listeners)
    assert tell is not None

    def waiting(*names: int) -> OutboxMeasured:
        return OutboxMeasured({f"endpoint-{name}": 1 for name in names}, 1.0, 0, 0, 0, 1)

    tell(waiting(*range(VALUES_MAX + 50)))
    assert measured.value("onefold_outbox_pending", destination=OTHER) == 50
    tell(waiting(0, *range(VALUES_MAX, VALUES_MAX + 20)))
    assert measured.value("onefold_outbox_pending", destination=OTHER) == 20
    assert measured.value("onefold_outbox_pending", destination="endpoint-0") == 1
    assert measured.value("onefold_outbox_pending", destination="endpoint-1") == 0
    tell(waiting())
    assert measured.value("onefold_outbox_pending", destination=OTHER) == 0
    assert len(measured.values("onefold_outbox_pending")) == VALUES_MAX + 1
