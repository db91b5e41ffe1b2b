"""The caller's request stays the caller's: what a call adds to it is gone when it is sent again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import aiohttp
import httpx
import pytest
import requests
from requests.adapters import HTTPAdapter

import onefold
from onefold import Retrying, RetryPolicy
from onefold.testing.scripted_server import Reply, ScriptedServer
from tests.client.http.clients import Kind, only
from tests.client.http.test_keys import keys


def opened(kind: Kind, retrying: Retrying) -> Any:
    vendor: Any = kind.vendor
    if kind.on_tasks:
        return vendor.AsyncClient(transport=retrying.around(vendor.AsyncHTTPTransport()), trust_env=False)
    return vendor.Client(transport=retrying.around(vendor.HTTPTransport()), trust_env=False)


@only(lambda kind: kind.has_options)
async def test_a_request_of_httpx_is_not_changed(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(503), Reply(201)]) as server:
        client = opened(kind, Retrying(patient, generate_keys=True))
        request = client.build_request(
            "POST", server.url, json={"a": 1}, timeout=40, extensions={"deadline_s": 20, "mine": 1}
        )
        before = (list(request.headers.raw), dict(request.extensions))
        for _ in range(2):
            await client.send(request) if kind.on_tasks else client.send(request)
        await client.aclose() if kind.on_tasks else client.close()
    assert (list(request.headers.raw), dict(request.extensions)) == before
    first, second, third = keys(server.requests)
    assert first == second != third


@only(lambda kind: kind.has_options)
async def test_a_redirect_has_the_time_limits_that_the_caller_set(kind: Kind, patient: RetryPolicy) -> None:
    seen: list[dict[str, float]] = []

    def answer(request: Any) -> Any:
        seen.append(dict(request.extensions["timeout"]))
        there = request.url.path == "/new"
        return kind.vendor.Response(201 if there else 307, headers={} if there else {"Location": "/new"})

    vendor: Any = kind.vendor
    transport = Retrying(patient, generate_keys=True).around(vendor.MockTransport(answer))
    with onefold.deadline(0.5) as at:
        if kind.on_tasks:
            async with vendor.AsyncClient(transport=transport, follow_redirects=True, timeout=9) as client:
                await client.post("http://host/old")
        else:
            with vendor.Client(transport=transport, follow_redirects=True, timeout=9) as client:
                client.post("http://host/old")
    assert at > 0
    assert [limit < 9 for limits in seen for limit in limits.values()] == [True] * 8
    assert seen[1] != seen[0], "what was left for the first was taken for the limit of the second"


def test_a_prepared_request_of_requests_can_be_sent_again_with_another_body(patient: RetryPolicy) -> None:
    session = requests.Session()
    session.trust_env = False
    session.mount("http://", Retrying(patient, generate_keys=True).around(HTTPAdapter()))
    with ScriptedServer([Reply(503), Reply(201)]) as server, session:
        prepared = session.prepare_request(requests.Request("POST", server.url, data=b"1"))
        before = dict(prepared.headers)
        session.send(prepared)
        assert dict(prepared.headers) == before
        prepared.prepare_body(b"2", None)
        session.send(prepared)
    first, second, third = keys(server.requests)
    assert first == second != third


async def test_a_middleware_of_aiohttp_can_send_its_request_again_with_another_body(patient: RetryPolicy) -> None:
    async def twice(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        before = dict(request.headers)
        (await handler(request)).release()
        assert dict(request.headers) == before
        await request.update_body(b"2")
        return await handler(request)

    middlewares: list[aiohttp.ClientMiddlewareType] = [twice, Retrying(patient, generate_keys=True).middleware]
    with ScriptedServer([Reply(503), Reply(201)]) as server:
        async with aiohttp.ClientSession(middlewares=middlewares) as session:
            (await session.post(server.url, data=b"1")).release()
    first, second, third = keys(server.requests)
    assert first == second != third


@pytest.mark.parametrize("seekable", [True, False])
def test_a_file_is_sent_again_from_its_beginning(patient: RetryPolicy, tmp_path: Path, seekable: bool) -> None:
    place = tmp_path / "upload.bin"
    place.write_bytes(b"x" * 200_000)
    transport = Retrying(patient, generate_keys=True, journal=tmp_path / "journal.db").around(httpx.HTTPTransport())
    with (
        ScriptedServer([Reply(503), Reply(201)]) as server,
        httpx.Client(transport=transport) as client,
        place.open("rb") as file,
    ):
        if not seekable:
            file.seekable = lambda: False  # type: ignore[method-assign]
            with pytest.raises(onefold.errors.BodyNotReplayable):
                client.post(server.url, content=file)
            return
        client.post(server.url, content=file)
        file.seek(0)
        with onefold.intent("upload:1"):
            client.post(server.url, content=file)
    assert {len(seen.body) for seen in server.requests} == {200_000}
    assert len(server.requests) == 3
