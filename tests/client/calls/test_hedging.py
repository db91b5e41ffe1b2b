"""A second attempt beside the first, where the first answer is late."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

import onefold
from onefold import Retrying, RetryPolicy
from onefold.clients import BudgetConfig, options
from onefold.errors import ConfigurationError
from onefold.testing.scripted_server import Reply, ScriptedServer, Stall
from tests.support.patience import PATIENCE_S


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
        with options(hedge_s=0.001):
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
    call = hedged(Retrying(RetryPolicy(budget=BudgetConfig(cap_least=0, cap_most=0))), reader)
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


class Counted(httpx.AsyncByteStream):
    """A body that nobody has read yet. `left` counts those that hold a connection."""

    def __init__(self, left: list[int], number: int) -> None:
        self._left = left
        self._number = number
        left.append(number)

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield b"x" * 10

    async def aclose(self) -> None:
        await asyncio.sleep(0)
        self._left.remove(self._number)


class Host:
    """Answers when the test says so; the numbers of the answers whose connections are in use."""

    def __init__(self) -> None:
        self.calls: list[asyncio.Future[int]] = []
        self._called = asyncio.Semaphore(0)
        self.left: list[int] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        mine: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.calls.append(mine)
        self._called.release()
        number = len(self.calls)
        status = await mine
        return httpx.Response(status, stream=Counted(self.left, number), headers={"Content-Type": "text/event-stream"})

    async def asked(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            for _ in range(count):
                await self._called.acquire()

    async def freed(self, but: list[int]) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        assert self.left == but


def streaming(host: Host) -> asyncio.Task[httpx.Response]:
    client = onefold.retrying(httpx.AsyncClient(transport=httpx.MockTransport(host)), RetryPolicy(attempts_max=1))

    async def ask() -> httpx.Response:
        with options(hedge_s=0.0):
            return await client.send(client.build_request("GET", "http://prices.example/"), stream=True)

    return asyncio.create_task(ask())


@pytest.mark.parametrize(("statuses", "kept"), [((200, 200), 1), ((503, 200), 2), ((200, 503), 1), ((503, 503), 1)])
async def test_of_two_answers_at_once_the_one_that_is_not_kept_frees_its_connection(
    statuses: tuple[int, int], kept: int
) -> None:
    host = Host()
    call = streaming(host)
    await host.asked(2)
    for attempt, status in zip(host.calls, statuses, strict=True):
        attempt.set_result(status)
    response = await call
    assert response.status_code == statuses[kept - 1]
    left = [] if response.status_code == 503 else [kept]  # an error was read to its end
    await host.freed(but=left)
    await response.aclose()
    await host.freed(but=[])


async def test_who_cancels_when_both_have_answered_keeps_no_connection() -> None:
    host = Host()
    call = streaming(host)
    await host.asked(2)
    for attempt in host.calls:
        attempt.set_result(200)
    await asyncio.sleep(0)
    assert (host.left, call.done()) == ([1, 2], False), "the control: both have answered, and the call was not told yet"
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await host.freed(but=[])


async def test_an_answer_that_both_attempts_have_got_is_not_closed() -> None:
    """As from a function that asks once for all who ask at the same time."""
    left: list[int] = []
    shared, begun = httpx.Response(200, stream=Counted(left, 1)), asyncio.Barrier(2)

    @Retrying().calls("prices", on=ConnectionError, hedge_s=0.0)
    async def read() -> httpx.Response:
        async with asyncio.timeout(PATIENCE_S), begun:
            return shared

    assert await read() is shared
    for _ in range(5):
        await asyncio.sleep(0)
    assert left == [1]


async def test_an_attempt_that_answers_although_it_was_cancelled_frees_its_connection() -> None:
    """As a client does that shields what it has begun."""
    freed: list[str] = []
    asked, answering = 0, asyncio.Event()

    class Open:
        status = 200

        def __init__(self, name: str) -> None:
            self._name = name

        def close(self) -> None:
            freed.append(self._name)

    @Retrying().calls("prices", on=ConnectionError, hedge_s=0.0)
    async def read() -> Open:
        nonlocal asked
        asked += 1
        if asked == 2:
            return Open("second")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            answering.set()
        return Open("first")

    assert (await read())._name == "second"
    await answering.wait()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert freed == ["first"]


def test_a_plain_function_is_refused_where_it_is_decorated() -> None:
    with pytest.raises(ConfigurationError, match="not a coroutine function"):
        Retrying().calls("prices", on=OSError, hedge_s=0.1)(lambda: None)
    with pytest.raises(ConfigurationError, match="hedge_s=-1"):
        Retrying().calls("prices", on=OSError, hedge_s=-1)


@pytest.mark.parametrize("said", ["with the request", "by the block"])
async def test_httpx_asks_a_late_host_twice_and_only_where_it_reads(said: str) -> None:
    with ScriptedServer([Stall(), Reply(200, b"second")]) as server:
        async with onefold.retrying(httpx.AsyncClient(trust_env=False), RetryPolicy(attempts_max=1)) as client:
            if said == "by the block":
                with options(hedge_s=0.01):
                    reply = await client.get(server.url)
            else:
                reply = await client.get(server.url, extensions={"hedge_s": 0.01})
    assert (reply.content, len(server.requests)) == (b"second", 2)
    with ScriptedServer([Reply(200, b"first", after_s=0.2), Reply(200, b"second")]) as server:
        async with onefold.retrying(httpx.AsyncClient(trust_env=False)) as client:
            with options(hedge_s=0.01):
                assert (await client.put(server.url, content=b"x")).content == b"first"
    assert len(server.requests) == 1


async def test_a_body_that_two_attempts_would_share_is_sent_once() -> None:
    with ScriptedServer([Reply(200, b"first", after_s=0.1), Reply(200, b"second")]) as server:
        async with onefold.retrying(httpx.AsyncClient(trust_env=False)) as client:
            with options(hedge_s=0.0):
                files = {"question": io.BytesIO(b"what is the price?")}
                assert (await client.request("GET", server.url, files=files)).content == b"first"
    [asked] = server.requests
    assert b"what is the price?" in asked.body


def test_clients_for_threads_say_that_they_cannot() -> None:
    client = onefold.retrying(httpx.Client(trust_env=False))
    refused = pytest.raises(ConfigurationError, match="beside the first")
    with ScriptedServer([Reply(200)]) as server, client, options(hedge_s=0.01), refused:
        client.get(server.url)
    assert server.requests == []
