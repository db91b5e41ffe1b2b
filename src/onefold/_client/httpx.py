"""httpx, and httpx2, which differs from it in its name: transports that retry.

The two are not imported here: a transport brings the module it comes from.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Coroutine
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Self

from onefold._client.http_call_factory import HttpCallFactory
from onefold._client.http_call_runner import make_call, make_call_async
from onefold._client.httpx_request import AsyncHttpxRequest, HttpxRequest
from onefold._client.socket_limits import limit_transport
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    import httpx


class RetryingTransport:
    """A transport for `httpx.Client`, `httpx.AsyncClient`, or both, as the one that it is made around."""

    def __init__(self, inner: Any, vendor: ModuleType, calls: HttpCallFactory, *, owns: bool) -> None:
        _refuse_retries(inner)
        self._inner = inner
        self._vendor = vendor
        self._calls = calls
        self._owns = owns
        self._on_threads = isinstance(inner, vendor.BaseTransport)
        self._on_tasks = isinstance(inner, vendor.AsyncBaseTransport)
        if self._on_threads:
            limit_transport(inner)

    # --- on threads --------------------------------------------------------------------------------------

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if not self._on_threads:
            raise self._wrong_client_error("httpx.Client", "httpx.HTTPTransport()")
        call = self._calls.begin(HttpxRequest(request, self._inner, self._vendor), time.monotonic())
        response: httpx.Response = make_call(call, self._calls.store)
        return response

    def close(self) -> None:
        if self._on_threads:
            self._inner.close()
        if self._owns:
            self._calls.store.close()

    def __enter__(self) -> Self:
        if not self._on_threads:
            raise self._wrong_client_error("httpx.Client", "httpx.HTTPTransport()")
        self._inner.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inner.__exit__(kind, error, trace)
        if self._owns:
            self._calls.store.close()

    # --- on asyncio --------------------------------------------------------------------------------------

    def handle_async_request(self, request: httpx.Request) -> Coroutine[Any, Any, httpx.Response]:
        if not self._on_tasks:
            raise self._wrong_client_error("httpx.AsyncClient", "httpx.AsyncHTTPTransport()")
        call = self._calls.begin(AsyncHttpxRequest(request, self._inner, self._vendor), time.monotonic())
        return make_call_async(call, self._calls.store)

    async def aclose(self) -> None:
        if self._on_tasks:
            await self._inner.aclose()
        if self._owns:
            await self._calls.store.aclose()

    async def __aenter__(self) -> Self:
        if not self._on_tasks:
            raise self._wrong_client_error("httpx.AsyncClient", "httpx.AsyncHTTPTransport()")
        await self._inner.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._inner.__aexit__(kind, error, trace)
        if self._owns:
            await self._calls.store.aclose()

    def _wrong_client_error(self, client: str, transport: str) -> ConfigurationError:
        return ConfigurationError(
            f"{type(self._inner).__qualname__} cannot serve {client}: give it onefold.retrying({transport})"
        )


def vendor_of(inner: object) -> ModuleType | None:
    """The module that a transport is made for, httpx or httpx2; None if it is not a transport of theirs."""
    for name in ("httpx", "httpx2"):
        vendor = sys.modules.get(name)
        if vendor is not None and isinstance(inner, vendor.BaseTransport | vendor.AsyncBaseTransport):
            return vendor
    return None


def wrap_client(client: Any, wrap: Callable[[Any], Any]) -> None:
    """Let a client that was made already send through transports that retry: its own, and those of its proxies and
    mounts. httpx has no public name for them; versions of it that keep them elsewhere are refused."""
    transport, mounts = getattr(client, "_transport", None), getattr(client, "_mounts", None)
    if transport is None or not isinstance(mounts, dict):
        raise ConfigurationError(
            f"this version of {type(client).__module__} does not show the transports of its clients: make the client "
            "with transport=onefold.retrying(...)"
        )
    wrapped = {pattern: None if mounted is None else wrap(mounted) for pattern, mounted in mounts.items()}
    client._transport, client._mounts = wrap(transport), wrapped


def is_client(given: object) -> bool:
    """It is a client of httpx or httpx2, not a transport."""
    return any(
        vendor is not None and isinstance(given, vendor.Client | vendor.AsyncClient)
        for vendor in (sys.modules.get("httpx"), sys.modules.get("httpx2"))
    )


def _refuse_retries(inner: object) -> None:
    """httpx's own `retries` connect again without asking the budget, the breaker or the deadline."""
    if retries := getattr(getattr(inner, "_pool", None), "_retries", 0):
        raise ConfigurationError(
            f"the transport connects again by itself (retries={retries}), and attempts would multiply: give it none"
        )
