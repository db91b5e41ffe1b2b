"""Requests in steps that a quota turns away: they are no attempts at their work."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from fastapi import FastAPI, HTTPException

from onefold import AsyncOnefold
from onefold.fastapi import Steps
from onefold.policies import Quota
from tests.steps.places import Place
from tests.steps.test_left_steps import insert
from tests.support.patience import PATIENCE_S


async def test_retries_that_a_quota_turns_away_do_not_count_as_attempts(address: str, place: Place) -> None:
    once = AsyncOnefold(address, principal=lambda request: "ada", source="tests")
    app = FastAPI()
    begun, go_on = asyncio.Event(), asyncio.Event()
    breaks = [True]

    @app.post("/rides/{name}", status_code=201)
    @once.idempotent(required=True, quota=Quota(in_flight=1))
    async def create_ride(name: str, work: Steps) -> Any:
        await work.phase("create", insert, name)
        if name == "slow":
            begun.set()
            await go_on.wait()
        elif breaks:
            breaks.pop()
            raise HTTPException(500)
        return {}

    once.install(app)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://rides") as client, asyncio.timeout(PATIENCE_S):

        async def post(name: str) -> int:
            return (await client.post(f"/rides/{name}", headers={"Idempotency-Key": name})).status_code

        assert await post("broken") == 500
        slow = asyncio.create_task(post("slow"))
        await begun.wait()
        assert [await post("broken") for _ in range(3)] == [429, 429, 429]
        go_on.set()
        assert await slow == 201
        assert await asyncio.to_thread(place.rows, "SELECT attempts FROM onefold_work") == [(1,)]
        assert await post("broken") == 201
    await once.close()
