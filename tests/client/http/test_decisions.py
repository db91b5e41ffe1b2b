"""What a client does after each thing that can happen to an attempt, over real sockets."""

from __future__ import annotations

import gzip
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from onefold import Retrying, RetryPolicy
from onefold.clients import Backoff, Reason, report_of
from onefold.testing.scripted_server import Act, Chunks, Half, Reply, Reset, ScriptedServer, Stall
from tests.client.http.clients import Kind, only

IN_FLIGHT = b'{"type": "https://onefold.dev/problems/key-in-flight"}'
PROBLEM = {"Content-Type": "application/problem+json"}
OK = Reply(200, b"done")

#: What comes first, and how many attempts a GET then makes.
TABLE: dict[str, tuple[Act, int]] = {
    "reset": (Reset(), 2),
    "half a body": (Half(Reply(200, b"x" * 100)), 2),
    "half a status line": (Half(OK, 8), 2),
    **{f"{status}": (Reply(status, b"no"), 2) for status in (408, 425, 429, 500, 502, 503, 504)},
    **{
        f"{status} and seconds": (Reply(status, headers={"Retry-After": "2"}), 2)
        for status in (408, 425, 429, 500, 502, 503, 504)
    },
    "malformed Retry-After": (Reply(503, headers={"Retry-After": "soon, I hope"}), 2),
    "negative Retry-After": (Reply(503, headers={"Retry-After": "-5"}), 2),
    "in flight": (Reply(409, IN_FLIGHT, PROBLEM), 2),
    "in flight, packed": (Reply(409, gzip.compress(IN_FLIGHT), {**PROBLEM, "Content-Encoding": "gzip"}), 2),
    "in flight, in chunks": (Chunks((IN_FLIGHT[:9], IN_FLIGHT[9:]), status=409, headers=PROBLEM), 2),
    "another conflict": (Reply(409, b'{"type": "about:blank"}', PROBLEM), 1),
    "a conflict that is not JSON": (Reply(409, b"key-in-flight", PROBLEM), 1),
    "a conflict of another type": (Reply(409, IN_FLIGHT, {"Content-Type": "application/json"}), 1),
    **{f"{status}": (Reply(status, b"no"), 1) for status in (300, 400, 401, 404, 410, 422, 501)},
    "304": (Reply(304), 1),
    "422 and Retry-After": (Reply(422, headers={"Retry-After": "1"}), 1),
}


@pytest.mark.parametrize("case", TABLE)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_what_may_end_differently_is_tried_again(
    kind: Kind, patient: RetryPolicy, case: str, method: str
) -> None:
    first, attempts = TABLE[case]
    with ScriptedServer([first, OK]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            reply = await caller.send(method, server.url)
    assert len(server.requests) == attempts
    assert reply.report is not None
    assert (reply.report.attempts, reply.report.reason) == (attempts, None)
    if attempts == 2:
        assert (reply.status, reply.body) == (200, b"done")
    else:
        assert isinstance(first, Reply)
        assert reply.status == first.status


async def test_a_refused_connection_is_tried_again_and_then_raised_with_its_report(
    kind: Kind, patient: RetryPolicy, closed_port: int
) -> None:
    async with kind.opened(Retrying(patient)) as caller:
        with pytest.raises(kind.no_connection) as raised:
            await caller.send("POST", f"http://127.0.0.1:{closed_port}")
    report = report_of(raised.value)
    assert report is not None
    assert (report.attempts, report.reason) == (4, Reason.ATTEMPTS)
    assert any("after 4 attempts" in note for note in raised.value.__notes__)


async def test_a_server_that_always_resets_sees_as_many_requests_as_the_policy_allows(
    kind: Kind, patient: RetryPolicy
) -> None:
    with ScriptedServer([Reset()]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            with pytest.raises(Exception, match=r".") as raised:
                await caller.send("GET", server.url)
    assert len(server.requests) == 4
    report = report_of(raised.value)
    assert report is not None
    assert report.attempts == 4
    assert "onefold" not in type(raised.value).__module__


@pytest.mark.parametrize("act", [Reset(), Stall(), Reply(503), Reply(409, IN_FLIGHT, PROBLEM)], ids=repr)
@pytest.mark.parametrize("method", ["POST", "PATCH"])
async def test_without_a_key_a_post_is_sent_once(kind: Kind, act: Act, method: str) -> None:
    policy = RetryPolicy(deadline_s=0.4 if isinstance(act, Stall) else 30, budget=None, breaker=None)
    with ScriptedServer([act]) as server:
        async with kind.opened(Retrying(policy)) as caller:
            try:
                reply = await caller.send(method, server.url, content=b"1")
            except Exception as error:
                report = report_of(error)
            else:
                report = reply.report
    assert len(server.requests) == 1
    assert "idempotency-key" not in server.requests[0].headers
    assert report is not None
    assert report.reason is Reason.NO_KEY


# http.client takes a head that breaks off for a whole one.
@only(lambda kind: kind.name != "requests")
async def test_half_a_head_is_tried_again(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Half(OK, 20), OK]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            assert (await caller.send("GET", server.url)).body == b"done"
    assert len(server.requests) == 2


def date(moment: datetime) -> str:
    return moment.strftime("%a, %d %b %Y %H:%M:%S GMT")


async def test_a_date_is_measured_against_the_date_of_its_own_answer(kind: Kind, patient: RetryPolicy) -> None:
    long_ago = datetime(2001, 2, 3, 4, 5, 6, tzinfo=UTC)  # the server's clock, or the client's, is wrong by decades
    headers = {"Date": date(long_ago), "Retry-After": date(long_ago + timedelta(seconds=600))}
    with ScriptedServer([Reply(503, b"later", headers)]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            before = time.time()
            reply = await caller.send("GET", server.url)
    report = reply.report
    assert (reply.status, reply.body, len(server.requests)) == (503, b"later", 1)
    assert report is not None
    assert report.reason is Reason.RETRY_AFTER
    assert report.retry_at is not None
    assert before + 599 <= report.retry_at.timestamp() <= time.time() + 601


async def test_what_is_too_long_to_wait_for_is_reported_and_not_shortened(kind: Kind, patient: RetryPolicy) -> None:
    with ScriptedServer([Reply(429, headers={"Retry-After": "86400"})]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:
            before = time.time()
            reply = await caller.send("POST", server.url)
    report = reply.report
    assert len(server.requests) == 1
    assert report is not None
    assert report.reason is Reason.RETRY_AFTER
    assert report.retry_at is not None
    assert report.retry_at.timestamp() >= before + 86_399


async def test_a_wait_that_ends_past_the_deadline_is_not_begun(kind: Kind) -> None:
    policy = RetryPolicy(deadline_s=5, budget=None, breaker=None)
    with ScriptedServer([Reply(503, headers={"Retry-After": "10"})]) as server:
        async with kind.opened(Retrying(policy, generate_keys=True)) as caller:
            reply = await caller.send("GET", server.url)
    assert len(server.requests) == 1
    assert reply.report is not None
    assert reply.report.reason is Reason.DEADLINE
    assert reply.report.retry_at is not None


async def test_a_stalled_server_is_given_up_at_the_deadline(kind: Kind) -> None:
    policy = RetryPolicy(deadline_s=0.3, attempt_s=0.3, budget=None, breaker=None)
    with ScriptedServer([Stall()]) as server:
        async with kind.opened(Retrying(policy, generate_keys=True)) as caller:
            with pytest.raises(kind.no_time) as raised:
                await caller.send("GET", server.url)
    assert len(server.requests) == 1
    report = report_of(raised.value)
    assert report is not None
    assert report.reason is Reason.DEADLINE


async def test_by_default_an_attempt_leaves_time_for_a_second(kind: Kind) -> None:
    policy = RetryPolicy(deadline_s=4, backoff=Backoff(transient_base_s=0), budget=None, breaker=None)
    with ScriptedServer([Stall(), OK]) as server:
        async with kind.opened(Retrying(policy)) as caller:
            reply = await caller.send("GET", server.url)
    assert (reply.status, len(server.requests)) == (200, 2)
    assert int(server.requests[1].headers["request-timeout-ms"]) <= 2000


async def test_an_attempt_that_must_not_be_repeated_and_the_last_one_have_all_that_is_left(kind: Kind) -> None:
    kept = RetryPolicy(deadline_s=4)  # less than the five seconds of httpx
    with ScriptedServer([OK]) as server:
        for policy, keys in (
            (kept, False),
            (kept, True),
            (replace(kept, attempts_max=1), True),
            (replace(kept, attempt_s=1), True),
        ):
            async with kind.opened(Retrying(policy, generate_keys=keys)) as caller:
                await caller.send("POST", server.url)
    told = [int(request.headers["request-timeout-ms"]) for request in server.requests]
    assert [ms > 2_000 for ms in told] == [True, False, True, False]
    assert told[3] <= 1000


@pytest.mark.parametrize(("statuses", "attempts"), [(RetryPolicy.STATUSES | {404}, 2), ({503}, 1)])
async def test_the_statuses_that_are_tried_again_may_be_said(kind: Kind, statuses: set[int], attempts: int) -> None:
    policy = RetryPolicy(statuses=statuses, backoff=Backoff(transient_base_s=0))
    with ScriptedServer([Reply(404) if attempts == 2 else Reply(500), OK]) as server:
        async with kind.opened(Retrying(policy)) as caller:
            await caller.send("GET", server.url)
    assert len(server.requests) == attempts
