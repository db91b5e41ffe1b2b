"""A call leaves nothing behind that only the garbage collector could free, beyond what its HTTP client does itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest
import requests

import onefold
from onefold.testing.scripted_server import Reply, ScriptedServer
from tests.support.collector import left_to_collector

CALLS = 5


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    monkeypatch.chdir(tmp_path)
    with ScriptedServer([Reply(body=b"done")] * (2 * CALLS)) as server:
        yield server


async def test_a_call_with_aiohttp(server: ScriptedServer) -> None:
    async def call(session: aiohttp.ClientSession) -> None:
        for _ in range(CALLS):
            async with session.post(server.url, data=b"x") as response:
                assert await response.read() == b"done"

    async with aiohttp.ClientSession(middlewares=(onefold.Retrying().middleware,)) as session:
        await call(session)
        with left_to_collector() as left:
            await call(session)
    assert left == []


def test_a_call_with_requests(server: ScriptedServer) -> None:
    def call(session: requests.Session) -> None:
        for _ in range(CALLS):
            assert session.post(server.url, data=b"x").content == b"done"

    with requests.Session() as session:
        session.mount("http://", onefold.retrying(requests.adapters.HTTPAdapter()))
        call(session)
        with left_to_collector() as left:
            call(session)
    assert left == []


def test_a_call_of_a_function() -> None:
    @onefold.Retrying().calls("ledger", on=ConnectionError)
    def read() -> int:
        return 1

    assert read() == 1
    with left_to_collector() as left:
        for _ in range(CALLS):
            read()
    assert left == []


async def test_a_call_of_a_coroutine_function() -> None:
    @onefold.Retrying().calls("ledger", on=ConnectionError)
    async def read() -> int:
        return 1

    assert await read() == 1
    with left_to_collector() as left:
        for _ in range(CALLS):
            await read()
    assert left == []
