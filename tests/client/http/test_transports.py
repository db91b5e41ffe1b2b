"""What can be made to retry besides a plain transport: mocks, applications, proxies, HTTP/2, clients made already."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from types import ModuleType
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

import onefold
from onefold import Retrying, RetryPolicy
from onefold.clients import report_of
from onefold.errors import ConfigurationError
from onefold.testing.scripted_server import Reply, Reset, ScriptedServer
from tests.client.http.h2_server import H2Server
from tests.client.http.test_keys import keys

VENDORS = pytest.mark.parametrize("vendor", [httpx, httpx2], ids=lambda vendor: vendor.__name__)


class Failing:
    """Answers 503, then 201, and keeps the keys it sees."""

    def __init__(self, vendor: ModuleType) -> None:
        self._vendor: Any = vendor
        self.keys: list[str] = []

    def __call__(self, request: Any) -> Any:
        self.keys.append(request.headers["idempotency-key"])
        return self._vendor.Response(503 if len(self.keys) == 1 else 201, content=request.content)


@VENDORS
def test_a_mock_retries_on_threads(vendor: Any, patient: RetryPolicy) -> None:
    mock = Failing(vendor)
    transport = onefold.retrying(vendor.MockTransport(mock), patient, generate_keys=True)
    with vendor.Client(transport=transport) as client:
        answer = client.post("http://host/", content=b"body")
    assert (answer.status_code, answer.content) == (201, b"body")
    assert len(mock.keys) == 2
    assert len(set(mock.keys)) == 1


@VENDORS
async def test_the_same_mock_retries_on_asyncio(vendor: Any, patient: RetryPolicy) -> None:
    mock = Failing(vendor)
    transport = onefold.retrying(vendor.MockTransport(mock), patient, generate_keys=True)
    async with vendor.AsyncClient(transport=transport) as client:
        answer = await client.post("http://host/", content=b"body")
    assert (answer.status_code, answer.content) == (201, b"body")
    assert len(set(mock.keys)) == 1


@VENDORS
async def test_a_transport_in_the_wrong_kind_of_client_is_refused(vendor: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"HTTPTransport cannot serve httpx.AsyncClient: give it onefold.retr"):
        await vendor.AsyncClient(transport=onefold.retrying(vendor.HTTPTransport())).get("http://host/")
    with pytest.raises(ConfigurationError, match=r"AsyncHTTPTransport cannot serve httpx.Client: give it onefold.retr"):
        vendor.Client(transport=onefold.retrying(vendor.AsyncHTTPTransport())).__enter__()


@VENDORS
async def test_an_asgi_application_is_retried_and_its_errors_are_its_own(vendor: Any, patient: RetryPolicy) -> None:
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await asyncio.sleep(0)
        seen.append(dict(scope["headers"])[b"idempotency-key"].decode())
        if scope["path"] == "/broken":
            raise LookupError("of the application")
        await send({"type": "http.response.start", "status": 503 if len(seen) == 1 else 201, "headers": []})
        await send({"type": "http.response.body", "body": b"done"})

    transport = onefold.retrying(vendor.ASGITransport(app=app), patient, generate_keys=True)
    async with vendor.AsyncClient(transport=transport, base_url="http://host") as client:
        answer = await client.post("/")
        with pytest.raises(LookupError):
            await client.post("/broken")
    assert (answer.status_code, answer.content) == (201, b"done")
    assert len(seen) == 3
    assert len(set(seen)) == 2


@VENDORS
def test_a_wsgi_application_is_retried(vendor: Any, patient: RetryPolicy) -> None:
    seen: list[str] = []

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        seen.append(environ["HTTP_IDEMPOTENCY_KEY"])
        start_response("503 Busy" if len(seen) == 1 else "201 Created", [])
        return [b"done"]

    transport = onefold.retrying(vendor.WSGITransport(app=app), patient, generate_keys=True)
    with vendor.Client(transport=transport, base_url="http://host") as client:
        answer = client.post("/")
    assert (answer.status_code, answer.content, len(set(seen))) == (201, b"done", 1)


@VENDORS
async def test_a_call_through_a_proxy_is_retried(vendor: Any, patient: RetryPolicy) -> None:
    with ScriptedServer([Reset(), Reply(503), Reply(201)]) as proxy:
        transport = onefold.retrying(vendor.HTTPTransport(proxy=proxy.url), patient, generate_keys=True)
        with vendor.Client(transport=transport) as client:
            assert client.post("http://host.invalid/a").status_code == 201
        transport = onefold.retrying(vendor.AsyncHTTPTransport(proxy=proxy.url), patient, generate_keys=True)
        async with vendor.AsyncClient(transport=transport) as client:
            assert (await client.post("http://host.invalid/a")).status_code == 201
    assert [seen.target for seen in proxy.requests] == ["http://host.invalid/a"] * 4
    assert len(set(keys(proxy.requests))) == 2


@VENDORS
async def test_a_proxy_of_the_environment_is_kept_where_a_client_is_wrapped(
    vendor: Any, patient: RetryPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy", "HTTPS_PROXY", "https_proxy", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    with ScriptedServer([Reply(503), Reply(201)]) as proxy:
        monkeypatch.setenv("HTTP_PROXY", proxy.url)
        with onefold.retrying(vendor.Client(), patient, generate_keys=True) as client:
            assert client.post("http://host.invalid/a").status_code == 201
        async with onefold.retrying(vendor.AsyncClient(), patient, generate_keys=True) as client:
            assert (await client.post("http://host.invalid/a")).status_code == 201
    assert [seen.target for seen in proxy.requests] == ["http://host.invalid/a"] * 3
    assert len(set(keys(proxy.requests))) == 2


@VENDORS
async def test_a_client_that_was_made_already_is_made_to_retry(vendor: Any, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(503), Reply(201), Reply(503), Reply(201)]) as server:
        made = vendor.Client(headers={"X-Mine": "1"}, base_url=server.url, trust_env=False)
        with onefold.retrying(made, patient, generate_keys=True) as client:
            assert client is made
            answer = client.post("/")
        async with Retrying(patient, generate_keys=True).around(
            vendor.AsyncClient(base_url=server.url, trust_env=False)
        ) as tasks:
            assert (await tasks.post("/")).status_code == 201
    report = report_of(answer)
    assert report is not None
    assert (answer.status_code, report.attempts) == (201, 2)
    assert [seen.headers.get("x-mine") for seen in server.requests] == ["1", "1", None, None]


@VENDORS
def test_a_client_that_retries_already_is_refused(vendor: Any) -> None:
    client = onefold.retrying(vendor.Client())
    with pytest.raises(ConfigurationError, match="wrap it once"):
        onefold.retrying(client)
    with pytest.raises(ConfigurationError, match="retries=2"):
        onefold.retrying(vendor.Client(transport=vendor.HTTPTransport(retries=2)))
    client.close()


@VENDORS
def test_a_client_that_hides_its_transports_is_refused(vendor: Any) -> None:
    client = vendor.Client()
    mounts = client.__dict__.pop("_mounts")
    with pytest.raises(ConfigurationError, match="make the client with transport="):
        onefold.retrying(client)
    client._mounts = mounts
    client.close()


def test_a_session_that_was_made_already_is_made_to_retry(patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(503), Reply(201)]) as server:
        made = requests.Session()
        made.trust_env = False
        with onefold.retrying(made, patient, generate_keys=True) as session:
            assert session is made
            assert session.post(server.url).status_code == 201
        with pytest.raises(ConfigurationError, match="wrap it once"):
            onefold.retrying(made)
    assert len(set(keys(server.requests))) == 1


async def test_a_session_of_aiohttp_that_was_made_already_is_refused_with_the_way_out() -> None:
    async with aiohttp.ClientSession() as session:
        anything: Any = session
        with pytest.raises(ConfigurationError, match=r"takes Retrying\(\).middleware when its session is made"):
            onefold.retrying(anything)


@VENDORS
async def test_http_2_is_retried(vendor: Any, patient: RetryPolicy) -> None:
    with H2Server([None, 503, 201, 503, 201]) as server:
        transport = onefold.retrying(vendor.HTTPTransport(http1=False, http2=True), patient, generate_keys=True)
        with vendor.Client(transport=transport) as client:
            answer = client.post(server.url, content=b"body")
        transport = onefold.retrying(vendor.AsyncHTTPTransport(http1=False, http2=True), patient, generate_keys=True)
        async with vendor.AsyncClient(transport=transport) as client:
            on_tasks = await client.post(server.url, content=b"body")
    assert (answer.status_code, answer.http_version) == (201, "HTTP/2")
    assert (on_tasks.status_code, on_tasks.http_version) == (201, "HTTP/2")
    assert len(server.keys) == 5
    assert len(set(server.keys[:3])) == len(set(server.keys[3:])) == 1


def test_connections_of_http2_which_calls_share_are_not_given_the_limits_of_one_call() -> None:
    shared: Any = httpx.HTTPTransport(http2=True)
    alone: Any = httpx.HTTPTransport()
    before = [transport._pool._network_backend for transport in (shared, alone)]
    for transport in (shared, alone):
        onefold.retrying(transport)
    after = [transport._pool._network_backend for transport in (shared, alone)]
    assert [ours is theirs for ours, theirs in zip(after, before, strict=True)] == [True, False]
