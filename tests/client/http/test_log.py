"""What clients log: once for each change of a host, and nothing of what is sent."""

from __future__ import annotations

import logging

import pytest

from onefold import Retrying, RetryPolicy
from onefold.errors import CallNotMade
from onefold.testing.scripted_server import Act, Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind


def lines(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(each.levelname, each.message.partition(":")[2].partition(": ")[2]) for each in caplog.records
            if each.name == "onefold.client"]  # fmt: skip


async def test_a_host_that_has_to_be_asked_again_is_logged_once_and_once_more_when_it_works(
    kind: Kind, patient: RetryPolicy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "onefold")
    script: list[Act] = [Reset(), Reply(503), Reply(200), Reply(503), Reply(200), Reply(200), Reply(200)]
    with ScriptedServer(script) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            for _ in range(4):
                await caller.send("POST", server.url, json={"card": "4242"}, headers={"Authorization": "hunter2"})
    first, second = lines(caplog)
    assert first[0] == "WARNING"
    assert "is retried in" in first[1]
    assert second == ("INFO", "calls succeed at once again")
    assert "hunter2" not in caplog.text
    assert "4242" not in caplog.text


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
