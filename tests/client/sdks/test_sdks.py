"""The real packages of Stripe and OpenAI against a scripted server: one key, whatever they do by themselves."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path
from typing import Any

import openai
import pytest
import requests
import stripe

import onefold
from onefold import Retrying, RetryPolicy
from onefold.errors import ConfigurationError, IntentReused
from onefold.telemetry import RetryPlanned
from onefold.testing.no_waiting import no_waiting
from onefold.testing.scripted_server import Reply, Reset, ScriptedServer, Stall
from tests.client.http.test_keys import keys, noted
from tests.client.sdks.customer import (
    ANSWERS,
    JSON,
    PAID,
    POLICY,
    TALKED,
    WAYS,
    openai_client,
    pay,
    stripe_client,
    talk,
)
from tests.support.fork_server import fork_server
from tests.support.patience import PATIENCE_S

BUSY = Reply(503, b"{}", JSON)
ONCE = RetryPolicy(attempts_max=1, budget=None, breaker=None)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.mark.parametrize("way", WAYS)
def test_an_intent_has_one_key_whatever_key_the_sdk_sets(way: str, journal: Path) -> None:
    with ScriptedServer([Reset(), BUSY, Reply(200, ANSWERS[way], JSON)]) as server, no_waiting():
        assert WAYS[way](server.url, str(journal)) in ("pi_1", "c_1")
    view = noted(journal)["pay:42"]
    assert keys(server.requests) == [view.key] * 3
    assert view.status == 200


@pytest.mark.parametrize("way", WAYS)
def test_it_has_the_same_key_after_a_kill_and_a_restart(way: str, journal: Path) -> None:
    processes = fork_server("import openai, requests, stripe")
    command = ("-m", "tests.client.sdks.customer", way)
    with ScriptedServer([Stall(), Reply(200, ANSWERS[way], JSON)]) as server:
        with closing(processes.start_with_pipes(*command, server.url, str(journal))) as victim:
            give_up_at = time.monotonic() + PATIENCE_S
            while not server.requests:
                assert time.monotonic() < give_up_at, "the request never came"
                assert victim.poll() is None, "the customer ended by itself"
                time.sleep(0.01)
            victim.kill()
        assert noted(journal)["pay:42"].status is None
        ended = processes.run(*command, server.url, str(journal), within_s=PATIENCE_S)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.strip() in ("pi_1", "c_1")
    view = noted(journal)["pay:42"]
    assert keys(server.requests) == [view.key] * 2
    assert (view.status, view.tries) == (200, 2)


def test_the_retries_of_stripe_keep_the_key_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stripe.RequestsClient, "_sleep_time_seconds", lambda *_: 0)
    with (
        ScriptedServer([BUSY, BUSY, Reply(200, PAID, JSON)]) as server,
        onefold.retrying(requests.Session(), ONCE) as session,
        onefold.call() as key,
    ):
        for _ in range(2):
            pay(stripe_client(server.url, session, retries=2))
    assert keys(server.requests) == [key] * 4


def test_the_retries_of_openai_keep_the_key_of_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai.OpenAI, "_calculate_retry_timeout", lambda *_: 0)
    with ScriptedServer([Reset(), BUSY, BUSY, Reply(200, TALKED, JSON)]) as server, no_waiting():
        two = RetryPolicy(attempts_max=2, budget=None, breaker=None)
        with onefold.retrying(openai.DefaultHttpxClient(trust_env=False), two) as client, onefold.call() as key:
            talk(openai_client(server.url, client, retries=2))
    assert keys(server.requests) == [key] * 4


async def test_so_do_those_of_openai_on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai.AsyncOpenAI, "_calculate_retry_timeout", lambda *_: 0)
    with ScriptedServer([BUSY, BUSY, Reply(200, TALKED, JSON)]) as server, no_waiting():
        transport: Any = onefold.retrying(openai.DefaultAsyncHttpxClient(trust_env=False), ONCE)
        async with transport as client:
            sdk = openai.AsyncOpenAI(api_key="sk-1", base_url=server.url, http_client=client, max_retries=2)
            with onefold.call() as key:
                await sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
    assert keys(server.requests) == [key] * 3


@pytest.mark.parametrize(
    ("first", "requests_made"),
    [
        pytest.param(Reply(409, b"{}", JSON | {"Stripe-Should-Retry": "true"}), 2, id="a conflict, again"),
        pytest.param(Reply(503, b"{}", JSON | {"Stripe-Should-Retry": "false"}), 1, id="a failure, not again"),
        pytest.param(Reply(400, b"{}", JSON | {"Stripe-Should-Retry": "maybe"}), 1, id="neither"),
        pytest.param(Reply(503, b"{}", JSON | {"Stripe-Should-Retry": "maybe"}), 2, id="as without it"),
        pytest.param(Reply(409, b"{}", JSON | {"x-should-retry": "true"}), 2, id="in other words"),
    ],
)
def test_what_stripe_says_about_trying_again_is_obeyed(first: Reply, requests_made: int) -> None:
    with (
        ScriptedServer([first, Reply(200, PAID, JSON)]) as server,
        onefold.retrying(requests.Session(), POLICY, generate_keys={"127.0.0.1"}) as session,
        no_waiting(),
    ):
        client = stripe_client(server.url, session)
        if requests_made == 2:
            assert pay(client) == "pi_1"
        else:
            with pytest.raises(stripe.StripeError):
                pay(client)
    assert len(server.requests) == requests_made


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "20.5", "Retry-After": "7"}, 0.0205),
        ({"retry-after-ms": "soon", "Retry-After": "7"}, 7.0),
        ({"Retry-After": "30.5"}, 30.5),
    ],
    ids=str,
)
def test_waits_in_milliseconds_are_kept(headers: dict[str, str], wait_s: float) -> None:
    planned: list[float] = []

    def hear(event: object) -> None:
        if isinstance(event, RetryPlanned):
            planned.append(event.wait_s)

    patient = RetryPolicy(attempts_max=2, deadline_s=90, budget=None, breaker=None)
    retrying = Retrying(patient, generate_keys=True, listener=hear, draw=lambda: 0.0)
    with (
        ScriptedServer([Reply(503, b"{}", JSON | headers), Reply(200, TALKED, JSON)]) as server,
        retrying.around(openai.DefaultHttpxClient(trust_env=False)) as client,
        no_waiting(),
    ):
        talk(openai_client(server.url, client))
    assert planned == [pytest.approx(wait_s)]


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # Stripe's own
async def test_stripe_on_asyncio_sends_through_the_client_that_it_has(journal: Path) -> None:
    retrying = Retrying(POLICY, journal=journal)
    http: Any = stripe.HTTPXClient()
    retrying.around(http._client_async)
    with ScriptedServer([Reset(), BUSY, Reply(200, PAID, JSON)]) as server, no_waiting():
        client = stripe.StripeClient("sk_test_1", http_client=http, base_addresses={"api": server.url})
        with onefold.intent("pay:42") as key:
            await client.v1.payment_intents.create_async(params={"amount": 500, "currency": "eur"})
        await http.close_async()
    await retrying.aclose()
    assert keys(server.requests) == [key] * 3
    assert noted(journal)["pay:42"].status == 200


def test_an_sdk_that_keeps_its_clients_to_itself_is_refused_with_the_way_out() -> None:
    sdk: Any = stripe.HTTPXClient(allow_sync_methods=True)
    with pytest.raises(ConfigurationError, match=r"HTTPXClient cannot be made to retry: give a client or a transport"):
        onefold.retrying(sdk)


def test_a_refusal_is_the_cause_of_the_error_that_stripe_raises() -> None:
    with (
        ScriptedServer([Reply(200, PAID, JSON)]) as server,
        onefold.retrying(requests.Session(), POLICY) as session,
        onefold.call(),
    ):
        session.post(f"{server.url}/another")
        with pytest.raises(stripe.APIConnectionError, match="is another call: give it a block of its own") as raised:
            pay(stripe_client(server.url, session))
    assert isinstance(raised.value.__cause__, IntentReused)
    assert [request.target for request in server.requests] == ["/another"]
