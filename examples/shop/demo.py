"""`make demo`: a shop of four services and a card processor, under fire.

Customers retry, duplicate, race and give up; the processor fails; and processes are killed with -9 and started again,
in the middle of what they do. Then the ledger is printed. It exits non-zero if anything was lost or happened twice.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from rich.console import Console

from examples.shop import ledger, parcels
from examples.shop.clients import Customers
from examples.shop.invitation import Invitation
from examples.shop.processes import Process, Processes, Start, free_url, start_process
from examples.shop.settings import API_KEY, LEASE_S

FIRE_S_MAX = 180.0
FAULTS_SHOWN_MAX = 20
DRAIN_S_MAX = 120.0
HALF_S_MAX = 3.0

WAREHOUSE = "examples.shop.warehouse"

SERVICES = MappingProxyType(
    {
        "orders": "examples.shop.orders",
        "payments": "examples.shop.payments",
        "fulfilment": "examples.shop.fulfilment",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How large, how long, on what."""

    orders: int = 120
    seconds: float = 10.0
    """Over how long the customers come."""
    kills: int = 10
    faults: float = 0.2
    """The share of its requests that the processor fails."""
    servers: bool = False
    """Postgres and NATS instead of one SQLite file."""
    sagas: str = "dbos"
    """What runs the warehouse's sagas: dbos, in the process and in its database; restate, a private server of it; or
    the address of another (`saga_engines.py`)."""
    stay: bool = False
    seed: int = 0
    services: Mapping[str, str] = field(default_factory=lambda: SERVICES)
    """The modules of the services, by name."""
    start: Start = start_process


@dataclass(frozen=True, slots=True, kw_only=True)
class Shop:
    """Everything that runs, and where."""

    url: str
    warehouse_url: str
    databases: Mapping[str, str]
    events: Path
    processes: Processes
    killable: list[Process]
    invitation: Invitation | None = None
    """Where the console is, if the shop stays open."""


@contextlib.contextmanager
def opened(plan: Plan) -> Iterator[Shop]:
    """The shop, with all its processes; they end with the block."""
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onefold-shop-")))
        databases, broker, journal = _infrastructure(plan, directory, stack)
        databases["processor"] = str(directory / "processor.db")
        url, processor_url, warehouse_url = free_url(), free_url(), free_url()
        environment = {
            **{f"{name.upper()}_DATABASE": database for name, database in databases.items()},
            "SHOP_BROKER": broker,
            "SHOP_EVENTS": str(directory),
            "SAGAS_URL": _open_engine(plan, journal, stack),
            "PROCESSOR_URL": processor_url,
            "PROCESSOR_FAULTS": str(plan.faults),
            "PROCESSOR_SEED": str(plan.seed),
        }
        invitation = Invitation.to(url) if plan.stay else None
        if invitation is not None:
            environment |= invitation.environment
        processes = stack.enter_context(Processes(directory, environment, plan.start))
        processes.run(sys.executable, "-m", "examples.shop.migrate", *plan.services.values(), WAREHOUSE)
        # The processor is not ours to kill.
        processes.start_api("processor", "examples.shop.processor:app", processor_url)
        # First: what is killed first is killed most often.
        killable = [processes.start_api("warehouse", f"{WAREHOUSE}:app", warehouse_url)]
        # One database needs one relay. Published events are kept, so that one can count them afterwards.
        options = ["--lease", str(LEASE_S), "--keep-published", "3600"]
        for name in plan.services if plan.servers else ["orders"]:
            target = f"{plan.services[name]}:once"
            killable.append(processes.start_onefold(f"relay of {name}", "relay", target, *options))
        for name, module in plan.services.items():
            killable.append(processes.start_onefold(f"consumer of {name}", "consume", f"{module}:once"))
        killable.append(processes.start_api("orders API", f"{plan.services['orders']}:app", url))
        yield Shop(
            url=url,
            warehouse_url=warehouse_url,
            databases=databases,
            events=directory,
            processes=processes,
            killable=killable,
            invitation=invitation,
        )


def _infrastructure(plan: Plan, directory: Path, stack: contextlib.ExitStack) -> tuple[dict[str, str], str, str]:
    """The database of each service, the broker, and where DBOS keeps its sagas."""
    if not plan.servers:
        databases = dict.fromkeys(plan.services, str(directory / "shop.db"))
        return {**databases, "warehouse": str(directory / "warehouse.db")}, "local", f"sqlite:///{directory}/sagas.db"
    from onefold.testing.servers import PrivateNats, PrivatePostgres

    postgres = stack.enter_context(PrivatePostgres())
    nats = stack.enter_context(PrivateNats())
    databases = {service: postgres.fresh_database() for service in (*plan.services, "warehouse")}
    return databases, nats.url, postgres.fresh_database()


def _open_engine(plan: Plan, journal: str, stack: contextlib.ExitStack) -> str:
    """What the warehouse's sagas run on."""
    if plan.sagas != "restate":
        return journal if plan.sagas == "dbos" else plan.sagas
    from onefold.testing.servers import PrivateRestate

    server = stack.enter_context(PrivateRestate())
    ingress, admin, listen = (urlsplit(url).netloc for url in (server.ingress, server.admin, free_url()))
    return f"restate://{ingress}?admin={admin}&listen={listen}"


async def under_fire(plan: Plan, shop: Shop, customers: Customers, wanted: dict[str, int]) -> list[str]:
    """Customers come while processes are killed; then what is under way comes to its end. What did not go well."""
    await shop.processes.wait_until_up()
    if shop.invitation is not None:  # not before: the warehouse makes the tables of its sagas
        shop.invitation.open_console(shop.processes, plan.services["orders"], WAREHOUSE)
        await shop.processes.wait_until_up()
    killing = asyncio.create_task(_kill_now_and_then(plan, shop))
    try:
        async with asyncio.timeout(FIRE_S_MAX):
            coming = customers.come(), _order_parcels(plan, shop, wanted)
            await asyncio.gather(*coming)
            await killing
    except TimeoutError:
        return [f"the customers were not served within {FIRE_S_MAX:.0f} s"]
    finally:
        killing.cancel()
    give_up_at = time.monotonic() + DRAIN_S_MAX
    while not (await ledger.read(shop.databases)).drained or not (await parcels.read(shop.databases)).drained:
        if time.monotonic() > give_up_at:
            return [f"there is still something under way after {DRAIN_S_MAX:.0f} s"]
        await asyncio.sleep(0.2)
    # What was leased to killed processes is delivered once more by then, and must find that it has been handled.
    await asyncio.sleep(LEASE_S + 1.0)
    return []


async def _order_parcels(plan: Plan, shop: Shop, wanted: dict[str, int]) -> None:
    """`wanted` gets the amounts of the parcels that were ordered."""
    count = plan.orders // 4
    wanted |= await parcels.order_parcels(shop.warehouse_url, count, seconds=plan.seconds, seed=plan.seed)


async def _kill_now_and_then(plan: Plan, shop: Shop) -> None:
    chance = random.Random(plan.seed)
    for kill in range(plan.kills):
        await asyncio.sleep(chance.uniform(0.2, 0.8))
        victim = shop.killable[kill % len(shop.killable)]
        if victim.name == "warehouse":
            await _wait_for_half_a_saga(shop)
        victim.kill()
        victim.start()
        await shop.processes.wait_until_up()


async def _wait_for_half_a_saga(shop: Shop) -> None:
    """Until an item is reserved whose parcel is neither shipped nor given up; not for long, for all may be done."""
    give_up_at = time.monotonic() + HALF_S_MAX
    while time.monotonic() < give_up_at:
        if "reserved" in (await parcels.read(shop.databases)).states.values():
            return
        await asyncio.sleep(0.01)


def run(plan: Plan, console: Console) -> int:
    """The demonstration; its exit code is the verdict."""
    with opened(plan) as shop:
        console.print(f"The shop opens (seed {plan.seed}): {plan.orders} customers, {plan.kills} times kill -9 ...")
        if shop.invitation is not None:
            console.print(f"Watch it: {shop.invitation.address}", soft_wrap=True, markup=False)
        customers = Customers(shop.url, count=plan.orders, seconds=plan.seconds, seed=plan.seed)
        wanted: dict[str, int] = {}
        found = asyncio.run(under_fire(plan, shop, customers, wanted))
        books, sent = asyncio.run(ledger.read(shop.databases)), asyncio.run(parcels.read(shop.databases))
        found += shop.processes.failures() + ledger.faults(customers.intents, books) + parcels.faults(wanted, sent)
        console.print(ledger.table(customers, books, sent, ledger.count_events(shop.events), shop.killable))
        for fault in found[:FAULTS_SHOWN_MAX]:
            console.print(fault, style="red", soft_wrap=True, markup=False, highlight=False)
        console.print(
            f"The ledger does not balance: {len(found)} faults."
            if found
            else "Nothing was lost, and nothing happened twice.",
            style="red" if found else "green",
        )
        if shop.invitation is not None:
            shop.invitation.prepare()
            _stay(shop, shop.invitation, customers, console)
    return 1 if found else 0


def _stay(shop: Shop, invitation: Invitation, customers: Customers, console: Console) -> None:
    key = next(intent.key for intent in customers.intents if intent.answers)
    order = (
        f"curl -i {shop.url}/orders -H 'Authorization: Bearer {API_KEY}' -H 'Idempotency-Key: \"mine\"' "
        "-H 'Correlation-Id: 42' "
    )
    console.print(
        f"\nThe shop stays open.\n\n{invitation.write(key)}\n\nOrder by yourself, twice:\n\n"
        f'{order}--json \'{{"cart": "mine", "card": "good", "amount": 500}}\'\n\n'
        f"and then {shop.url}/orders/ followed by the id. The API: {shop.url}/docs; what it promises: "
        f"{shop.url}/onefold/specification\nThe databases:",
        soft_wrap=True,
        markup=False,
        highlight=False,
    )
    for service, database in shop.databases.items():
        console.print(f"  {service}: {database}", soft_wrap=True, markup=False)
    with contextlib.suppress(EOFError):
        console.input("Press Enter to close the shop. ")


def read_plan(words: Sequence[str] | None = None) -> Plan:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=argparse.SUPPRESS, help="how many customers come")
    parser.add_argument("--seconds", type=float, default=argparse.SUPPRESS, help="over how many seconds")
    parser.add_argument("--kills", type=int, default=argparse.SUPPRESS, help="how many processes are killed")
    parser.add_argument("--servers", action="store_true", help="Postgres and NATS instead of one SQLite file")
    parser.add_argument(
        "--sagas",
        default=argparse.SUPPRESS,
        help="the engine of the warehouse: dbos (the default), restate (a private server), temporal://HOST:PORT",
    )
    parser.add_argument("--stay", action="store_true", help="keep the shop open afterwards")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="the seed of an earlier run")
    return Plan(**vars(parser.parse_args(words)))


def main() -> int:
    """The command; its exit code is the verdict."""
    plan = read_plan()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))
    try:
        return run(plan, Console())
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
