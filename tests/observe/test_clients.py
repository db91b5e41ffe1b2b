"""Metrics of clients: each is moved by calls that are made."""

from __future__ import annotations

import httpx
import pytest

from onefold import Retrying, RetryPolicy
from onefold.clients import BreakerConfig
from onefold.errors import CallNotMade
from onefold.testing.no_waiting import no_waiting
from onefold.testing.scripted_server import Reply, ScriptedServer
from tests.observe.measured import Measured


def test_attempts_retries_and_calls_are_counted_by_host(measured: Measured) -> None:
    retrying = Retrying(RetryPolicy(attempts_max=3), listener=measured.listeners)
    failing, throttled = Reply(500), Reply(429)
    with no_waiting(), ScriptedServer([failing, throttled, Reply(200), failing, failing, failing]) as server:
        host = server.url.removeprefix("http://").rstrip("/")
        with retrying.around(httpx.Client()) as client:
            assert client.get(f"{server.url}/secret-path?q=secret").status_code == 200
            assert client.get(server.url).status_code == 500
    assert measured.values("onefold_client_attempts_total") == {(host, "failure"): 5, (host, "success"): 1}
    assert measured.values("onefold_client_calls_total") == {(host, "success"): 1, (host, "failure"): 1}
    assert measured.values("onefold_client_retries_total") == {("failure", host): 3, ("throttled", host): 1}
    assert measured.values("onefold_client_stops_total") == {(host, "attempts"): 1}
    assert measured.value("onefold_client_attempt_duration_seconds_count", host=host) == 6
    assert "secret" not in measured.exposition


def test_the_state_of_a_breaker_and_an_empty_budget_are_shown(measured: Measured) -> None:
    retrying = Retrying(RetryPolicy(breaker=BreakerConfig(calls_least=2)), listener=measured.listeners)

    def fail() -> None:
        raise ConnectionError("down")

    call = retrying.calls("ledger", on=OSError)(fail)
    with no_waiting():
        for _ in range(3):
            with pytest.raises((ConnectionError, CallNotMade)):
                call()
    assert measured.value("onefold_client_breaker", host="ledger") == 2
    assert (measured.value("onefold_client_stops_total", host="ledger", reason="breaker") or 0) >= 1
    spent = Retrying(RetryPolicy(attempts_max=10, breaker=None), listener=measured.listeners)
    with no_waiting():
        for _ in range(20):
            with pytest.raises(ConnectionError):
                spent.calls("stock", on=OSError)(fail)()
    assert (measured.value("onefold_client_stops_total", host="stock", reason="budget") or 0) >= 1
