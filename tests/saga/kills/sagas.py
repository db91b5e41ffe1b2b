"""The saga that is killed, and the program of its worker.

A worker starts the saga (again), waits for its end and prints it. The engine is made by the function that is named, so
that other engines may be killed in the same way.
"""

from __future__ import annotations

import asyncio
import importlib
import json
from pathlib import Path
from typing import Any

from onefold.sagas import Abort, Backoff, Compensated, RetryPolicy, Saga, SagaEngine, key, saga
from onefold.sagas.dbos import Dbos
from tests.saga.kills.world import Outside
from tests.support.patience import PATIENCE_S

QUICK = Backoff(transient_base_s=0.01, throttled_base_s=0.01, cap_s=0.02)
RETRY = RetryPolicy(attempts_max=3, backoff=QUICK)

OUTSIDE: list[Outside] = []


async def reserve(o: dict[str, Any]) -> str:
    OUTSIDE[0].act("reserve", key())
    return "reserved"


async def release(o: dict[str, Any]) -> None:
    OUTSIDE[0].act("release", key())


async def charge(o: dict[str, Any]) -> str:
    OUTSIDE[0].act("charge", key())
    return "charged"


def refund(o: dict[str, Any]) -> None:
    OUTSIDE[0].act("refund", key())


async def ship(o: dict[str, Any]) -> str:
    OUTSIDE[0].act("ship", key())
    if o["mode"] == "abort":
        raise Abort("the road is closed")
    return "shipped"


async def unship(o: dict[str, Any]) -> None:
    OUTSIDE[0].act("unship", key())


@saga("killed", undo_retry=RETRY, undo_pause=QUICK)
async def killed(s: Saga, o: dict[str, Any]) -> str:
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    await s.step("charge", charge, o, undo=refund, retry=RETRY)
    return str(await s.step("ship", ship, o, undo=unship, retry=RETRY))


def open_dbos(url: str) -> SagaEngine:
    return Dbos(url, sagas=[killed], takeover_s=0.2)


async def work(engine: Any, mode: str, saga_id: str) -> str:
    """A `peer` starts nothing, and waits for a saga of others."""
    async with engine:
        print("open", flush=True)
        if mode == "peer":
            async with asyncio.timeout(PATIENCE_S):
                while True:
                    if await engine.list():
                        break
                    await asyncio.sleep(0.05)
        else:
            await engine.start(killed, saga_id, {"mode": mode})
        try:
            return str(await engine.result(saga_id, timeout_s=PATIENCE_S))
        except Compensated:
            return "compensated"


def main(
    factory: str,
    url: str,
    world: str,
    kill_at: str,
    mode: str,
    keyed: str,
    saga_id: str = "order-1",
    victims: str = "",
) -> None:
    killed_too = tuple(int(each) for each in victims.split(",") if each)
    OUTSIDE.append(Outside(Path(world), kill_at, keyed == "keyed", killed_too))
    module, _, name = factory.partition(":")
    engine = getattr(importlib.import_module(module), name)(url)
    print(json.dumps(asyncio.run(work(engine, mode, saga_id))), flush=True)
