"""Six HTTP clients with one small interface, so that a test is written once and run against each of them."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Protocol

import aiohttp
import httpx
import httpx2
import pytest
import requests
from requests.adapters import HTTPAdapter

from onefold import Retrying
from onefold.clients import CallReport, report_of

#: httpx reads all the certificates of the machine for every transport, which takes longer than a test.
_NO_CERTIFICATES = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


@dataclass(frozen=True, slots=True)
class Reply:
    """What came back."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    report: CallReport | None


class Caller(Protocol):
    """A client whose calls are retried. Clients for threads block the loop: the servers of the tests have their own."""

    async def send(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: Any = None,
        json: Any = None,
        form: Mapping[str, str] | None = None,
        files: Mapping[str, Any] | None = None,
        options: Mapping[str, Any] | None = None,
        follow: bool = False,
    ) -> Reply: ...

    def pieces(self, url: str) -> AsyncIterator[bytes]:
        """GET, and the body as it arrives."""
        ...


@dataclass(frozen=True, slots=True)
class Kind:
    """One of the six."""

    name: str
    #: What the vendor raises where there is no connection, and where there is no answer in time.
    no_connection: type[Exception]
    no_time: type[Exception]
    has_options: bool
    on_tasks: bool
    vendor: ModuleType

    def opened(self, retrying: Retrying, *, connections_max: int = 10) -> AbstractAsyncContextManager[Caller]:
        return _OPENERS[self.name](self, retrying, connections_max)

    def __str__(self) -> str:
        return self.name


KINDS = (
    Kind("httpx", httpx.ConnectError, httpx.TimeoutException, True, False, httpx),
    Kind("httpx-async", httpx.ConnectError, httpx.TimeoutException, True, True, httpx),
    Kind("httpx2", httpx2.ConnectError, httpx2.TimeoutException, True, False, httpx2),
    Kind("httpx2-async", httpx2.ConnectError, httpx2.TimeoutException, True, True, httpx2),
    Kind("requests", requests.ConnectionError, requests.Timeout, False, False, requests),
    Kind("aiohttp", aiohttp.ClientConnectionError, TimeoutError, False, True, aiohttp),
)


class _Httpx:
    def __init__(self, client: Any, on_tasks: bool) -> None:
        self._client = client
        self._on_tasks = on_tasks

    async def send(self, method: str, url: str, **more: Any) -> Reply:
        arguments = {
            "headers": more.get("headers"),
            "content": more.get("content"),
            "json": more.get("json"),
            "data": more.get("form"),
            "files": more.get("files"),
            "extensions": more.get("options"),
            "follow_redirects": more.get("follow", False),
        }
        response = self._client.request(method, url, **arguments)
        if self._on_tasks:
            response = await response
        return Reply(response.status_code, response.content, response.headers, report_of(response))

    async def pieces(self, url: str) -> AsyncIterator[bytes]:
        if self._on_tasks:
            async with self._client.stream("GET", url) as response:
                async for piece in response.aiter_bytes():
                    yield piece
        else:
            with self._client.stream("GET", url) as response:
                for piece in response.iter_bytes():
                    yield piece


class _Requests:
    def __init__(self, session: requests.Session) -> None:
        self._session = session

    async def send(self, method: str, url: str, **more: Any) -> Reply:
        assert not more.get("options"), "requests has no place for options"
        arguments = {
            "headers": more.get("headers"),
            "data": more.get("form") if more.get("content") is None else more["content"],
            "json": more.get("json"),
            "files": more.get("files"),
            "allow_redirects": more.get("follow", False),
        }
        response = self._session.request(method, url, **arguments)
        return Reply(response.status_code, response.content, response.headers, report_of(response))

    async def pieces(self, url: str) -> AsyncIterator[bytes]:
        with self._session.get(url, stream=True) as response:
            for piece in response.iter_content(None):
                yield piece


class _Aiohttp:
    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session

    async def send(self, method: str, url: str, **more: Any) -> Reply:
        assert not more.get("options"), "aiohttp has no place for options"
        data = more.get("form") if more.get("content") is None else more["content"]
        if (files := more.get("files")) is not None:
            data = aiohttp.FormData(more.get("form") or {})
            for name, file in files.items():
                data.add_field(name, file, filename=name)
        if isinstance(data, Iterator) and not hasattr(data, "read"):
            data = _awaited(data)
        async with self._session.request(
            method,
            url,
            headers=more.get("headers"),
            data=data,
            json=more.get("json"),
            allow_redirects=more.get("follow", False),
        ) as response:
            return Reply(response.status, await response.read(), response.headers, report_of(response))

    async def pieces(self, url: str) -> AsyncIterator[bytes]:
        async with self._session.get(url) as response:
            async for piece in response.content.iter_any():
                yield piece


async def _awaited(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


@asynccontextmanager
async def _open_httpx(kind: Kind, retrying: Retrying, connections_max: int) -> AsyncIterator[Caller]:
    vendor: Any = kind.vendor
    limits = vendor.Limits(max_connections=connections_max, max_keepalive_connections=connections_max)
    if kind.on_tasks:
        transport = retrying.around(vendor.AsyncHTTPTransport(verify=_NO_CERTIFICATES, limits=limits))
        async with vendor.AsyncClient(transport=transport, trust_env=False) as client:
            yield _Httpx(client, on_tasks=True)
    else:
        transport = retrying.around(vendor.HTTPTransport(verify=_NO_CERTIFICATES, limits=limits))
        with vendor.Client(transport=transport, trust_env=False) as client:
            yield _Httpx(client, on_tasks=False)


@asynccontextmanager
async def _open_requests(_: Kind, retrying: Retrying, connections_max: int) -> AsyncIterator[Caller]:
    with requests.Session() as session:
        session.trust_env = False
        session.mount("http://", retrying.around(HTTPAdapter(pool_maxsize=connections_max, pool_block=True)))
        yield _Requests(session)


@asynccontextmanager
async def _open_aiohttp(_: Kind, retrying: Retrying, connections_max: int) -> AsyncIterator[Caller]:
    connector = aiohttp.TCPConnector(limit=connections_max)
    async with aiohttp.ClientSession(connector=connector, middlewares=[retrying.middleware]) as session:
        yield _Aiohttp(session)


_OPENERS = {
    "httpx": _open_httpx,
    "httpx-async": _open_httpx,
    "httpx2": _open_httpx,
    "httpx2-async": _open_httpx,
    "requests": _open_requests,
    "aiohttp": _open_aiohttp,
}


def only(chosen: Callable[[Kind], bool]) -> pytest.MarkDecorator:
    """For tests that make sense with some of the clients."""
    return pytest.mark.parametrize("kind", [kind for kind in KINDS if chosen(kind)], ids=lambda kind: kind.name)
