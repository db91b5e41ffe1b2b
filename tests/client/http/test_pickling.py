"""What crosses to another process: errors with their reports, sessions, and the settings of a client."""

from __future__ import annotations

import copy
import inspect
import pickle
from pathlib import Path
from typing import Any

import pytest
import requests
from requests.adapters import HTTPAdapter

import onefold
from onefold import Retrying, RetryPolicy
from onefold.clients import BreakerConfig, report_of
from onefold.db.sqlite import SqliteDatabase
from onefold.errors import CallNotMade, ConfigurationError
from onefold.testing.scripted_server import Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind
from tests.client.http.test_keys import keys

OPEN_AT_ONCE = RetryPolicy(attempts_max=1, breaker=BreakerConfig(calls_least=1, failure_share=0.01))


def sent(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


async def test_a_call_that_was_not_made_is_the_same_error_elsewhere(kind: Kind) -> None:
    with ScriptedServer([Reset()]) as server:
        async with kind.opened(Retrying(OPEN_AT_ONCE)) as caller:
            errors: list[Any] = []
            for _ in range(2):
                with pytest.raises(kind.no_connection if errors else Exception) as raised:
                    await caller.send("GET", server.url)
                errors.append(raised.value)
    for error in errors:
        for other in (sent(error), copy.copy(error)):
            assert str(other) == str(error)
            assert report_of(other) == report_of(error)
            assert other.__notes__ == error.__notes__
    assert isinstance(sent(errors[1]), CallNotMade)
    assert isinstance(sent(errors[1]), kind.no_connection)
    assert type(sent(errors[1])) is type(errors[1])


def test_what_a_function_s_calls_raise_can_be_sent() -> None:
    @Retrying(OPEN_AT_ONCE).calls("ledger", on=ConnectionError)
    def call() -> None:
        raise ConnectionError("down")

    for kind in (ConnectionError, CallNotMade):
        with pytest.raises(kind) as raised:
            call()
        other = sent(raised.value)
        assert type(other) is kind
        assert report_of(other) == report_of(raised.value) is not None


def test_a_session_with_our_adapters_can_be_sent(patient: RetryPolicy, tmp_path: Path) -> None:
    session = requests.Session()
    session.trust_env = False
    retrying = Retrying(patient, journal=tmp_path / "journal.db", generate_keys=["127.0.0.1"], quoted=True)
    session.mount("http://", retrying.around(HTTPAdapter()))
    other = sent(session)
    with ScriptedServer([Reply(503), Reply(201)]) as server, other:
        assert other.post(server.url).status_code == 201
        with onefold.intent("pay:1"):
            other.post(server.url)
    first, second, third = keys(server.requests)
    assert first == second != third
    assert str(first).startswith('"')
    assert (tmp_path / "journal.db").exists()


def test_every_setting_is_sent_and_chance_is_not() -> None:
    retrying = Retrying(RetryPolicy(attempts_max=7))
    settings = {name for name in inspect.signature(Retrying.__init__).parameters if name not in ("self", "policy")}
    assert retrying._recipe.settings.keys() == settings
    other = sent(retrying)
    assert other._recipe.policy.attempts_max == 7
    assert other._recipe.settings.keys() == settings
    assert len(pickle.dumps(retrying)) < 1500, "the state of random was sent along"


def test_a_pool_as_the_journal_cannot_be_sent(patient: RetryPolicy) -> None:
    with pytest.raises(ConfigurationError, match="give the journal as a path or an address"):
        pickle.dumps(Retrying(patient, journal=SqliteDatabase("intents.db")))
