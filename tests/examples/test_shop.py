"""The shop keeps its promise under fire, and its ledger would notice if it did not."""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from examples.shop import demo, parcels
from examples.shop.clients import Customers, Intent
from examples.shop.demo import SERVICES, read_plan
from examples.shop.demo import run as run_demo
from examples.shop.ledger import Books, Entry, Order, faults, table
from examples.shop.parcels import ParcelBooks
from examples.shop.settings import STOCK
from onefold.testing.memory_broker import AsyncMemoryBroker
from onefold.testing.servers import ServerUnavailable
from onefold.testing.servers._restate import _find_program
from tests.examples.forked_services import fork_service
from tests.support.fork_server import ROOT
from tests.support.patience import PATIENCE_S
from tests.support.temporal_server import PrivateTemporal

DEMO = ("-m", "examples.shop.demo", "--seed", "7")


def run(*words: str, services: Mapping[str, str] = SERVICES) -> tuple[int, str]:
    """The demo in this process, its services in forked ones: its exit code and what it said."""
    said = StringIO()
    plan = replace(read_plan(["--seed", "7", *words]), services=services, start=fork_service)
    return run_demo(plan, Console(file=said, width=200)), said.getvalue()


# Under fire


def test_on_one_sqlite_file_nothing_is_lost_and_nothing_happens_twice() -> None:
    """As `make demo` runs it: a command, and an interpreter for each of its processes."""
    ran = subprocess.run(
        [sys.executable, *DEMO, "--orders", "25", "--seconds", "3", "--kills", "4"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=600,
        check=False,
    )
    assert "Nothing was lost, and nothing happened twice." in ran.stdout
    assert ran.returncode == 0


@pytest.fixture(params=["restate", *(pytest.param(name, marks=pytest.mark.soak) for name in ("dbos", "temporal"))])
def sagas(request: pytest.FixtureRequest) -> str:
    """What the warehouse's sagas run on. Where Restate is not installed it is DBOS: the rest is tested all the same."""
    if request.param == "temporal":
        server: PrivateTemporal = request.getfixturevalue("temporal")
        return f"temporal://{server.address}"
    return "dbos" if request.param == "restate" and not is_installed() else str(request.param)


def is_installed() -> bool:
    try:
        return _find_program().is_file()
    except ServerUnavailable:
        return False


def test_on_postgres_and_nats_nothing_is_lost_and_nothing_happens_twice(sagas: str) -> None:
    code, said = run("--orders", "25", "--seconds", "3", "--kills", "5", "--servers", "--sagas", sagas)
    assert "Nothing was lost, and nothing happened twice." in said
    assert code == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_it_leaves_no_process_behind(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, *DEMO, "--orders", "1000", "--seconds", "60"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}

    def heed_ctrl_c() -> None:  # whoever is started in the background ignores it, and so do its children
        signal.signal(signal.SIGINT, signal.default_int_handler)

    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c
    ) as shop:
        try:
            assert shop.stdout is not None
            assert "The shop opens" in shop.stdout.readline()
            children = Path(f"/proc/{shop.pid}/task/{shop.pid}/children").read_text().split()
            assert len(children) == 7
            shop.send_signal(number)
            shop.wait(PATIENCE_S)
        finally:
            shop.kill()
    assert shop.returncode != 0
    give_up_at = time.monotonic() + PATIENCE_S
    while any(running(pid) for pid in children):
        assert time.monotonic() < give_up_at, "they outlive it"


def running(pid: str) -> bool:
    """Whether there is such a process of the shop. Whoever has died and waits to be buried is gone."""
    try:
        return b"examples.shop" in Path("/proc", pid, "cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return False


# Controls: bugs that are planted in a service must be found and named


@pytest.fixture(autouse=True)
def all_faults_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a machine stands still, customers ask more often, and there are more than the demo shows."""
    monkeypatch.setattr(demo, "FAULTS_SHOWN_MAX", 1000)


def run_with(bug: dict[str, str]) -> tuple[int, str]:
    """The demo, with one of its services exchanged for another module."""
    return run("--orders", "15", "--seconds", "1", "--kills", "0", services={**SERVICES, **bug})


def test_control_a_new_key_for_every_attempt_charges_twice_and_the_ledger_says_so() -> None:
    code, said = run_with({"payments": "tests.examples.fresh_keys"})
    assert "was charged 2 times instead of 1" in said
    assert code == 1


def test_control_an_event_outside_of_the_transaction_charges_for_nothing_and_the_ledger_says_so() -> None:
    code, said = run_with({"orders": "tests.examples.split_write"})
    assert "was charged, but there is no such order" in said
    assert code == 1


# An outcome without an order


async def test_an_outcome_of_no_order_is_not_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORDERS_DATABASE", str(tmp_path / "shop.db"))
    monkeypatch.delitem(sys.modules, "examples.shop.orders", raising=False)
    orders = importlib.import_module("examples.shop.orders")
    async with orders.once.transaction() as tx:
        await tx.connection.execute(orders.TABLES[0])
    with pytest.raises(LookupError, match="there is no order o-1"):
        await AsyncMemoryBroker(orders.once).publish("order.shipped", {"order": "o-1"})
    await orders.once.close()


# The ledger itself

PAID = Order("o-1", "good", 1, "shipped", "c-1")
UNPAID = Order("o-2", "no money", 1, "declined", "c-2")
PAID_AT_LAST = Order("o-3", "good", 2, "shipped", "c-3")

BALANCED = Books(
    orders=[PAID, UNPAID, PAID_AT_LAST],
    captured=[Entry("o-1", "c-1"), Entry("o-3", "c-3")],
    declined=[Entry("o-2", "c-2"), Entry("o-3", "c-3")],
    charges=[Entry("o-1", "c-1"), Entry("o-3", "c-3")],
    shipments=[Entry("o-1", "c-1"), Entry("o-3", "c-3")],
    unpublished=0,
    sent_again=0,
)


def intents() -> list[Intent]:
    return [
        Intent(key=f"k-{n}", cart=f"o-{n}", correlation=f"c-{n}", card="good", amount=1, answers={b"an answer"})
        for n in (1, 2, 3)
    ]


def test_a_ledger_that_balances_has_no_faults() -> None:
    assert faults(intents(), BALANCED) == []


def test_an_abandoned_intent_may_have_an_order_or_none() -> None:
    abandoned = Intent(key="k-4", cart="o-4", correlation="c-4", card="good", amount=1, abandoned=True)
    assert faults([*intents(), abandoned], BALANCED) == []
    [_, *others] = intents()
    assert faults([replace(abandoned, correlation="c-1"), *others], BALANCED) == []


def test_the_ledger_says_how_many_of_the_intents_that_were_given_up_have_no_order() -> None:
    customers = Customers("http://127.0.0.1:1", count=0, seconds=0, seed=0)
    given_up = [replace(intents()[0], abandoned=True), replace(intents()[0], correlation="c-4", abandoned=True)]
    customers.intents = [*given_up, *intents()[1:]]
    warehouse = ParcelBooks(states={}, free=0, charges=Counter(), refunds=Counter())
    shown = table(customers, BALANCED, warehouse, Counter(), [])
    columns = [[str(cell).strip() for cell in column.cells] for column in shown.columns]
    counts = dict(zip(*columns, strict=True))
    assert (counts["given up without an answer"], counts["of these without an order"]) == ("2", "1")


UNBALANCED: dict[str, Callable[[Books], Books]] = {
    "intent k-1 was lost: there is no order": lambda b: replace(b, orders=b.orders[1:]),
    "intent k-1 was ordered 2 times": lambda b: replace(b, orders=[*b.orders, replace(PAID, id="o-9")]),
    "the correlation id c-9, which no": lambda b: replace(b, orders=[*b.orders, replace(PAID, correlation="c-9")]),
    "order o-1 is still 'placed'": lambda b: replace(b, orders=[replace(PAID, state="placed"), *b.orders[1:]]),
    "order o-1 was charged 2 times instead of 1": lambda b: replace(b, charges=[*b.charges, b.charges[0]]),
    "order o-1 was charged 0 times instead of 1": lambda b: replace(b, charges=b.charges[1:]),
    "order o-2 was charged 1 times instead of 0": lambda b: replace(b, charges=[*b.charges, Entry("o-2", "c-2")]),
    "order o-1 was captured 0 times instead of 1": lambda b: replace(b, captured=b.captured[1:]),
    "order o-3 was declined 0 times instead of 1": lambda b: replace(b, declined=b.declined[:1]),
    "order o-1 was shipped 2 times instead of 1": lambda b: replace(b, shipments=[*b.shipments, b.shipments[0]]),
    "order o-9 was shipped, but there is no": lambda b: replace(b, shipments=[*b.shipments, Entry("o-9", "c-1")]),
    "order o-3 was shipped under another correlation id": lambda b: replace(
        b, shipments=[b.shipments[0], Entry("o-3", "c-1")]
    ),
}


@pytest.mark.parametrize("fault", UNBALANCED)
def test_control_a_ledger_that_does_not_balance_names_the_fault(fault: str) -> None:
    assert any(fault in found for found in faults(intents(), UNBALANCED[fault](BALANCED)))


def test_control_two_answers_to_one_intent_and_none_are_faults() -> None:
    first, second, third = intents()
    first.answers.add(b"another answer")
    second.answers.clear()
    assert faults([first, second, third], BALANCED) == [
        "intent k-1 was given 2 different answers",
        "intent k-2 was never answered",
    ]


# The parcels: stock, money and parcels balance

WANTED = {"parcel-1": 1, "parcel-2": 3}
SENT = ParcelBooks(
    states={"parcel-1": "shipped", "parcel-2": "released"},
    free=STOCK - 1,
    charges=Counter({"parcel-1": 1, "parcel-2": 1}),
    refunds=Counter({"parcel-2": 1}),
)

UNBALANCED_PARCELS: dict[str, ParcelBooks] = {
    "parcel-2 was lost": replace(SENT, states={"parcel-1": "shipped"}),
    "parcel-1 is reserved, and not shipped": replace(SENT, states={**SENT.states, "parcel-1": "reserved"}),
    "items are free": replace(SENT, free=STOCK - 2),
    "parcel-1 was charged 2 times": replace(SENT, charges=Counter({"parcel-1": 2, "parcel-2": 1})),
    "parcel-2, released, was charged 1 times and refunded 0": replace(SENT, refunds=Counter()),
    "parcel-2 was charged 2 times and refunded 2": replace(
        SENT, charges=Counter({"parcel-1": 1, "parcel-2": 2}), refunds=Counter({"parcel-2": 2})
    ),
}


def test_parcels_that_balance_have_no_faults() -> None:
    assert parcels.faults(WANTED, SENT) == []
    assert SENT.drained


@pytest.mark.parametrize("fault", UNBALANCED_PARCELS)
def test_control_parcels_that_do_not_balance_are_named(fault: str) -> None:
    assert any(fault in found for found in parcels.faults(WANTED, UNBALANCED_PARCELS[fault]))


def test_the_customers_of_a_seed_are_always_the_same() -> None:
    def customers(seed: int) -> list[Intent]:
        return Customers("http://nowhere", count=10, seconds=1, seed=seed).intents

    assert customers(7) == customers(7) != customers(8)
