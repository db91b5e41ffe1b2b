"""What the tests of the framework integrations share: one account, a client, a table of orders in a SQLite file."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

from onefold import Request


def account_of(request: Request) -> str | None:
    """The principal of these applications."""
    return request.header("x-account")


class Orders:
    """A SQLite file with a table of orders, seen from outside the application."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sql("CREATE TABLE orders (item TEXT NOT NULL UNIQUE)")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        with contextlib.closing(sqlite3.connect(self.path, isolation_level=None)) as file:
            return file.execute(statement).fetchall()

    @property
    def items(self) -> list[str]:
        return [item for (item,) in self.sql("SELECT item FROM orders ORDER BY item")]

    @property
    def records(self) -> int:
        [(count,)] = self.sql("SELECT count(*) FROM onefold_record")
        return int(count)


class Client:
    """A client with an account, for an ASGI application."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http

    async def post(
        self, path: str, json: object = None, *, key: str | None = None, method: str = "POST", **more: Any
    ) -> httpx.Response:
        headers = {"x-account": "acme", **({} if key is None else {"idempotency-key": key}), **more.pop("headers", {})}
        return await self.http.request(method, path, json=json, headers=headers, **more)

    async def get(self, path: str, **more: Any) -> httpx.Response:
        return await self.http.get(path, headers={"x-account": "acme"}, **more)


@contextlib.asynccontextmanager
async def calling(app: Any, *, root_path: str = "") -> AsyncIterator[Client]:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False, root_path=root_path)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop.test") as http:
        yield Client(http)


def replayed(response: httpx.Response) -> bool:
    return "idempotent-replayed" in response.headers


def problem(response: httpx.Response) -> str:
    """The last part of a problem's type; empty when it is not a problem of ours."""
    if response.headers.get("content-type") != "application/problem+json":
        return ""
    kind: str = response.json()["type"]
    return kind.removeprefix("urn:onefold:problem:")
