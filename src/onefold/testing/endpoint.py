"""The whole contract, played against one endpoint of an application: replay, mismatch, race, crash around COMMIT.

def test_orders(client):
    assert_idempotent(client, "POST", "/orders", json={"item": "book"}, headers=LOGIN, once=once, count=count_orders)

The client is the test client of Starlette, FastAPI or Flask, or one of httpx; for an `httpx.AsyncClient` the call is
awaited. Each part has a key of its own, and the endpoint must be one that succeeds with these arguments any number of
times. Where a row is single by a business key of the payload, `json` is a function that makes a payload for each part;
where the path names what is changed once, an order that is cancelled, `path` is one.
"""

from __future__ import annotations

import asyncio
import copy
import inspect
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Final, cast
from uuid import uuid4

from onefold._app import AsyncOnefold, Onefold
from onefold._kernel.arguments import name_type
from onefold._kernel.effects import Call, Now, Sleep
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.runners import run, run_async
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError
from onefold.testing._given import require_once
from onefold.testing.crashing import CommitEdge, ProcessCrashed, crashing

__all__ = ["ContractBroken", "assert_idempotent"]

_RACERS_MAX: Final = 64
_SHOWN_BYTES: Final = 1000
_PATIENCE_S: Final = 60.0
_PAUSE_S: Final = 0.02
_WITHOUT_EFFECT: Final = (
    "; does `count` look where the endpoint writes? Where the row is single by a business key of the payload, give "
    "`json` a function that makes another payload for each part"
)
_SUCCEEDS_ONCE: Final = (
    "; where the endpoint succeeds once for each path or payload, give `path` or `json` a function that makes another "
    "one for each part"
)


class ContractBroken(AssertionError):
    """The endpoint does not keep the contract. Says in which part of it, what was expected and what came."""


@dataclass(frozen=True, slots=True)
class _PlayedAnswer:
    status: int
    body: bytes
    replayed: bool

    @property
    def succeeded(self) -> bool:
        return 200 <= self.status < 300

    def __str__(self) -> str:
        shown = self.body[:_SHOWN_BYTES].decode(errors="replace")
        return f"{self.status}{' (replayed)' if self.replayed else ''} {shown}"


def assert_idempotent(
    client: Any,
    method: str,
    path: str | Callable[[], str],
    *,
    once: Onefold | AsyncOnefold,
    json: object = None,
    other_json: object = None,
    headers: Mapping[str, str] | None = None,
    count: Callable[[], Any] | None = None,
    racers: int = 4,
) -> Any:
    """Play replay, mismatch, race and crash against an endpoint; raises `ContractBroken` where it fails.

    `path` is where every request is sent to, or a function that is called once for each part: for an endpoint that
    changes what the path names, such as the cancellation of an order, and would refuse it in the second part.
    `headers` are sent with every request, beside the key: credentials, for instance.
    `json` is the body of every request, or a function that is called once for each part: for an endpoint whose rows are
    single by a business key of the payload (`tx.insert_once`), which would do nothing in the second part.
    `other_json` is what another request under the same key has for a body (by default `json` with a member more).
    `count` says how often the effect has happened, by the rows of your table for instance: it must grow by one in each
    part, and not at all in others. `racers` requests at once are a race. Returns what must be awaited where `client` is
    an `httpx.AsyncClient`; `count` may be a coroutine function then.
    """
    require("racers", racers, least=2, most=_RACERS_MAX, whole=True)
    require_once(once)
    if count is not None and not callable(count):
        raise ConfigurationError(f"count={count!r} must be a function that counts, or None")
    for name, given, made in (("json", json, "the payload"), ("path", path, "the path")):
        if inspect.iscoroutinefunction(given):
            raise ConfigurationError(f"{name}={given!r} is an `async def`: give a plain function that makes {made}")
    make_json = cast(Callable[[], object], json) if callable(json) else lambda: json
    sender = _TestSender(client, method, _checked_headers(headers))
    if inspect.iscoroutinefunction(count) and not sender.is_async:
        raise ConfigurationError(
            f"count={count!r} is an `async def`, and {name_type(client)} awaits nothing: give a plain "
            "function, or an httpx.AsyncClient as the client"
        )
    played = _PlayedContract(sender, once, _path_maker(path), make_json, other_json, count, racers)
    if played.sender.is_async:
        return run_async(played.play(), TaskExecutor(_no_database(once)))
    return run(played.play(), ThreadExecutor(_no_database(once)))


def _path_maker(path: object) -> Callable[[], str]:
    if not isinstance(path, str) and not callable(path):
        raise ConfigurationError(f"path={path!r} must be a text, as '/orders' is, or a function that makes one")

    def make_path() -> str:
        made = path() if callable(path) else path
        if not isinstance(made, str):
            raise ConfigurationError(f"path={path!r} returned {made!r}, and must return a text, as '/orders/7' is")
        return made

    return make_path


def _no_database(once: Any) -> Any:
    """An executor wants one; no effect of these flows is for it."""
    return once._database


def _checked_headers(headers: object) -> dict[str, str]:
    try:
        found = dict(cast(Any, headers or {}))
    except (TypeError, ValueError):
        raise ConfigurationError(f"headers={headers!r} must be a mapping of names to texts, or None") from None
    if any(str(name).lower() == "idempotency-key" for name in found):
        raise ConfigurationError(f"headers={headers!r} has a key: each part of assert_idempotent sends one of its own")
    return found


@dataclass(frozen=True, slots=True)
class _TestRequest:
    key: str
    path: str
    json: object


class _TestSender:
    """How each kind of client sends a request, and what its answers are called."""

    def __init__(self, client: Any, method: str, headers: Mapping[str, str]) -> None:
        if not isinstance(method, str):
            raise ConfigurationError(f"method={method!r} must be a text, as 'POST' is")
        self._client, self._method, self._headers = client, method, headers
        self._is_flask = hasattr(client, "open") and hasattr(client, "application")
        if not self._is_flask and not hasattr(client, "request"):
            raise ConfigurationError(
                f"client is {name_type(client)}: give a test client of Starlette, FastAPI or Flask, an "
                "httpx.Client or an httpx.AsyncClient"
            )
        self.is_async = asyncio.iscoroutinefunction(getattr(client, "request", None))

    def send(self, request: _TestRequest) -> Any:
        headers = {**self._headers, "Idempotency-Key": f'"{request.key}"'}
        if self._is_flask:
            # A copy: Flask's client keeps the context of its last request, and is not for two threads.
            client = copy.copy(self._client)
            return client.open(request.path, method=self._method, json=request.json, headers=headers)
        return self._client.request(self._method, request.path, json=request.json, headers=headers)

    def send_at_once(self, request: _TestRequest, times: int) -> Any:
        if self.is_async:
            return _gather(*(self.send(request) for _ in range(times)))
        with ThreadPoolExecutor(times) as threads:
            return [sent.result() for sent in [threads.submit(self.send, request) for _ in range(times)]]

    def read(self, response: Any) -> _PlayedAnswer:
        body = response.data if self._is_flask else response.content
        replayed = response.headers.get("Idempotent-Replayed") == "true"
        return _PlayedAnswer(response.status_code, body, replayed)


async def _gather(*sent: Coroutine[Any, Any, Any]) -> list[Any]:
    return await asyncio.gather(*sent)


@dataclass(frozen=True, slots=True)
class _PlayedContract:
    """The parts, in their order. Flows: they run on threads and on asyncio."""

    sender: _TestSender
    once: Onefold | AsyncOnefold
    make_path: Callable[[], str]
    make_json: Callable[[], object]
    other_json: object
    count: Callable[[], Any] | None
    racers: int

    async def play(self) -> None:
        request = self._next_request()
        first = await self._play_first(request)
        await self._play_replay(request, first)
        await self._play_mismatch(request, first)
        await self._play_race()
        await self._play_crash("before")
        await self._play_crash("after")

    def _next_request(self) -> _TestRequest:
        return _TestRequest(uuid4().hex, self.make_path(), self.make_json())

    async def _play_first(self, request: _TestRequest) -> _PlayedAnswer:
        before = await self._count()
        first = await self._send(request)
        if not first.succeeded:
            _fail("first request", "a success: the contract is about what happens once", first)
        if first.replayed:
            _fail("first request", "an answer of the handler", first)
        await self._expect_growth("first request", before, 1)
        return first

    async def _play_replay(self, request: _TestRequest, first: _PlayedAnswer) -> None:
        before = await self._count()
        again = await self._send(request)
        self._expect_same("replay", again, first)
        await self._expect_growth("replay", before, 0)

    async def _play_mismatch(self, request: _TestRequest, first: _PlayedAnswer) -> None:
        before = await self._count()
        other_json = self.other_json
        if other_json is None:
            other_json = {**(request.json if isinstance(request.json, dict) else {}), "onefold": "another payload"}
        other = await self._send(replace(request, json=other_json))
        if other.status != 422:
            _fail("mismatch", "422 for another payload under the same key", other)
        self._expect_same("replay after a mismatch", await self._send(request), first)
        await self._expect_growth("mismatch", before, 0)

    async def _play_race(self) -> None:
        request, before = self._next_request(), await self._count()
        responses = await Call(lambda: self.sender.send_at_once(request, self.racers))
        answers = [self.sender.read(response) for response in responses]
        ran = [each for each in answers if each.succeeded and not each.replayed]
        for each in answers:
            if not each.succeeded and each.status != 409:
                _fail("race", "a success, or 409 while another one runs", each, _SUCCEEDS_ONCE)
        if len(ran) != 1:
            way_out = "" if ran else _SUCCEEDS_ONCE
            raise ContractBroken(f"race: {len(ran)} of {self.racers} requests under one key ran, and one must{way_out}")
        self._expect_same("replay after a race", await self._retry(request), ran[0])
        await self._expect_growth("race", before, 1)

    async def _play_crash(self, edge: CommitEdge) -> None:
        part = f"crash {edge} COMMIT"
        request, before = self._next_request(), await self._count()
        with crashing(self.once, edge) as crash:
            try:
                crashed = await self._send(request)
            except ProcessCrashed:
                crashed = None
        if crashed is not None and (crashed.status < 500 or not crash.happened):
            raise ContractBroken(
                f"{part}: the request was answered, {crashed}; does it go through the transaction of this `once`?"
            )
        again = await self._retry(request)
        if not again.succeeded or again.replayed != (edge == "after"):
            wanted = "the stored answer" if edge == "after" else "a clean run of the handler"
            _fail(f"retry after a {part}", wanted, again)
        await self._expect_growth(part, before, 1)

    async def _send(self, request: _TestRequest) -> _PlayedAnswer:
        return self.sender.read(await Call(lambda: self.sender.send(request)))

    async def _retry(self, request: _TestRequest) -> _PlayedAnswer:
        """Retry a 409, as clients do. A server notices a moment later that a connection is gone, and its locks
        with it."""
        give_up_at = await Now() + _PATIENCE_S
        while (answer := await self._send(request)).status == 409 and await Now() < give_up_at:
            await Sleep(_PAUSE_S)
        return answer

    async def _count(self) -> int | None:
        if self.count is None:
            return None
        counted = await Call(self.count)
        if not isinstance(counted, int):
            raise ConfigurationError(f"count={self.count!r} returned {counted!r}, which is no whole number")
        return counted

    async def _expect_growth(self, part: str, before: int | None, by: int) -> None:
        after = await self._count()
        if before is not None and after is not None and after - before != by:
            way_out = _WITHOUT_EFFECT if by and after == before else ""
            raise ContractBroken(f"{part}: the effect happened {after - before} times, and {by} was expected{way_out}")

    @staticmethod
    def _expect_same(part: str, again: _PlayedAnswer, first: _PlayedAnswer) -> None:
        if (again.status, again.body, again.replayed) != (first.status, first.body, True):
            ran_again = again.succeeded and not again.replayed
            way_out = "; is the endpoint marked, as `@once.idempotent()`, and installed?" if ran_again else ""
            _fail(part, f"the stored answer, {first}, with Idempotent-Replayed: true", again, way_out)


def _fail(part: str, expected: str, came: _PlayedAnswer, way_out: str = "") -> None:
    raise ContractBroken(f"{part}: expected {expected}; came {came}{way_out}")
