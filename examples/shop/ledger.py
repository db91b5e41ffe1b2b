"""The ledger: what the databases of the shop hold in the end, what is wrong with it, and what was absorbed."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from examples.shop.clients import Customers, Intent
from examples.shop.database import look
from examples.shop.parcels import ParcelBooks
from examples.shop.processes import Process


@dataclass(frozen=True, slots=True)
class Order:
    """A row of the orders service."""

    id: str
    card: str
    attempt: int
    state: str
    correlation: str


@dataclass(frozen=True, slots=True)
class Entry:
    """A payment, a charge or a shipment: the order it is for, and the correlation id that came with it."""

    order: str
    correlation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Everything that lasts."""

    orders: Sequence[Order]
    captured: Sequence[Entry]
    declined: Sequence[Entry]
    charges: Sequence[Entry]
    shipments: Sequence[Entry]
    unpublished: int
    """Events that wait in an outbox."""
    sent_again: int
    """Events that were at hand when a relay was killed, and that the next one sent again."""

    @property
    def drained(self) -> bool:
        return self.unpublished == 0 and all(order.state != "placed" for order in self.orders)


async def read(databases: Mapping[str, str]) -> Books:
    """Look into all the databases, by the names of their services."""

    async def entries(service: str, sql: str) -> list[Entry]:
        return [Entry(*row) for row in await look(databases[service], sql)]

    unpublished = sent_again = 0
    for database in {databases[service] for service in ("orders", "payments", "fulfilment")}:
        mark = "published_at" if database.startswith("postgresql://") else "published_at_ms"
        sql = f"SELECT count(*) - count({mark}), coalesce(sum(started), 0) FROM onefold_outbox"
        [(waiting, started)] = await look(database, sql)
        unpublished += waiting
        sent_again += started
    return Books(
        orders=[
            Order(*row)
            for row in await look(databases["orders"], "SELECT id, card, attempt, state, correlation FROM orders")
        ],
        captured=await entries("payments", "SELECT order_id, correlation FROM payments WHERE state = 'captured'"),
        declined=await entries("payments", "SELECT order_id, correlation FROM payments WHERE state = 'declined'"),
        charges=await entries(
            "processor", "SELECT order_id, correlation FROM charges WHERE correlation <> 'warehouse'"
        ),
        shipments=await entries("fulfilment", "SELECT order_id, correlation FROM shipments"),
        unpublished=unpublished,
        sent_again=sent_again,
    )


def faults(intents: Sequence[Intent], books: Books) -> list[str]:
    """What was lost, doubled or mixed up. Nothing, if every intent had its effect once."""
    return [*_wrong_orders(intents, books.orders), *_wrong_effects(books)]


def _wrong_orders(intents: Sequence[Intent], orders: Sequence[Order]) -> list[str]:
    found = []
    placed = Counter(order.correlation for order in orders)
    for intent in intents:
        times = placed.pop(intent.correlation, 0)
        if times > 1:
            found.append(f"intent {intent.key} was ordered {times} times")
        if times == 0 and not intent.abandoned:
            found.append(f"intent {intent.key} was lost: there is no order")
        if len(intent.answers) > 1:
            found.append(f"intent {intent.key} was given {len(intent.answers)} different answers")
        if not intent.answers and not intent.abandoned:
            found.append(f"intent {intent.key} was never answered")
    found += [f"an order has the correlation id {unknown}, which no customer sent" for unknown in placed]
    return found


def _wrong_effects(books: Books) -> list[str]:
    found = []
    effects = {
        "captured": _by_order(books.captured),
        "declined": _by_order(books.declined),
        "charged": _by_order(books.charges),
        "shipped": _by_order(books.shipments),
    }
    for order in books.orders:
        # Only a card that was declined is followed by another one.
        paid = int(order.card == "good")
        expected = {"captured": paid, "declined": order.attempt - paid, "charged": paid, "shipped": paid}
        if order.state != ("shipped" if paid else "declined"):
            found.append(f"order {order.id} is still {order.state!r}")
        for what, times in expected.items():
            seen = effects[what].pop(order.id, [])
            if len(seen) != times:
                found.append(f"order {order.id} was {what} {len(seen)} times instead of {times}")
            if any(correlation != order.correlation for correlation in seen):
                found.append(f"order {order.id} was {what} under another correlation id")
    for what, left in effects.items():
        found += [f"order {order} was {what}, but there is no such order" for order in left]
    return found


def _by_order(entries: Sequence[Entry]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for entry in entries:
        found[entry.order].append(entry.correlation)
    return found


def count_events(directory: Path) -> Counter[str]:
    """How often each process emitted each event: "payments Duplicate", "processor Claimed replay"."""
    counts: Counter[str] = Counter()
    for file in directory.glob("*.jsonl"):
        service = file.name.partition("-")[0]
        for line in file.read_text().splitlines():
            event = json.loads(line)
            counts[" ".join([service, event["event"], event.get("outcome", "")]).strip()] += 1
    return counts


def table(
    customers: Customers, books: Books, sent: ParcelBooks, events: Counter[str], processes: Sequence[Process]
) -> Table:
    """The ledger, to be printed."""
    services = ("orders", "payments", "fulfilment")
    answers = customers.counts
    shown = Table(title="The ledger")
    shown.add_column("what")
    shown.add_column("how many", justify="right")
    abandoned = [intent for intent in customers.intents if intent.abandoned]
    placed = {order.correlation for order in books.orders}
    sections = {
        "What there is": {
            "intents of customers": len(customers.intents),
            "  given up without an answer": len(abandoned),
            "    of these without an order": sum(intent.correlation not in placed for intent in abandoned),
            "orders": len(books.orders),
            "real charges at the processor": len(books.charges),
            "declined cards": len(books.declined),
            "  followed by another card": answers["other cards"],
            "shipments": len(books.shipments),
            "parcels by saga: shipped": sum(state == "shipped" for state in sent.states.values()),
            "  undone: released and refunded": sum(state == "released" for state in sent.states.values()),
        },
        "Duplicates absorbed": {
            "HTTP: answers replayed": answers["replayed"],
            "HTTP: 409, the first was in flight": answers["409"],
            "HTTP: without the key, found by the cart": answers["found by its cart"],
            "HTTP: 422, the key or the cart was for something else": answers["422"],
            "relays: events sent again": books.sent_again,
            **{f"inbox of {service}: duplicates": events[f"{service} Duplicate"] for service in services},
            "processor: charges replayed": events["processor Claimed replay"],
        },
        "Trouble": {
            "HTTP requests": answers["requests"],
            "  without an answer": answers["no answer"],
            "  answered 5xx": sum(count for status, count in answers.items() if status.startswith("5")),
            **{f"failed attempts of {service}": events[f"{service} Failed"] for service in services},
            **{f"kill -9 of {process.name}": process.kills for process in processes if process.kills},
        },
    }
    for title, rows in sections.items():
        shown.add_section()
        shown.add_row(title, "", style="bold")
        for what, count in rows.items():
            shown.add_row(f"  {what}", str(count))
    return shown
