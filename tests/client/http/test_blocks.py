"""A block holds one key, whoever makes the attempts in it; what is not an attempt of its call does not get it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
import requests.auth
import tenacity

import onefold
from onefold import Retrying, RetryPolicy
from onefold.errors import IntentReused
from onefold.testing.scripted_server import Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind, only
from tests.client.http.test_keys import Pieces, keys, noted, piecewise, refuse_ends

TOKEN_FORM = {"grant_type": "client_credentials", "scope": "pay"}
TOKEN_JSON = {"grant_type": "refresh_token", "refresh_token": "hunter2"}


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


@pytest.mark.parametrize("generate_keys", [True, False])
async def test_a_loop_around_a_client_sends_one_key(kind: Kind, patient: RetryPolicy, generate_keys: bool) -> None:
    with ScriptedServer([*[Reply(503)] * 11, Reply(201)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=generate_keys)) as caller:
            with onefold.call() as key:
                async for attempt in tenacity.AsyncRetrying(
                    stop=tenacity.stop_after_attempt(3), retry=tenacity.retry_if_result(lambda status: status == 503)
                ):
                    with attempt:
                        reply = await caller.send("POST", server.url, json={"a": 1})
                    attempt.retry_state.set_result(reply.status)
    assert reply.status == 201
    assert keys(server.requests) == [key] * 12
    assert reply.report is not None
    assert reply.report.key == key


async def test_without_a_block_every_call_has_a_key_of_its_own(kind: Kind, patient: RetryPolicy) -> None:
    """The control of the test above."""
    with ScriptedServer([Reply(201)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            for _ in range(3):
                await caller.send("POST", server.url, json={"a": 1})
    assert len(set(keys(server.requests))) == 3


async def test_every_block_has_a_key_of_its_own(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(201)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            given = []
            for _ in range(2):
                with onefold.call() as key:
                    given.append(key)
                    await caller.send("POST", server.url, json={"a": 1})
            await caller.send("POST", server.url, json={"a": 1})
    assert len(set(given)) == 2
    assert keys(server.requests) == [*given, None]


async def test_another_request_in_the_block_is_refused(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(201)]) as server:
        async with kind.opened(Retrying(patient)) as caller:
            with onefold.call():
                await caller.send("POST", f"{server.url}/a", content=b"1")
                with pytest.raises(IntentReused, match=r"the query or the body differs.*block of its own"):
                    await caller.send("POST", f"{server.url}/a", content=b"2")
                with pytest.raises(IntentReused, match="/b is another call: give it a block of its own"):
                    await caller.send("POST", f"{server.url}/b", content=b"1")
    assert len(server.requests) == 1


@pytest.mark.parametrize("block", ["call", "intent"])
async def test_what_only_reads_takes_no_key_and_does_not_become_the_call(
    kind: Kind, patient: RetryPolicy, journal: Path, block: str
) -> None:
    retrying = Retrying(patient, journal=journal)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.call() if block == "call" else onefold.intent("pay:1") as key:
                await caller.send("GET", f"{server.url}/order")
                await caller.send("POST", f"{server.url}/pay", content=b"1")
    await retrying.aclose()
    assert keys(server.requests) == [None, key]


@pytest.mark.parametrize(
    ("query", "token"),
    [
        ("", {"form": TOKEN_FORM}),
        ("", {"json": TOKEN_JSON}),
        ("?grant_type=account_credentials&account_id=7", {}),
        ("?scope=pay&grant_type=client_credentials", {"form": {"client_id": "shop"}}),
    ],
    ids=["form", "json", "query", "query-and-form"],
)
@pytest.mark.parametrize("block", ["call", "intent"])
async def test_a_token_request_in_the_block_does_not_take_the_key(
    kind: Kind, patient: RetryPolicy, journal: Path, block: str, query: str, token: dict[str, dict[str, str]]
) -> None:
    retrying = Retrying(patient, journal=journal)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.call() if block == "call" else onefold.intent("pay:1") as key:
                await caller.send("POST", f"{server.url}/token{query}", **token)  # type: ignore[arg-type]
                await caller.send("POST", f"{server.url}/pay", content=b"1")
    await retrying.aclose()
    assert keys(server.requests) == [None, key]
    if block == "intent":
        assert noted(journal)["pay:1"].target.endswith("/pay")


@pytest.mark.parametrize("query", ["", "?note=grant_type", "?not_grant_type=1"])
async def test_a_payment_that_mentions_a_grant_is_no_token_request(
    kind: Kind, patient: RetryPolicy, journal: Path, query: str
) -> None:
    retrying = Retrying(patient, journal=journal)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1") as key:
                await caller.send("POST", f"{server.url}/pay{query}", json={"note": "grant_type"})
    await retrying.aclose()
    assert keys(server.requests) == [key]


async def test_a_token_request_that_may_have_arrived_is_not_repeated(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    with ScriptedServer([Reset()]) as server:
        async with kind.opened(Retrying(patient, journal=journal)) as caller:
            with onefold.call(), pytest.raises(Exception, match=r"."):
                await caller.send("POST", server.url, form=TOKEN_FORM)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [401, 407])
async def test_an_answer_that_asks_for_credentials_leaves_the_intent_open(
    kind: Kind, patient: RetryPolicy, journal: Path, status: int
) -> None:
    retrying = Retrying(patient, journal=journal)
    with ScriptedServer([Reply(status), Reply(201)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"):
                await caller.send("POST", server.url, content=b"1", headers={"Authorization": "old"})
                view = noted(journal)["pay:1"]
                assert (view.status, view.resolved_ms) == (None, None)
                assert (view.reason or "").startswith(f"{status}: ")
                await caller.send("POST", server.url, content=b"1", headers={"Authorization": "new"})
    await retrying.aclose()
    assert noted(journal)["pay:1"].status == 201
    assert len(set(keys(server.requests))) == 1


DIGEST = {"WWW-Authenticate": 'Digest realm="r", nonce="n", qop="auth", algorithm=MD5'}


@pytest.mark.parametrize("block", [False, True], ids=["plain", "intent"])
def test_the_second_request_of_a_digest_authentication_is_retried_under_the_same_key(
    patient: RetryPolicy, journal: Path, block: bool
) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    session = requests.Session()
    session.trust_env = False
    session.auth = requests.auth.HTTPDigestAuth("ann", "hunter2")
    with (
        ScriptedServer([Reply(401, headers=DIGEST), Reply(503), Reply(201)]) as server,
        retrying.around(session),
        onefold.intent("pay:1") if block else nullcontext(),
    ):
        assert session.post(server.url, data=b"1").status_code == 201
    retrying.close()
    assert len(server.requests) == 3
    assert len(set(keys(server.requests))) == 1
    if block:
        assert noted(journal)["pay:1"].status == 201


async def test_the_key_of_the_block_stands_in_for_the_one_that_an_sdk_sets(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    retrying = Retrying(patient, journal=journal)
    with ScriptedServer([Reply(503), Reply(201)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.call() as key:
                for number in range(2):
                    await caller.send("POST", server.url, headers={"Idempotency-Key": f"sdk-{number}"})
            with onefold.intent("pay:1") as journalled:
                for number in range(2):
                    await caller.send("POST", server.url, headers={"Idempotency-Key": f"sdk-{number}"})
    await retrying.aclose()
    assert keys(server.requests) == [key] * 3 + [journalled] * 2
    assert noted(journal)["pay:1"].key == journalled


async def test_a_key_that_was_handed_over_is_the_one_of_the_journal_after_a_restart(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    handed = []
    with ScriptedServer([*[Reply(503)] * 4, Reply(201)]) as server:
        for _ in range(2):
            retrying = Retrying(patient, journal=journal)
            async with kind.opened(retrying) as caller:
                with onefold.intent("pay:1") as key:
                    handed.append(key)
                    await caller.send("POST", server.url, content=b"1", headers={"Idempotency-Key": key})
            await retrying.aclose()
    assert keys(server.requests) == [handed[0]] * 5
    assert noted(journal)["pay:1"].status == 201


async def test_an_intent_that_no_call_used_is_a_warning(
    kind: Kind, patient: RetryPolicy, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retrying = Retrying(patient, journal=journal)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:used"):
                await caller.send("POST", server.url)
            assert caplog.records == []
            with onefold.intent("pay:read"):
                await caller.send("GET", server.url)
            with onefold.intent("pay:elsewhere"):
                async with httpx.AsyncClient(trust_env=False) as other:
                    await other.post(server.url)
    await retrying.aclose()
    warned = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [message.partition(": its block ended without a call")[0] for message in warned] == [
        "intent 'pay:read'",
        "intent 'pay:elsewhere'",
    ]
    assert "after a restart the intent gets another one" in warned[1]
    assert "retrying.intent('pay:elsewhere')" in warned[1]


def test_an_intent_that_ends_with_an_error_is_no_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(KeyError), onefold.intent("pay:1"):
        raise KeyError("before the call")
    assert caplog.records == []


@only(lambda kind: kind.name == "httpx")
async def test_a_thread_that_is_not_handed_the_context_is_told_of(
    kind: Kind, patient: RetryPolicy, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retrying = Retrying(patient, journal=journal)
    transport = retrying.around(httpx.HTTPTransport())
    with ScriptedServer([Reply(200)]) as server, httpx.Client(transport=transport, trust_env=False) as client:
        with onefold.intent("pay:1"):
            thread = threading.Thread(target=client.post, args=(server.url,))
            thread.start()
            thread.join()
        assert "pay:1" in caplog.text
        caplog.clear()
        with onefold.intent("pay:2") as key:
            await asyncio.to_thread(client.post, server.url)
        assert caplog.text == ""
    retrying.close()
    assert keys(server.requests) == [None, key]


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_keeps_the_key_of_its_call(kind: Kind, patient: RetryPolicy, status: int) -> None:
    with ScriptedServer(
        [Reply(status, headers={"Location": "/n%C3%A9w?q=1#x"}), Reply(503), Reply(201), Reply(201)]
    ) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send("POST", f"{server.url}/old", content=b"body", follow=True)
            await caller.send("POST", f"{server.url}/new", content=b"body")
    assert reply.status == 201
    first, second, third, other = keys(server.requests)
    assert first == second == third != other


async def test_a_redirect_that_is_not_followed_gives_its_key_to_no_other_call(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(307, headers={"Location": "/new"}), Reply(201)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            await caller.send("POST", f"{server.url}/old", content=b"body")
            await caller.send("POST", f"{server.url}/new", content=b"another")
            await caller.send("POST", f"{server.url}/new", content=b"body")
    assert len(set(keys(server.requests))) == 3


async def test_a_body_that_can_be_sent_once_is_not_read_to_find_out_whether_it_follows_a_redirect(kind: Kind) -> None:
    never = RetryPolicy(attempts_max=1)
    with ScriptedServer([Reply(307, headers={"Location": "/new"}), Reply(201)]) as server:
        async with kind.opened(Retrying(never, generate_keys=True)) as caller:
            await caller.send("POST", f"{server.url}/old", content=b"onetwo")
            await caller.send("POST", f"{server.url}/new", content=piecewise(kind, Pieces()))
    assert [seen.body for seen in server.requests] == [b"onetwo"] * 2
    assert len(set(keys(server.requests))) == 2


@only(lambda kind: kind.name in ("httpx", "requests", "aiohttp"))
@pytest.mark.parametrize(
    ("before", "after"),
    [("none", "call"), ("none", "own"), ("call", "none"), ("call", "intent"), ("intent", "intent")],
)
async def test_nor_to_the_same_request_that_is_another_call(
    kind: Kind, patient: RetryPolicy, journal: Path, before: str, after: str
) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    names = iter(["pay:1", "pay:2"])
    blocks: dict[str, Callable[[], Any]] = {"call": onefold.call, "intent": lambda: onefold.intent(next(names))}
    with ScriptedServer([Reply(307, headers={"Location": "/new"}), Reply(201)]) as server:
        async with kind.opened(retrying) as caller:
            with blocks.get(before, nullcontext)():
                await caller.send("POST", f"{server.url}/old", content=b"body")
            with blocks.get(after, nullcontext)() as key:
                own = {"Idempotency-Key": "mine"} if after == "own" else {}
                await caller.send("POST", f"{server.url}/new", content=b"body", headers=own)
    await retrying.aclose()
    first, second = keys(server.requests)
    assert first != second
    if after != "none":
        assert second == (key or "mine")


async def test_a_key_that_is_asked_for_first_is_the_journal_s_in_every_life(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    handed = []
    with ScriptedServer([*[Reply(503)] * 4, Reply(201)]) as server:
        for _ in range(2):
            retrying = Retrying(patient, journal=journal)
            async with kind.opened(retrying) as caller, retrying.intent("pay:1") as key:
                handed.append(key)
                assert noted(journal)["pay:1"].key == key
                await caller.send("POST", server.url, content=b"1", headers={"Idempotency-Key": key})
            await retrying.aclose()
        retrying = Retrying(patient, journal=journal)
        async with kind.opened(retrying) as caller, retrying.intent("pay:1"):
            with pytest.raises(IntentReused):
                await caller.send("POST", server.url, content=b"2")
        await retrying.aclose()
    assert set(handed) == {handed[0]}
    assert keys(server.requests) == [handed[0]] * 5
    view = noted(journal)["pay:1"]
    assert (view.status, view.target.partition(":")[0]) == (201, "POST http")


def test_a_key_that_was_handed_over_elsewhere_is_resolved_where_its_block_ends_well(journal: Path) -> None:
    retrying = Retrying(journal=journal)
    with pytest.raises(ConnectionError), retrying.intent("pay:1") as first:
        raise ConnectionError("what the key was handed over to gave up")
    assert noted(journal)["pay:1"].resolved_ms is None
    with retrying.intent("pay:1") as second:
        assert noted(journal)["pay:1"].resolved_ms is None
    retrying.close()
    assert first == second
    assert noted(journal)["pay:1"].status == 0


@pytest.mark.parametrize("on_tasks", [False, True], ids=["threads", "tasks"])
async def test_an_end_that_cannot_be_noted_is_no_error_of_its_block(
    on_tasks: bool, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retrying = Retrying(journal=journal)
    if on_tasks:
        async with retrying.intent("pay:1"):
            refuse_ends(journal)
    else:
        with retrying.intent("pay:1"):
            refuse_ends(journal)
    await retrying.aclose()
    assert "intent 'pay:1': the outcome of its call could not be written to the key journal" in caplog.text
    assert noted(journal)["pay:1"].resolved_ms is None


async def test_an_error_of_a_block_leaves_it_where_the_journal_fails_too(journal: Path) -> None:
    retrying = Retrying(journal=journal)
    with retrying.intent("pay:1"):
        pass
    refuse_ends(journal)
    with pytest.raises(KeyError, match="on threads"), retrying.intent("pay:2"):
        raise KeyError("on threads")
    with pytest.raises(KeyError, match="on a loop"):
        async with retrying.intent("pay:3"):
            raise KeyError("on a loop")
    await retrying.aclose()
