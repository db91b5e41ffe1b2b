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

import pytest

from onefold._engines.dbos import dbos_engine
from onefold._engines.dbos.saga_context import end_journal
from onefold.sagas import Abort, Backoff, Compensated, RetryPolicy, Saga, SagaEngine, key, saga
from onefold.sagas.dbos import Dbos
from tests.saga.kills.world import Outside
from tests.saga.quick_engines import hurry
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
    shipped = str(await s.step("ship", ship, o, undo=unship, retry=RETRY))
    OUTSIDE[0].die("end", "before")
    return shipped


def die_at_ends(patch: pytest.MonkeyPatch) -> None:
    """After the last record of a saga the engine has its end to write. A compensated one ends outside of its function,
    and on DBOS there is a record of the function's end before that of the saga's."""
    compensate = Saga.compensate

    async def compensate_and_die(self: Saga) -> None:
        await compensate(self)
        OUTSIDE[0].die("end", "before")

    async def end_and_die(saga_id: str) -> None:
        await end_journal(saga_id)
        OUTSIDE[0].die("end", "mid")

    patch.setattr(Saga, "compensate", compensate_and_die)
    patch.setattr(dbos_engine, "end_journal", end_and_die)


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
    patch = pytest.MonkeyPatch()
    hurry(patch)
    die_at_ends(patch)
    module, _, name = factory.partition(":")
    engine = getattr(importlib.import_module(module), name)(url)
    print(json.dumps(asyncio.run(work(engine, mode, saga_id))), flush=True)
