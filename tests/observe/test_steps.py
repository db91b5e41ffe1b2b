"""Metrics of recorded steps, and of the completer."""

from __future__ import annotations

from pathlib import Path

import httpx
from fastapi import FastAPI

from onefold import AsyncOnefold, StepOptions, Transaction, single_principal
from onefold.db.sqlite import AsyncSqlite
from onefold.fastapi import Steps
from tests.observe.measured import Measured

RIDES = "POST /rides"


async def write_down(tx: Transaction[AsyncSqlite]) -> int:
    await tx.connection.execute("CREATE TABLE IF NOT EXISTS rides (id INTEGER PRIMARY KEY)")
    return 1


async def mark_paid(tx: Transaction[AsyncSqlite]) -> None:
    await tx.connection.execute("INSERT INTO rides DEFAULT VALUES")


class Rides:
    """Rides whose card cannot be charged as often as `failures` says."""

    def __init__(self, path: Path, measured: Measured, *, repeatable: bool = True) -> None:
        self.failures = 0
        self.once = AsyncOnefold(str(path), principal=single_principal, listener=measured.listeners)
        self.app = FastAPI()

        @self.app.post("/rides", status_code=201)
        @self.once.idempotent(required=True)
        async def create_ride(work: Steps) -> dict[str, int]:
            ride = await work.phase("create", write_down)
            await work.call(StepOptions("charge", repeatable=repeatable), self.charge)
            await work.finish(mark_paid)
            return {"ride": ride}

        self.once.install(self.app)

    async def charge(self) -> str:
        if self.failures:
            self.failures -= 1
            raise ConnectionError("the answer was lost")
        return "ch_1"

    async def post(self, key: str) -> int:
        transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://rides") as client:
            return (await client.post("/rides", headers={"Idempotency-Key": key})).status_code

    async def make_due(self) -> None:
        async with self.once.transaction() as tx:
            await tx.connection.execute("UPDATE onefold_work SET due_at_ms = created_at_ms")


async def test_steps_are_counted_by_kind_and_outcome(sqlite_path: Path, measured: Measured) -> None:
    rides = Rides(sqlite_path, measured)
    rides.failures = 1
    assert [await rides.post("secret-key") for _ in range(2)] == [500, 201]
    async with rides.once.work("import 4711") as work:
        await work.phase("create", write_down)
    await rides.once.close()
    assert measured.values("onefold_steps_total") == {
        ("phase", RIDES, "done"): 1,
        ("phase", RIDES, "recorded"): 1,
        ("call", RIDES, "failed"): 1,
        ("call", RIDES, "done"): 1,
        ("finish", RIDES, "done"): 1,
        ("phase", "work", "done"): 1,
    }
    assert "4711" not in measured.exposition
    assert "secret-key" not in measured.exposition


async def test_what_the_completer_does_is_counted(sqlite_path: Path, measured: Measured) -> None:
    rides = Rides(sqlite_path, measured)
    rides.failures = 2
    await rides.post("a")
    for _ in range(2):
        await rides.make_due()
        await rides.once.complete(abandoned_after_s=0.0)
    rides.failures = 2
    await rides.post("b")
    await rides.make_due()
    await rides.once.complete(abandoned_after_s=0.0, attempts_max=2)
    await rides.once.close()
    assert measured.values("onefold_completions_total") == {
        (RIDES, "failed"): 1,
        (RIDES, "completed"): 1,
        (RIDES, "parked"): 1,
    }


async def test_a_request_that_waits_for_a_person_is_counted_once_whatever_has_parked_it(
    sqlite_path: Path, measured: Measured
) -> None:
    """Its client's retry, or the completer: the outcome of a call that must not be repeated is not known."""
    rides = Rides(sqlite_path, measured, repeatable=False)
    rides.failures = 1
    assert [await rides.post("a") for _ in range(3)] == [500, 409, 409]
    assert measured.values("onefold_completions_total") == {(RIDES, "parked"): 1}
    rides.failures = 1
    await rides.post("b")
    await rides.make_due()
    assert (await rides.once.complete(abandoned_after_s=0.0)).parked == 1
    await rides.once.close()
    assert measured.values("onefold_completions_total") == {(RIDES, "parked"): 2}
