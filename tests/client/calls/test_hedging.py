"""A second attempt beside the first, where the first answer is late."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

import onefold
from onefold import BudgetTerms, Retrying, RetryPolicy
from onefold.errors import ConfigurationError
from onefold.testing.scripted import Answer, ScriptedServer, Stall
from tests.patience import PATIENCE_S


class Reader:
    """A function whose calls end as the test says; each is asked for by its number."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[str]] = []
        self._called = asyncio.Condition()

    async def __call__(self) -> str:
        mine: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        async with self._called:
            self.calls.append(mine)
            self._called.notify_all()
        return await mine

    async def begun(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S), self._called:
            await self._called.wait_for(lambda: len(self.calls) >= count)


def hedged(retrying: Retrying, reader: Reader, after_s: float = 0.0) -> asyncio.Task[str]:
    @retrying.calls("prices", on=ConnectionError, hedge_s=after_s)
    async def read() -> str:
        return await reader()

    return asyncio.create_task(read())


def tokens(retrying: Retrying) -> float:
    budget: Any = retrying._hosts.of("prices", 0.0).budget
    parts: int = budget._parts
    return parts / 1_000_000


@pytest.mark.parametrize("winner", [0, 1])
async def test_the_first_answer_counts_and_the_other_attempt_is_broken_off(winner: int) -> None:
    reader, retrying = Reader(), Retrying()
    call = hedged(retrying, reader)
    await reader.begun(2)
    reader.calls[winner].set_result("answer")
    assert await call == "answer"
    await asyncio.sleep(0)
    assert reader.calls[1 - winner].cancelled()
    assert tokens(retrying) == (6.0 if winner else 5.0), "it is paid for, unless it was worth it"


async def test_an_attempt_that_fails_leaves_the_call_to_the_other() -> None:
    reader = Reader()
    call = hedged(Retrying(), reader)
    await reader.begun(2)
    reader.calls[0].set_exception(ConnectionError("the first"))
    await asyncio.sleep(0)
    reader.calls[1].set_result("answer")
    assert await call == "answer"


@pytest.mark.parametrize("refused", [429, 503])
async def test_a_second_attempt_that_is_turned_away_leaves_the_call_to_the_first(refused: int) -> None:
    first: asyncio.Future[httpx.Response] = asyncio.get_running_loop().create_future()
    asked = 0

    async def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked == 1:
            return await first
        asyncio.get_running_loop().call_soon(first.set_result, httpx.Response(200, text="late"))
        return httpx.Response(refused)

    async with onefold.retrying(httpx.AsyncClient(transport=httpx.MockTransport(answer))) as client:
        with onefold.options(hedge_s=0.001):
            found = await client.get("http://prices.example/")
    assert (found.status_code, found.text, asked) == (200, "late", 2)


async def test_where_both_fail_it_is_a_failed_attempt_of_the_call() -> None:
    reader = Reader()
    call = hedged(Retrying(RetryPolicy(attempts_max=1)), reader)
    await reader.begun(2)
    reader.calls[1].set_exception(ConnectionError("the second"))
    reader.calls[0].set_exception(ConnectionError("the first"))
    with pytest.raises(ConnectionError, match="the first"):
        await call


async def test_without_a_token_there_is_no_second_attempt() -> None:
    reader = Reader()
    call = hedged(Retrying(RetryPolicy(budget=BudgetTerms(cap_least=0, cap_most=0))), reader)
    await reader.begun(1)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(reader.calls) == 1
    reader.calls[0].set_result("answer")
    assert await call == "answer"


async def test_an_answer_in_time_needs_no_second_attempt() -> None:
    reader = Reader()
    call = hedged(Retrying(), reader, after_s=60)
    await reader.begun(1)
    reader.calls[0].set_result("answer")
    assert (await call, len(reader.calls)) == ("answer", 1)


async def test_who_cancels_the_call_cancels_both_attempts() -> None:
    reader = Reader()
    call = hedged(Retrying(), reader)
    await reader.begun(2)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0)
    assert all(attempt.cancelled() for attempt in reader.calls)


def test_a_plain_function_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(ConfigurationError, match="no coroutine function"):
        Retrying().calls("prices", on=OSError, hedge_s=0.1)(lambda: None)
    with pytest.raises(ConfigurationError, match="hedge_s=-1"):
        Retrying().calls("prices", on=OSError, hedge_s=-1)


@pytest.mark.parametrize("said", ["with the request", "by the block"])
async def test_httpx_asks_a_late_host_twice_and_only_where_it_reads(said: str) -> None:
    with ScriptedServer([Stall(), Answer(200, b"second")]) as server:
        async with onefold.retrying(httpx.AsyncClient(trust_env=False), RetryPolicy(attempts_max=1)) as client:
            if said == "by the block":
                with onefold.options(hedge_s=0.01):
                    reply = await client.get(server.url)
            else:
                reply = await client.get(server.url, extensions={"hedge_s": 0.01})
    assert (reply.content, len(server.requests)) == (b"second", 2)
    with ScriptedServer([Answer(200, b"first", after_s=0.2), Answer(200, b"second")]) as server:
        async with onefold.retrying(httpx.AsyncClient(trust_env=False)) as client:
            with onefold.options(hedge_s=0.01):
                assert (await client.put(server.url, content=b"x")).content == b"first"
    assert len(server.requests) == 1


def test_clients_for_threads_say_that_they_cannot() -> None:
    client = onefold.retrying(httpx.Client(trust_env=False))
    refused = pytest.raises(ConfigurationError, match="beside the first")
    with ScriptedServer([Answer(200)]) as server, client, onefold.options(hedge_s=0.01), refused:
        client.get(server.url)
    assert server.requests == []
