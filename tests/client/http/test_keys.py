"""The key of a call: given, generated or journalled, and the same on every attempt."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import onefold
from onefold import Retrying, RetryPolicy
from onefold._client.journal.queries import intents
from onefold._client.journal.records import IntentView
from onefold._client.journal_store import JournalStore
from onefold._client.key_hosts import KeyHosts
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.clients import Reason, report_of
from onefold.db._drivers import sync_database
from onefold.errors import BodyNotReplayable, ConfigurationError, IntentReused, StoreError
from onefold.testing.scripted_server import ReceivedRequest, Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind, only

FAILING_TWICE = (Reset(), Reply(503), Reply(201, b"{}"))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal.db"


def noted(journal: Path) -> dict[str, IntentView]:
    database = sync_database(journal)
    try:
        found = run(intents(database.dialect, unresolved_only=False), ThreadExecutor(database))
        return {view.intent: view for view in found}
    finally:
        database.close()


def refuse_ends(journal: Path) -> None:
    """From now on no end of a call can be noted, as on a disk that is full."""
    with closing(sqlite3.connect(journal)) as database, database:
        [(table,)] = database.execute("SELECT name FROM sqlite_master WHERE type='table' AND name LIKE '%intent%'")
        database.execute(f"CREATE TRIGGER no_end BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, 'disk full'); END")


def keys(requests: list[ReceivedRequest]) -> list[str | None]:
    return [request.headers.get("idempotency-key") for request in requests]


HOSTS: dict[str, Any] = {"host": {"127.0.0.1"}, "HOST": ["LOCALHOST", "127.0.0.1"], "all": True}


@pytest.mark.parametrize("hosts", HOSTS)
async def test_a_key_is_generated_for_hosts_that_were_named(kind: Kind, patient: RetryPolicy, hosts: str) -> None:
    with ScriptedServer([Reset(), Reply(201)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=HOSTS[hosts])) as caller:
            await caller.send("POST", server.url, json={"a": 1})
        first, second = keys(server.requests)
        assert first == second is not None
        async with kind.opened(Retrying(patient, generate_keys={f"127.0.0.1:{server.port}"})) as caller:
            await caller.send("POST", server.url, json={"a": 1})
    assert keys(server.requests)[2] is not None


@pytest.mark.parametrize("hosts", [None, False, {"api.stripe.com"}, {"127.0.0.1:1"}], ids=str)
async def test_elsewhere_a_post_that_may_have_arrived_is_not_repeated(
    kind: Kind, patient: RetryPolicy, hosts: Any
) -> None:
    """A lost answer: the mail was sent, and must not be sent again."""
    settings = {} if hosts is None else {"generate_keys": hosts}
    with ScriptedServer([Reset(), Reply(200)]) as server:
        async with kind.opened(Retrying(patient, **settings)) as caller:
            with pytest.raises(Exception, match=r".") as raised:
                await caller.send("POST", f"{server.url}/mail", json={"to": "ann"})
    assert keys(server.requests) == [None]
    report = report_of(raised.value)
    assert report is not None
    assert report.reason is Reason.NO_KEY


@pytest.mark.parametrize(
    ("hosts", "told"),
    [
        ("api.stripe.com", "must be a collection of hosts"),
        (1, "must be a collection of hosts"),
        ({"https://api.stripe.com"}, "'https://api.stripe.com', which is not a host"),
        ({""}, "'', which is not a host"),
        ({7}, "7, which is not a host"),
        ({"a b"}, "'a b', which is not a host"),
        ({"*.stripe.com"}, r"'\*\.stripe\.com', which is not a host: there are no patterns, name each"),
    ],
)
def test_what_names_no_hosts_is_refused_where_it_is_written(hosts: Any, told: str) -> None:
    with pytest.raises(ConfigurationError, match=told):
        Retrying(generate_keys=hosts)


@only(lambda kind: kind.name in ("httpx", "requests", "aiohttp"))
@pytest.mark.parametrize(
    ("named", "address"),
    [
        ("::1", "http://[::1]:1/pay"),
        ("[::1]:1", "http://[::1]:1/pay"),
        ("127.0.0.1:80", "http://127.0.0.1/pay"),
        ("LocalHost", "http://localhost:80/pay"),
    ],
)
async def test_a_host_is_found_however_its_name_is_written(kind: Kind, named: str, address: str) -> None:
    """With every client alike; the connection fails, and the report has the key that would have been sent."""
    retrying = Retrying(RetryPolicy(attempts_max=2), generate_keys={named}, hosts={named: RetryPolicy(attempts_max=1)})
    async with kind.opened(retrying) as caller:
        with pytest.raises(kind.no_connection) as raised:
            await caller.send("POST", address)
    report = report_of(raised.value)
    assert report is not None
    assert (report.key is not None, report.attempts) == (True, 1)


def test_so_is_one_that_is_not_in_ascii() -> None:
    assert KeyHosts({"Bücher.example"}).covers("xn--bcher-kva.example:8000")
    assert not KeyHosts({"Bücher.example"}).covers("bcher.example")
    own = RetryPolicy(attempts_max=7)
    assert Retrying(hosts={"das Bücherlager": own})._host("das Bücherlager").policy is own


@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_a_generated_key_is_the_same_on_every_attempt_and_another_for_every_call(
    kind: Kind, patient: RetryPolicy, method: str
) -> None:
    with ScriptedServer(FAILING_TWICE) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send(method, server.url, json={"a": 1})
            await caller.send(method, server.url, json={"a": 1})
    first, second, third, other = keys(server.requests)
    assert first == second == third != other
    assert reply.report is not None
    assert (reply.report.key, reply.report.attempts) == (first, 3)


async def test_a_given_key_is_sent_as_it_is(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer(FAILING_TWICE) as server:
        async with kind.opened(Retrying(patient, quoted=True)) as caller:
            await caller.send("POST", server.url, headers={"Idempotency-Key": "mine"})
    assert keys(server.requests) == ["mine"] * 3


async def test_keys_can_be_quoted(kind: Kind, patient: RetryPolicy, journal: Path) -> None:
    retrying = Retrying(patient, quoted=True, journal=journal, generate_keys=True)
    with ScriptedServer(FAILING_TWICE) as server:
        async with kind.opened(retrying) as caller:
            reply = await caller.send("POST", server.url)
            with onefold.intent("pay:1"):
                named = await caller.send("POST", server.url)
    await retrying.aclose()
    assert reply.report is not None
    assert named.report is not None
    assert keys(server.requests) == [f'"{reply.report.key}"'] * 3 + [f'"{named.report.key}"']


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS"])
async def test_what_is_idempotent_by_itself_gets_no_key(kind: Kind, patient: RetryPolicy, method: str) -> None:
    with ScriptedServer([Reset(), Reply(503), Reply(204)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send(method, server.url)
    assert reply.status == 204
    assert keys(server.requests) == [None] * 3


async def test_an_intent_has_the_same_key_after_a_restart(kind: Kind, patient: RetryPolicy, journal: Path) -> None:
    lives: list[IntentView] = []
    with ScriptedServer([*[Reply(503)] * 4, Reset(), Reply(201)]) as server:
        for _ in range(2):
            retrying = Retrying(patient, journal=journal, generate_keys=True)
            async with kind.opened(retrying) as caller:
                with onefold.intent("pay:1"):
                    reply = await caller.send("POST", server.url, json={"amount": 5})
            await retrying.aclose()
            assert reply.report is not None
            assert reply.report.intent == "pay:1"
            lives.append(noted(journal)["pay:1"])
    given_up, done = lives
    assert keys(server.requests) == [done.key] * 6
    assert (given_up.status, given_up.reason) == (None, f"503: {Reason.ATTEMPTS.value}")
    assert (done.status, done.tries) == (201, 2)


@pytest.mark.parametrize("status", [200, 201, 303, 400, 404, 422, 501])
async def test_a_final_answer_resolves_an_intent(kind: Kind, patient: RetryPolicy, journal: Path, status: int) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(status)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"):
                await caller.send("POST", server.url)
    await retrying.aclose()
    assert noted(journal)["pay:1"].status == status


async def test_an_intent_that_got_no_answer_stays_open_and_says_why(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reset()]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"), pytest.raises(Exception, match=r"."):
                await caller.send("POST", server.url)
    await retrying.aclose()
    view = noted(journal)["pay:1"]
    assert view.status is None
    assert (view.reason or "").endswith(Reason.ATTEMPTS.value)
    assert set(keys(server.requests)) == {view.key}


CHANGES: dict[str, tuple[str, str, bytes]] = {
    "body": ("POST", "/a?q=1", b"other"),
    "query": ("POST", "/a?q=2", b"body"),
    "path": ("POST", "/b?q=1", b"body"),
    "method": ("PATCH", "/a?q=1", b"body"),
}


@pytest.mark.parametrize("change", CHANGES)
async def test_an_intent_names_one_call_only(kind: Kind, patient: RetryPolicy, journal: Path, change: str) -> None:
    method, path, body = CHANGES[change]
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"):
                await caller.send("POST", f"{server.url}/a?q=1", content=b"body")
                await caller.send("POST", f"{server.url}/a?q=1", content=b"body")
                with pytest.raises(IntentReused):
                    await caller.send(method, f"{server.url}{path}", content=body)
    await retrying.aclose()
    assert len(server.requests) == 2
    assert len(set(keys(server.requests))) == 1


async def test_the_boundary_of_a_multipart_body_is_no_part_of_the_call(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("upload:1"):
                for _ in range(2):
                    await caller.send("POST", server.url, files={"file": b"content"})
    await retrying.aclose()
    first, second = server.requests
    assert first.body != second.body
    assert len(set(keys(server.requests))) == 1


# The others have no place for options.
@only(lambda kind: kind.has_options)
async def test_an_intent_can_be_an_option_of_the_request(kind: Kind, patient: RetryPolicy, journal: Path) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            await caller.send("POST", server.url, options={"intent": "pay:1"})
    await retrying.aclose()
    assert keys(server.requests) == [noted(journal)["pay:1"].key]


async def test_a_journal_that_cannot_be_written_keeps_the_call_from_being_made(
    kind: Kind, patient: RetryPolicy, tmp_path: Path
) -> None:
    place = tmp_path / "journal.db"
    place.write_bytes(b"this is not a database, and never was one" * 100)
    retrying = Retrying(patient, journal=place, generate_keys=True)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"), pytest.raises(StoreError):
                await caller.send("POST", server.url)
    await retrying.aclose()
    assert server.requests == []


async def test_an_end_that_cannot_be_noted_does_not_cost_the_answer(
    kind: Kind, patient: RetryPolicy, journal: Path, caplog: pytest.LogCaptureFixture
) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(200, b"1"), Reply(200, b"2")]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"):
                await caller.send("POST", server.url)
            refuse_ends(journal)
            with onefold.intent("pay:2"):
                reply = await caller.send("POST", server.url)
    await retrying.aclose()
    assert (reply.status, reply.body) == (200, b"2")
    assert "could not be written to the key journal" in caplog.text
    assert noted(journal)["pay:2"].status is None


async def test_a_redirect_keeps_key_and_intent(kind: Kind, patient: RetryPolicy, journal: Path) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(307, headers={"Location": "/new"}), Reply(503), Reply(201)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"):
                reply = await caller.send("POST", f"{server.url}/old", content=b"body", follow=True)
    await retrying.aclose()
    assert reply.status == 201
    assert [(seen.target, seen.body) for seen in server.requests] == [
        ("/old", b"body"),
        ("/new", b"body"),
        ("/new", b"body"),
    ]
    assert keys(server.requests) == [noted(journal)["pay:1"].key] * 3
    assert noted(journal)["pay:1"].status == 201


async def test_a_call_that_was_answered_elsewhere_can_be_looked_at_there(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(303, headers={"Location": "/made"}), Reply(200, b"it")]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"):
                reply = await caller.send("POST", server.url, content=b"body", follow=True)
    await retrying.aclose()
    assert (reply.status, reply.body) == (200, b"it")
    assert [seen.method for seen in server.requests] == ["POST", "GET"]


class Pieces:
    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in (b"one", b"two"):
            self.taken += 1
            yield piece


def piecewise(kind: Kind, pieces: Pieces) -> Any:
    if kind.on_tasks and kind.has_options:

        async def awaited() -> Any:
            for piece in pieces:
                yield piece

        return awaited()
    return iter(pieces)


async def test_a_body_that_can_be_sent_once_is_refused_before_anything_happens(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    pieces = Pieces()
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            for method in ("PUT", "POST"):
                with onefold.intent("upload:1"), pytest.raises(BodyNotReplayable, match="can be sent only once"):
                    await caller.send(method, server.url, content=piecewise(kind, pieces))
    await retrying.aclose()
    assert server.requests == []
    assert server.connections == 0
    assert pieces.taken == 0
    assert os.listdir(journal.parent) == []


async def test_a_body_that_can_be_sent_once_is_sent_once_where_nothing_is_retried(kind: Kind) -> None:
    never = RetryPolicy(attempts_max=1)
    with ScriptedServer([Reply(503), Reply(200)]) as server:
        async with kind.opened(Retrying(never, generate_keys=True)) as caller:
            reply = await caller.send("PUT", server.url, content=piecewise(kind, Pieces()))
        async with kind.opened(Retrying()) as caller:
            unkeyed = await caller.send("POST", server.url, content=piecewise(kind, Pieces()))
    assert (reply.status, unkeyed.status) == (503, 200)
    assert [seen.body for seen in server.requests] == [b"onetwo"] * 2


async def test_another_amount_is_another_call(kind: Kind, patient: RetryPolicy, journal: Path) -> None:
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"):
                await caller.send("POST", server.url, json={"amount": 1})
                with pytest.raises(IntentReused, match="the query or the body differs"):
                    await caller.send("POST", server.url, json={"amount": 2})
    await retrying.aclose()
    assert [json.loads(seen.body) for seen in server.requests] == [{"amount": 1}]


@only(lambda kind: kind.on_tasks)
async def test_a_journal_is_made_without_holding_up_the_loop(
    kind: Kind, patient: RetryPolicy, journal: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[bool] = []
    made = JournalStore.make_ready

    def watched(store: JournalStore) -> None:
        if not store.ready:
            threads.append(threading.current_thread() is threading.main_thread())
        made(store)

    monkeypatch.setattr(JournalStore, "make_ready", watched)
    retrying = Retrying(patient, journal=journal, generate_keys=True)
    with ScriptedServer([Reply(200)]) as server:
        async with kind.opened(retrying) as caller:
            with onefold.intent("pay:1"):
                await caller.send("POST", server.url, content=b"1")
    await retrying.aclose()
    assert threads == [False]


async def test_the_journal_keeps_neither_the_password_nor_the_query_of_a_url(
    kind: Kind, patient: RetryPolicy, journal: Path
) -> None:
    with ScriptedServer((Reply(201, b"{}"),)) as server:
        base = server.url
        address = base.replace("//", "//ann:hunter2@") + "/payments?token=hunter2#hunter2"
        async with kind.opened(Retrying(patient, journal=journal, generate_keys=True)) as caller:
            with onefold.intent("pay:ord-42"):
                await caller.send("POST", address, json={"a": 1})
    assert noted(journal)["pay:ord-42"].target == f"POST {base}/payments"
    assert b"hunter2" not in b"".join(file.read_bytes() for file in journal.parent.iterdir())
