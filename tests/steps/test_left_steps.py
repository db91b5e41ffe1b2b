"""Steps that are still under way when their request or block ends: nothing of them is kept by another's COMMIT."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from flask import Flask

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._kernel.transaction import Transaction
from onefold.errors import WorkMisused
from onefold.fastapi import Steps
from tests.steps.places import Place, effects

WAIT_S = 60


async def insert(tx: Transaction[Any], name: str) -> str:
    mark = "?" if "sqlite" in type(tx.connection).__module__ else "$1"
    values = ((name,),) if mark == "?" else (name,)
    await tx.connection.execute(f"INSERT INTO effects VALUES ({mark})", *values)
    return name


async def post(once: AsyncOnefold, handler: Callable[[Steps], Any], times: int = 1) -> list[int]:
    """What a client of an application with this one handler is told, again and again."""
    app = FastAPI()

    @app.post("/rides", status_code=201)
    @once.idempotent(required=True)
    async def create_ride(work: Steps) -> Any:
        return await handler(work)

    once.install(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://rides") as client:
        return [(await client.post("/rides", headers={"Idempotency-Key": "k-1"})).status_code for _ in range(times)]


@pytest.mark.parametrize("ends", ["raises", "answers"])
def test_a_phase_that_is_left_running_is_not_committed_by_the_end_of_its_request(
    address: str, place: Place, ends: str
) -> None:
    left: list[Any] = []

    async def main() -> None:
        once = AsyncOnefold(address, principal=single_principal, source="tests")
        inserted, go_on = asyncio.Event(), asyncio.Event()

        async def slow(tx: Transaction[Any]) -> None:
            await insert(tx, "first half")
            inserted.set()
            await asyncio.wait_for(go_on.wait(), WAIT_S)
            await insert(tx, "second half")

        async def handler(work: Steps) -> Any:
            left.append(asyncio.ensure_future(work.phase("create", slow)))
            await asyncio.wait_for(inserted.wait(), WAIT_S)
            if ends == "raises":
                raise RuntimeError("on purpose")
            return {}

        try:
            [status] = await asyncio.wait_for(post(once, handler), WAIT_S)
            assert status == 500
            assert effects(place) == []
            go_on.set()
            [outcome] = await asyncio.gather(*left, return_exceptions=True)
            assert outcome is None
            assert effects(place) == ["first half", "second half"]
            assert place.steps_left() == [(0, "create", "phase", "done")]

            async def resume(work: Steps) -> Any:
                await work.phase("create", slow)
                return {}

            assert await asyncio.wait_for(post(once, resume), WAIT_S) == [201]
            assert effects(place) == ["first half", "second half"]
        finally:
            await once.close()

    asyncio.run(main())


@pytest.mark.parametrize("step", ["phase", "call", "finish"])
def test_a_step_that_is_asked_for_after_the_answer_is_refused_and_does_nothing(
    address: str, place: Place, step: str
) -> None:
    async def main() -> None:
        once = AsyncOnefold(address, principal=single_principal, source="tests")
        kept: list[Steps] = []
        called: list[str] = []

        async def handler(work: Steps) -> Any:
            kept.append(work)
            await work.phase("create", insert, "ride")
            return {}

        async def call() -> None:
            called.append("called")

        try:
            assert await post(once, handler) == [201]
            [work] = kept
            late: dict[str, Callable[[], Any]] = {
                "phase": lambda: work.phase("late", insert, "late"),
                "call": lambda: work.call("late", call),
                "finish": lambda: work.finish(insert, "late"),
            }
            with pytest.raises(WorkMisused, match="had ended"):
                await late[step]()
        finally:
            await once.close()
        assert (effects(place), called) == (["ride"], [])

    asyncio.run(main())


@pytest.mark.parametrize("step", ["call", "finish"])
def test_a_step_that_is_left_running_gives_the_work_back_when_it_is_over(address: str, place: Place, step: str) -> None:
    async def main() -> None:
        once = AsyncOnefold(address, principal=single_principal, source="tests")
        left: list[Any] = []
        begun, go_on = asyncio.Event(), asyncio.Event()

        async def wait() -> str:
            begun.set()
            await asyncio.wait_for(go_on.wait(), WAIT_S)
            return "called"

        async def end(tx: Transaction[Any]) -> None:
            await insert(tx, "half")
            await wait()

        async def handler(work: Steps) -> Any:
            await work.phase("create", insert, "ride")
            left.append(asyncio.ensure_future(work.call("slow", wait) if step == "call" else work.finish(end)))
            await asyncio.wait_for(begun.wait(), WAIT_S)
            raise RuntimeError("on purpose")

        async def resume(work: Steps) -> Any:
            await work.phase("create", insert, "ride")
            if step == "call":
                await work.call("slow", wait)
            await work.finish(insert, "paid")
            return {}

        try:
            assert await asyncio.wait_for(post(once, handler), WAIT_S) == [500]
            if step == "call" or place.is_postgres:  # on SQLite a transaction that is open keeps all others waiting
                assert await asyncio.wait_for(post(once, resume), WAIT_S) == [409]
            go_on.set()
            [outcome] = await asyncio.gather(*left, return_exceptions=True)
            assert outcome == "called" if step == "call" else isinstance(outcome, WorkMisused)
            assert await asyncio.wait_for(post(once, resume), WAIT_S) == [201]
        finally:
            await once.close()
        assert effects(place) == ["paid", "ride"]

    asyncio.run(main())


def test_a_phase_on_a_thread_that_outlives_its_request_is_recorded_as_a_whole(address: str, place: Place) -> None:
    once = Onefold(address, principal=single_principal, source="tests")
    begun, go_on = threading.Event(), threading.Event()
    left: list[threading.Thread] = []
    app = Flask(__name__)

    def slow(tx: Transaction[Any]) -> None:
        mark = "%s" if place.is_postgres else "?"
        tx.connection.execute(f"INSERT INTO effects VALUES ({mark})", ("first half",))
        begun.set()
        assert go_on.wait(WAIT_S)
        tx.connection.execute(f"INSERT INTO effects VALUES ({mark})", ("second half",))

    @app.post("/rides")
    @once.idempotent(required=True)
    def create_ride(work: Steps) -> Any:
        if not left:
            left.append(threading.Thread(target=work.phase, args=("create", slow)))
            left[0].start()
            assert begun.wait(WAIT_S)
            raise RuntimeError("on purpose")
        work.phase("create", slow)
        return {}, 201

    once.install(app)
    client = app.test_client()
    assert client.post("/rides", headers={"Idempotency-Key": "k-1"}).status_code == 500
    assert effects(place) == []
    go_on.set()
    left[0].join()
    assert effects(place) == ["first half", "second half"]
    assert client.post("/rides", headers={"Idempotency-Key": "k-1"}).status_code == 201
    assert effects(place) == ["first half", "second half"]
    once.close()
