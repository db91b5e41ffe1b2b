"""What stands between an engine and its sagas on Restate: proxies with answers of their own, and a server that has just
begun, which lists nothing yet."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from typing import Any, TypeAlias

import httpx
import pytest

from onefold._engines.restate import restate_api
from onefold.errors import ConfigurationError, OnefoldError, StoreUnavailable
from onefold.sagas import Compensated, SagaEngine, SagaNotStopped, SagaUnknown
from onefold.sagas.restate import Restate
from onefold.testing.servers import PrivateRestate
from tests.saga.conformance.sagas import patient
from tests.saga.server_engines import RestateOpener
from tests.support.patience import PATIENCE_S

_numbers = itertools.count(1)

Judge: TypeAlias = Callable[[httpx.Request], httpx.Response | None]


class InBetween(httpx.AsyncBaseTransport):
    """Answers requests itself as long as `judge` has an answer for them, and passes the others on."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge
        self._server = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self._judge(request) or await self._server.handle_async_request(request)

    async def aclose(self) -> None:
        await self._server.aclose()


def first(times: int, what: str, answer: Callable[[], httpx.Response]) -> Judge:
    """The first requests that have `what` in their address or body."""
    left = [times]

    def judge(request: httpx.Request) -> httpx.Response | None:
        if left[0] == 0 or what not in f"{request.url} {request.content.decode()}":
            return None
        left[0] -= 1
        return answer()

    return judge


@asynccontextmanager
async def started(restate: PrivateRestate) -> AsyncIterator[tuple[Restate, str, Callable[[Judge], None]]]:
    """An engine with a saga that waits for its signal, and how to put something in between."""
    saga_id = f"in-between-{next(_numbers)}"
    with closing(RestateOpener(restate)) as opener:
        async with opener([patient]) as engine:
            await engine.start(patient, saga_id, {"item": "book"})
            clients: list[httpx.AsyncClient] = [engine._api._client]

            def put(judge: Judge) -> None:
                clients.append(httpx.AsyncClient(transport=InBetween(judge)))
                engine._api._opened = clients[-1]

            try:
                yield engine, saga_id, put
                # Restate would try a saga that runs again while the engine closes, of which hypercorn makes an error.
                put(lambda _: None)
                await engine.cancel(saga_id)
                with suppress(Compensated):
                    await engine.result(saga_id, timeout_s=PATIENCE_S)
            finally:
                await asyncio.gather(*(each.aclose() for each in clients[:-1]))


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (429, '{"message": "too many requests", "code": 429}'),
        (502, "upstream request cancelled"),
        (503, "<html>back soon</html>"),
        (404, "default backend - 404"),
        (404, '{"message": "no route matched"}'),
    ],
)
async def test_what_a_proxy_answers_is_no_end_of_a_saga(restate: PrivateRestate, status: int, text: str) -> None:
    async with started(restate) as (engine, saga_id, put):
        put(first(2, "/attach", lambda: httpx.Response(status, text=text)))
        waiting = asyncio.create_task(engine.result(saga_id, timeout_s=PATIENCE_S))
        await engine.signal(saga_id, "paid", 1)
        assert await waiting == 1


async def test_what_a_proxy_does_not_find_may_be_there(restate: PrivateRestate) -> None:
    async with started(restate) as (engine, _, put):
        put(first(1, "/run/send", lambda: httpx.Response(404, text="default backend - 404")))
        with pytest.raises(OnefoldError, match=r"refuses .* with 404: default backend") as raised:
            await engine.start(patient, "not-reached", {"item": "book"})
        assert not isinstance(raised.value, ConfigurationError)


async def signal(engine: SagaEngine, saga_id: str) -> None:
    await engine.signal(saga_id, "paid", 1)


async def retry(engine: SagaEngine, saga_id: str) -> None:
    with pytest.raises(SagaNotStopped):
        await engine.retry(saga_id)


async def wait(engine: SagaEngine, saga_id: str) -> None:
    with pytest.raises(TimeoutError):
        await engine.result(saga_id, timeout_s=1.0)


Use: TypeAlias = Callable[[Any, str], Awaitable[Any]]
USES: dict[str, Use] = {
    "status": Restate.status,
    "history": Restate.history,
    "cancel": Restate.cancel,
    "signal": signal,
    "retry": retry,
    "result": wait,
}


def lists_nothing(times: int) -> Judge:
    return first(times, "FROM sys_invocation", lambda: httpx.Response(200, json={"rows": []}))


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
async def test_a_saga_that_is_not_listed_yet_is_there(restate: PrivateRestate, use: Use) -> None:
    async with started(restate) as (engine, saga_id, put):
        put(lists_nothing(2))
        await use(engine, saga_id)


async def test_a_saga_that_is_never_listed_is_unavailable(
    restate: PrivateRestate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(restate) as (engine, saga_id, put):
        put(lists_nothing(1_000_000))
        with monkeypatch.context() as patch:
            patch.setattr(restate_api, "_ANSWER_S_MAX", 1.0)
            with pytest.raises(StoreUnavailable, match=r"does not list saga '[\w-]+', and its ingress .* but 470"):
                await engine.status(saga_id)


async def test_the_control_believes_the_first_list(restate: PrivateRestate, monkeypatch: pytest.MonkeyPatch) -> None:
    def believes(_: httpx.Response) -> bool:
        return True

    async with started(restate) as (engine, saga_id, put):
        put(lists_nothing(1))
        with monkeypatch.context() as patch:
            patch.setattr(restate_api, "_is_missing", believes)
            with pytest.raises(SagaUnknown):
                await engine.status(saga_id)


@pytest.mark.parametrize("use", USES.values(), ids=list(USES))
async def test_a_saga_that_was_never_started_is_unknown(restate: PrivateRestate, use: Use) -> None:
    async with started(restate) as (engine, _, put):
        put(lambda _: None)
        with pytest.raises(SagaUnknown, match="no saga 'nobody'"):
            await use(engine, "nobody")


async def test_results_that_are_waited_for_leave_the_way_free_to_what_ends_them(restate: PrivateRestate) -> None:
    """Each holds a connection; a client has a hundred unless it is told otherwise."""
    async with started(restate) as (engine, saga_id, _):
        waiting = [asyncio.create_task(engine.result(saga_id, timeout_s=PATIENCE_S)) for _ in range(120)]
        async with asyncio.timeout(PATIENCE_S):
            while True:
                pool: Any = engine._api._client._transport
                if len(pool._pool.connections) >= len(waiting):
                    break
                await asyncio.sleep(0.05)
        await engine.signal(saga_id, "paid", 1)
        assert await asyncio.gather(*waiting) == [1] * len(waiting)
