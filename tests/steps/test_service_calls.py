"""The keys that calls of a work are sent under: by onefold's clients, and by a vendor's SDK."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import httpx
import pytest
import requests

import onefold
from onefold import AsyncOnefold, Onefold, RetryPolicy, Steps, single_principal
from onefold.errors import IntentReused
from onefold.testing.scripted_server import Reply, Reset, ScriptedServer
from tests.client.sdks.customer import JSON, PAID, pay, stripe_client
from tests.steps.places import Place

POLICY = RetryPolicy(attempts_max=4, budget=None, breaker=None)


class Interrupted(Exception):
    """What a crash is to the handler."""


@pytest.mark.parametrize("handed_over", [True, False])
def test_stripe_gets_one_key_however_often_the_call_is_made(address: str, handed_over: bool) -> None:
    """The first answer is lost on its way: the SDK, onefold's client and the next attempt at the work all try again."""
    once = Onefold(address, principal=single_principal)
    attempts, derived = 0, set()

    def charge(work: Steps, client: Any) -> str:
        nonlocal attempts
        attempts += 1
        paid = pay(client, work.derive("charge") if handed_over else None)
        if attempts == 1:
            raise Interrupted
        return paid

    with (
        ScriptedServer([Reset(), Reply(200, PAID, JSON)]) as server,
        onefold.retrying(requests.Session(), POLICY) as session,
    ):
        client = stripe_client(server.url, session)
        for _ in range(3):
            try:
                with once.work("ride:1") as work:
                    derived.add(work.derive("charge"))
                    assert work.call("charge", charge, work, client) == "pi_1"
            except Interrupted:
                continue
        keys = [request.headers["idempotency-key"] for request in server.requests]
    assert set(keys) == derived
    assert (len(derived), attempts, len(keys)) == (1, 2, 3)
    once.close()


async def test_a_client_of_onefold_sends_the_key_of_the_step_by_itself(address: str, place: Place) -> None:
    once = AsyncOnefold(address, principal=single_principal)
    with ScriptedServer([Reply(201, b"{}", JSON)]) as server:
        async with onefold.retrying(httpx.AsyncClient(trust_env=False), POLICY) as client:

            async def charge(cents: int) -> int:
                answer = await client.post(f"{server.url}/charges", json={"cents": cents})
                return int(answer.status_code)

            async def charge_twice() -> None:
                await charge(1)
                await charge(2)

            async with once.work("ride:1") as work:
                assert await work.call("charge", charge, 500) == 201
                assert [each.headers["idempotency-key"] for each in server.requests] == [work.derive("charge")]
                with pytest.raises(IntentReused, match=r"of step 'both' has sent .* make it a call of its own"):
                    await work.call("both", charge_twice)
    await once.close()


async def test_other_clients_take_the_key_of_a_step_as_one_argument(address: str) -> None:
    """As they are, and aiohttp with onefold's middleware, which sends it by itself."""
    once = AsyncOnefold(address, principal=single_principal)
    with ScriptedServer([Reply(201, b"{}", JSON)]) as server:

        async def by_httpx(*, key: str) -> int:
            async with httpx.AsyncClient(trust_env=False) as client:
                return (await client.post(server.url, headers={"Idempotency-Key": key})).status_code

        async def by_aiohttp(*, key: str) -> int:
            async with aiohttp.ClientSession() as client:
                return (await client.post(server.url, headers={"Idempotency-Key": key})).status

        async def by_middleware() -> int:
            async with aiohttp.ClientSession(middlewares=[onefold.Retrying(POLICY).middleware]) as client:
                return (await client.post(server.url)).status

        async def by_requests(*, key: str) -> int:
            headers = {"Idempotency-Key": key}
            return (await asyncio.to_thread(requests.post, server.url, headers=headers, timeout=60)).status_code

        async with once.work("ride:1") as work:
            await work.call("httpx", by_httpx, key=work.derive("httpx"))
            await work.call("aiohttp", by_aiohttp, key=work.derive("aiohttp"))
            await work.call("middleware", by_middleware)
            await work.call("requests", by_requests, key=work.derive("requests"))
            steps = ("httpx", "aiohttp", "middleware", "requests")
            assert [each.headers["idempotency-key"] for each in server.requests] == [
                work.derive(name) for name in steps
            ]
    await once.close()
