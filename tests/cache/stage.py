"""One payment API with an answer cache, in both colours, behind one interface: what it was asked, did and asked."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeAlias
from unittest import mock

import httpx

from onefold import AsyncOnefold, Onefold, Request
from onefold._http.route_policy import Settings
from onefold._idempotency.cache.answer_cache import AnswerCache, CacheQuestion, CacheSettings
from onefold._idempotency.locked_store import LockedStore
from onefold.telemetry import CacheLooked, CacheStored, Event
from tests.support.patience import PATIENCE_S

Colour: TypeAlias = Literal["asyncio", "threads"]
COLOURS: Final[tuple[Colour, ...]] = ("asyncio", "threads")
BODY: Final = {"cents": 500}

_PAY: Final = "INSERT INTO payment VALUES (?, 500)"
_runs = count(1)


class Refused(Exception):
    """What a handler raises."""


class Stage:
    """An application, as a process of its own would have it. Several may be on one database."""

    def __init__(
        self,
        colour: Colour,
        database: Path,
        cache: CacheSettings | None,
        /,
        *,
        settings: Settings | None = None,
        **parts: Any,
    ) -> None:
        self.colour, self.database = colour, database
        self.events: list[Event] = []
        #: Who may ask at all.
        self.allowed = {"acme", "globex"}
        #: Called with each event, after it was noted.
        self.heard: Callable[[Event], None] = lambda event: None
        #: Called by the handler, with the account.
        self.during: Callable[[str], None] = lambda account: None
        with sqlite3.connect(database) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS payment (account TEXT, cents INTEGER)")
        connection.close()
        make = AsyncOnefold if colour == "asyncio" else Onefold
        self.once: Any = make(
            database, principal=_account, authorize=self._may, cache=cache, listener=self._hear,
            defaults={"required": True, **(settings or {})}, **parts,
        )  # fmt: skip
        routes = {"POST /payments": self.once.policy(), "POST /uncached": self.once.policy(cached=False)}
        self._runner = asyncio.Runner()
        if colour == "asyncio":
            self._app = self.once.asgi(self._asgi, routes)
        else:
            self._app = self.once.wsgi(self._wsgi, routes)
        self._claims = 0
        real = LockedStore.claim

        async def claim(store: LockedStore, ask: Any) -> Any:
            self._claims += store is self.once._layer.store
            return await real(store, ask)

        self._patch = mock.patch.object(LockedStore, "claim", claim)

    def __enter__(self) -> Self:
        self._patch.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._patch.stop()
        if self.colour == "asyncio":
            self._runner.run(self.once.close())
        else:
            self.once.close()
        self._runner.close()

    @property
    def cache(self) -> AnswerCache:
        found: AnswerCache = self.once._layer.cached.cache
        return found

    # --- what clients do -----------------------------------------------------------------------------------

    def post(self, key: str, body: object = BODY, *, account: str = "acme", path: str = "/payments") -> httpx.Response:
        [answer] = self.post_at_once([(key, body, account)], path=path)
        return answer

    def post_at_once(
        self, asked: Iterable[tuple[str, object, str]], *, path: str = "/payments"
    ) -> list[httpx.Response]:
        if self.colour == "asyncio":
            return self._runner.run(self._post_all(list(asked), path))

        with ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda each: self.post_here(*each, path=path), asked, timeout=PATIENCE_S))

    def post_here(
        self, key: str, body: object = BODY, account: str = "acme", *, path: str = "/payments"
    ) -> httpx.Response:
        """On threads: on this one."""
        with httpx.Client(transport=httpx.WSGITransport(self._app), base_url="http://shop", timeout=None) as client:
            return client.post(path, json=body, headers=_headers(key, account))

    async def _post_all(self, asked: list[tuple[str, object, str]], path: str) -> list[httpx.Response]:
        transport = httpx.ASGITransport(self._app)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop", timeout=None) as client:
            posts = [client.post(path, json=body, headers=_headers(key, account)) for key, body, account in asked]
            return await asyncio.gather(*posts)

    def run(self, question: Any) -> Any:
        """The answer of the cache, or of anything that is awaited on a loop."""
        if self.colour == "asyncio":
            return self._runner.run(await_found(question))
        found = question()
        return found.wait() if isinstance(found, CacheQuestion) else found

    # --- what can be seen ----------------------------------------------------------------------------------

    @property
    def effects(self) -> int:
        connection = sqlite3.connect(self.database)
        try:
            [[found]] = connection.execute("SELECT count(*) FROM payment").fetchall()
            return int(found)
        finally:
            connection.close()

    @property
    def claims(self) -> int:
        """How often the database was asked since the last time."""
        found, self._claims = self._claims, 0
        return found

    @property
    def looks(self) -> list[str]:
        return [event.outcome for event in self.events if isinstance(event, CacheLooked)]

    @property
    def stores(self) -> list[str]:
        return [event.outcome for event in self.events if isinstance(event, CacheStored)]

    # --- the application -----------------------------------------------------------------------------------

    def _hear(self, event: Event) -> None:
        self.events.append(event)
        self.heard(event)

    def _may(self, request: Request) -> bool:
        return _account(request) in self.allowed

    async def _asgi(self, scope: Any, receive: Any, send: Any) -> None:
        message = await receive()
        account = dict(scope["headers"])[b"x-account"].decode()
        await scope["onefold.transaction"].connection.execute(_PAY, (account,))
        await asyncio.to_thread(self.during, account)
        status, body = self._answer(json.loads(message["body"]), account)
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": body})

    def _wsgi(self, environ: Any, start_response: Any) -> list[bytes]:
        account = environ["HTTP_X_ACCOUNT"]
        environ["onefold.transaction"].connection.execute(_PAY, (account,))
        self.during(account)
        status, body = self._answer(json.loads(environ["wsgi.input"].read()), account)
        start_response(f"{status} Told", [("content-type", "application/json")])
        return [body]

    def _answer(self, asked: dict[str, Any], account: str) -> tuple[int, bytes]:
        if asked.get("raises"):
            raise Refused
        said = {"payment": next(_runs), "account": account, "padding": "x" * asked.get("padding", 0)}
        return asked.get("status", 201), json.dumps(said).encode()


async def await_found(question: Callable[[], Any]) -> Any:
    found = question()
    return await found if isinstance(found, Awaitable) else found


def _headers(key: str, account: str) -> dict[str, str]:
    return {"idempotency-key": key, "x-account": account}


def _account(request: Request) -> str | None:
    return request.header("x-account")
