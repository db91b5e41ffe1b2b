"""The sagas that every engine is run with. What they do is told by their input, and noted in `WORLD`.

Module-level functions only: an engine may look a step's function up by its name.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import httpx

from onefold.clients import retrying
from onefold.sagas import (
    Abort,
    Backoff,
    RetryPolicy,
    Saga,
    SagaDefinition,
    SignalTimedOut,
    StepFailed,
    forward_key,
    key,
    saga,
)

#: Quick, where an engine's pauses allow it.
QUICK = Backoff(transient_base_s=0.01, throttled_base_s=0.01, cap_s=0.02)
RETRY = RetryPolicy(attempts_max=3, backoff=QUICK)


@dataclass
class World:
    """What steps have done, in order, and what they are to do."""

    events: list[tuple[str, str]] = field(default_factory=list)
    gates: set[str] = field(default_factory=set)
    """Keys of slow steps that may end."""
    broken: set[str] = field(default_factory=set)
    """Keys whose steps fail until this is taken out."""

    def of(self, saga_id: str) -> list[str]:
        """What the steps of this saga have done."""
        return [action for action, at in self.events if at.startswith(f"{saga_id}:")]

    def keys(self, saga_id: str) -> list[str]:
        return [at for _, at in self.events if at.startswith(f"{saga_id}:")]

    def act(self, action: str, order: dict[str, Any]) -> None:
        """Do it, or fail as the order says: `{"fail": {"charge": 2}}` fails twice, `{"abort": ["charge"]}` aborts."""
        self.events.append((action, key()))
        if action in order.get("abort", ()):
            raise Abort(f"{action} is refused")
        if key() in self.broken:
            raise ConnectionError(f"{action} is away")
        done = Counter(self.events)[action, key()]
        if done <= order.get("fail", {}).get(action, 0):
            raise ConnectionError(f"{action} is away")


WORLD = World()


async def reserve(o: dict[str, Any]) -> str:
    WORLD.act("reserve", o)
    return f"reserved {o['item']}"


def release(o: dict[str, Any]) -> None:
    """Not async: it runs on a thread."""
    assert forward_key() + ":undo" == key()
    WORLD.act("release", o)


async def charge(o: dict[str, Any]) -> dict[str, Any]:
    WORLD.act("charge", o)
    return {"paid": o["item"]}


async def refund(o: dict[str, Any]) -> None:
    WORLD.act("refund", o)


def ship(o: dict[str, Any]) -> str:
    WORLD.act("ship", o)
    return "shipped"


async def unship(o: dict[str, Any]) -> None:
    WORLD.act("unship", o)


@saga("conformance-order", undo_retry=RETRY, undo_pause=QUICK)
async def order(s: Saga, o: dict[str, Any]) -> dict[str, Any]:
    """Three steps, each with its compensation."""
    reserved = await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    paid = await s.step("charge", charge, o, undo=refund, retry=RETRY)
    shipped = await s.step("ship", ship, o, undo=unship, retry=RETRY)
    return {"reserved": reserved, **paid, "shipped": shipped}


@saga("conformance-invoice", undo_retry=RETRY, undo_pause=QUICK)
async def invoice(s: Saga, o: dict[str, Any]) -> str:
    """Another saga with a step of the same name."""
    await s.step("charge", charge, o, undo=refund, retry=RETRY)
    return "invoiced"


@saga("conformance-patient", undo_retry=RETRY, undo_pause=QUICK)
async def patient(s: Saga, o: dict[str, Any]) -> Any:
    """Reserves, then waits for a signal or sleeps."""
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    if "sleep_s" in o:
        await s.sleep(o["sleep_s"])
    paid = await s.wait("paid", timeout_s=o.get("timeout_s")) if o.get("waits", True) else None
    await s.step("ship", ship, o, undo=unship, retry=RETRY)
    return paid


@saga("conformance-forgiving", undo_retry=RETRY, undo_pause=QUICK)
async def forgiving(s: Saga, o: dict[str, Any]) -> str:
    """Catches a failed step, and a time-out, and goes another way."""
    try:
        await s.step("charge", charge, o, undo=refund, retry=RETRY)
    except StepFailed:
        try:
            await s.wait("never", timeout_s=0.01)
        except SignalTimedOut:
            return str(await s.step("ship", ship, o, undo=unship, retry=RETRY))
    return "charged"


def unstorable(o: dict[str, Any]) -> object:
    WORLD.act("unstorable", o)
    return {"now": "stored"} if f"fixed {key()}" in WORLD.broken else object()


@saga("conformance-unstorable", undo_retry=RETRY, undo_pause=QUICK)
async def not_storable(s: Saga, o: dict[str, Any]) -> Any:
    """A step whose result is not JSON."""
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    return await s.step("odd", unstorable, o, undo=refund, retry=RETRY)


@saga("conformance-twice", undo_retry=RETRY, undo_pause=QUICK)
async def twice(s: Saga, o: dict[str, Any]) -> None:
    """Two steps under one name, until it is repaired."""
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    await s.step("charge" if f"fixed {s.id}" in WORLD.broken else "reserve", charge, o, undo=refund, retry=RETRY)


@saga("conformance-mistaken", undo_retry=RETRY, undo_pause=QUICK)
async def mistaken(s: Saga, o: dict[str, Any]) -> str:
    """A mistake in the saga's own code, until it is repaired. It catches what it can, which must not matter."""
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    if f"fixed {s.id}" not in WORLD.broken:
        raise KeyError("a mistake")
    return "repaired"


async def charge_slowly(o: dict[str, Any]) -> str:
    """Until its gate is open."""
    WORLD.act("charge", o)
    while True:
        if key() in WORLD.gates:
            break
        await asyncio.sleep(0.01)
    WORLD.act("charged", o)
    return "charged"


@saga("conformance-slow", undo_retry=RETRY, undo_pause=QUICK)
async def slow(s: Saga, o: dict[str, Any]) -> str:
    """A step that takes its time."""
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    await s.step("charge", charge_slowly, o, undo=refund, retry=RETRY)
    return str(await s.step("ship", ship, o, undo=unship, retry=RETRY))


@saga("conformance-listening", undo_retry=RETRY, undo_pause=QUICK)
async def listening(s: Saga, o: dict[str, Any]) -> list[Any]:
    """Takes two signals of one name, and looks for a third."""
    heard = [await s.wait("paid"), await s.wait("paid")]
    try:
        heard.append(await s.wait("paid", timeout_s=0.1))
    except SignalTimedOut:
        heard.append("no more")
    return heard


async def post_twice(o: dict[str, Any]) -> list[int]:
    """Through a retrying client, which sends the step's key by itself."""
    async with retrying(httpx.AsyncClient()) as client:
        return [(await client.post(o["url"], json={"amount": 1})).status_code for _ in range(2)]


@saga("conformance-calling", undo_retry=RETRY, undo_pause=QUICK)
async def calling(s: Saga, o: dict[str, Any]) -> Any:
    """A step that calls a server."""
    return await s.step("charge", post_twice, o, retry=RETRY)


@dataclass(frozen=True)
class Parcel:
    """Not JSON by itself."""

    weight: Decimal
    sent: date


def pack(parcel: Parcel, times: int) -> Parcel:
    return Parcel(weight=parcel.weight * times, sent=parcel.sent)


async def postpone(parcel: Parcel, by: timedelta) -> date:
    return parcel.sent + by


@saga("conformance-typed")
async def typed(s: Saga, parcel: Parcel) -> Parcel:
    """Input, arguments and results have types of their own."""
    packed: Parcel = await s.step("pack", pack, parcel, 2)
    return Parcel(weight=packed.weight, sent=await s.step("postpone", postpone, packed, timedelta(days=1)))


SAGAS: list[SagaDefinition[Any, Any]] = [
    order,
    invoice,
    patient,
    forgiving,
    not_storable,
    twice,
    mistaken,
    calling,
    slow,
    listening,
    typed,
]
