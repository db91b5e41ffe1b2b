"""What clients log: once for each change of a host, and nothing of what is sent."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

import pytest

from onefold import Retrying, RetryPolicy
from onefold._client import host_log
from onefold.clients import BreakerConfig
from onefold.errors import CallNotMade
from onefold.testing.scripted_server import Act, Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind, only


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(each.levelname, each.message.partition(":")[2].partition(": ")[2]) for each in caplog.records
            if each.name == "onefold.client"]  # fmt: skip


async def test_a_host_that_has_to_be_asked_again_is_logged_once_and_once_more_when_it_works(
    kind: Kind, patient: RetryPolicy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_log, "CALM_S", 0.0)
    caplog.set_level(logging.INFO, "onefold")
    script: list[Act] = [Reset(), Reply(503), Reply(200), Reply(503), Reply(200), Reply(200), Reply(200)]
    with ScriptedServer(script) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            for _ in range(4):
                await caller.send("POST", server.url, json={"card": "4242 4242"}, headers={"Authorization": "hunter2"})
    first, second = lines(caplog)
    assert first[0] == "WARNING"
    assert "is retried in" in first[1]
    assert second == ("INFO", "calls succeed at once again")
    assert "hunter2" not in caplog.text
    assert "4242 4242" not in caplog.text


async def test_a_host_that_fails_now_and_then_is_logged_once(
    kind: Kind, patient: RetryPolicy, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not with each of its failures, and once more with each of its successes."""
    monkeypatch.setattr(host_log, "CALM_S", 1e9)
    caplog.set_level(logging.INFO, "onefold")
    with ScriptedServer([Reply(503), Reply(200), Reply(200)] * 10) as server:
        async with kind.opened(Retrying(patient)) as caller:
            for _ in range(20):
                await caller.send("GET", server.url)
    assert [level for level, _ in lines(caplog)] == ["WARNING"]


async def test_a_breaker_that_opens_is_logged_once(kind: Kind, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "onefold")
    with ScriptedServer([Reply(500)]) as server:
        async with kind.opened(Retrying(RetryPolicy(attempts_max=1), generate_keys=True)) as caller:
            refused = 0
            for _ in range(100):
                try:
                    await caller.send("POST", server.url, json={})
                except CallNotMade:
                    refused += 1
    assert refused > 1
    assert len([line for level, line in lines(caplog) if level == "WARNING" and "breaker is open" in line]) == 1


@only(lambda kind: kind.name == "httpx")
async def test_a_breaker_that_opens_again_after_its_probes_is_no_further_warning(
    kind: Kind, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    policy = RetryPolicy(attempts_max=1, breaker=BreakerConfig(open_s=0.001, open_max_s=0.001))
    with ScriptedServer([Reply(500)]) as server:
        async with kind.opened(Retrying(policy)) as caller:
            while len([line for _, line in lines(caplog) if "breaker is open" in line]) < 3:
                await asyncio.sleep(0.002)
                with suppress(CallNotMade):
                    await caller.send("GET", server.url)
    assert [level for level, line in lines(caplog) if "breaker is open" in line] == ["WARNING", "INFO", "INFO"]
