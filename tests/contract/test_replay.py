"""What is kept of an answer, what is not, and that a replay repeats it exactly."""

from __future__ import annotations

import gzip

import pytest

from tests.contract.backends import Backend
from tests.contract.plans import Plan

KEPT = (
    ("content-type", "application/vnd.order+json; charset=utf-8"),
    ("location", "/orders/17"),
    ("etag", '"v1"'),
    ("last-modified", "Tue, 15 Nov 1994 12:45:26 GMT"),
    ("cache-control", "private, max-age=60"),
    ("content-language", "de"),
    ("link", '</orders>; rel="up"'),
    ("link", '</orders/18>; rel="next"'),
    ("vary", "accept"),
)


@pytest.mark.contract("C14")
def test_c14_a_retry_gets_the_first_answer_byte_for_byte(backend: Backend) -> None:
    body = '{"id": 17, "note": "naïve",  "sum": 1.10}\n'.encode()
    first = backend.post(key='"k"', plan=Plan(status=202, headers=KEPT, body=body))
    retry = backend.post(key='"k"', plan=Plan(status=500))
    assert (first.status, first.body, first.headers) == (202, body, KEPT)
    assert (retry.status, retry.body) == (202, body)
    added = (("content-length", str(len(body))), ("idempotent-replayed", "true"))
    assert retry.headers == KEPT + added
    assert backend.rows() == ["book"]


@pytest.mark.contract("C14")
def test_c14_a_replay_survives_a_restart_of_the_application(backend: Backend) -> None:
    backend.post(key='"k"', plan=Plan(body=b"first"))
    backend.serve()
    retry = backend.post(key='"k"')
    assert (retry.body, retry.replayed) == (b"first", True)


@pytest.mark.contract("C14")
def test_c14_a_route_may_keep_headers_of_its_own(backend: Backend) -> None:
    backend.serve(settings={"headers_kept": frozenset({"x-order-id", "X-Trace"})})
    own = (("x-order-id", "17"), ("x-trace", "abc"), ("x-other", "gone"))
    backend.post(key='"k"', plan=Plan(headers=own + KEPT[:1]))
    retry = backend.post(key='"k"')
    assert (retry.header("x-order-id"), retry.header("x-trace"), retry.header("x-other")) == ("17", "abc", None)


@pytest.mark.contract("C15")
def test_c15_a_deterministic_refusal_is_replayed_and_leaves_no_rows(backend: Backend) -> None:
    statuses = (400, 402, 404, 405, 409, 410, 412, 418, 422, 451)
    for status in statuses:
        first = backend.post(key=f'"{status}"', plan=Plan(status=status, body=b"no: %d" % status))
        retry = backend.post(key=f'"{status}"', plan=Plan(status=201))
        assert (first.status, first.replayed) == (status, False)
        assert (retry.status, retry.replayed, retry.body) == (status, True, b"no: %d" % status)
    assert len(backend.calls) == len(statuses)
    assert backend.rows() == []


@pytest.mark.contract("C15b")
def test_c15b_an_answer_about_rights_or_pace_is_not_stored(backend: Backend) -> None:
    statuses = (401, 403, 407, 408, 425, 429)
    for status in statuses:
        assert backend.post(key=f'"{status}"', plan=Plan(status=status)).status == status
        corrected = backend.post(key=f'"{status}"')
        assert (corrected.status, corrected.replayed) == (201, False)
    assert backend.rows() == ["book"] * len(statuses)


@pytest.mark.contract("C16")
def test_c16_every_kind_of_answer_replays_exactly(backend: Backend) -> None:
    plain = (("content-type", "text/plain"),)
    packed = gzip.compress(b"a long text " * 100, mtime=0)
    plans = {
        "no content": Plan(status=204, headers=(("etag", '"v2"'),), body=b""),
        "see other": Plan(status=303, headers=(("location", "/orders/17"), *plain), body=b""),
        "moved": Plan(status=308, headers=(("location", "/v2/orders"), *plain), body=b"moved"),
        "empty": Plan(status=200, headers=plain, body=b""),
        "text": Plan(status=200, headers=plain, body="größer".encode()),
        "binary": Plan(headers=(("content-type", "application/octet-stream"),), body=bytes(range(256)) * 3),
        "gzip": Plan(headers=(("content-encoding", "gzip"), ("content-type", "text/plain")), body=packed),
        "unusual": Plan(status=299, headers=plain, body=b"made up"),
    }
    for name, plan in plans.items():
        first = backend.post(key=f'"{name}"', plan=plan)
        retry = backend.post(key=f'"{name}"', headers=(("accept-encoding", "br;q=0, gzip"),))
        assert (first.status, first.body, first.headers) == (plan.status, plan.body, plan.headers), name
        assert (retry.status, retry.body, retry.replayed) == (plan.status, plan.body, True), name
        assert retry.headers[: len(plan.headers)] == plan.headers, name
        length = None if plan.status == 204 else str(len(plan.body))
        assert retry.header("content-length") == length, name
    assert len(backend.calls) == len(plans)


@pytest.mark.contract("C17")
def test_c17_a_server_error_leaves_nothing_and_a_retry_runs(backend: Backend) -> None:
    for status in (500, 502, 503, 599):
        assert backend.post(key='"k"', plan=Plan(status=status, body=b"broken")).body == b"broken"
        assert (backend.rows(), backend.records()) == ([], [])
    retry = backend.post(key='"k"')
    assert (retry.status, retry.replayed) == (201, False)
    assert backend.rows() == ["book"]


@pytest.mark.contract("C17")
def test_c17_an_exception_leaves_nothing_rises_as_it_is_and_a_retry_runs(backend: Backend) -> None:
    error = LookupError("no such book")
    broken = backend.post(key='"k"', plan=Plan(error=error))
    assert (broken.status, broken.error) == (500, error)
    assert (backend.rows(), backend.records(), backend.status_of('"k"')["state"]) == ([], [], "unknown")
    assert backend.post(key='"k"').status == 201
    assert backend.rows() == ["book"]


@pytest.mark.contract("C17")
def test_c17_after_an_error_the_key_is_free_for_another_payload(backend: Backend) -> None:
    backend.post(key='"k"', body={"item": "book"}, plan=Plan(status=500))
    assert backend.post(key='"k"', body={"item": "pen"}).status == 201
    assert backend.rows() == ["pen"]


SECRETS = (
    ("set-cookie", "session=s3cr3t-cookie"),
    ("www-authenticate", 'Bearer realm="s3cr3t-realm"'),
    ("authentication-info", "nextnonce=s3cr3t-nonce"),
    ("proxy-authenticate", "Basic s3cr3t-proxy"),
    ("authorization", "Bearer s3cr3t-token"),
    ("x-auth-token", "s3cr3t-header"),
)


@pytest.mark.contract("C25")
def test_c25_cookies_challenges_and_tokens_reach_the_first_client_only(backend: Backend) -> None:
    first = backend.post(key='"k"', plan=Plan(headers=SECRETS + KEPT[:2]))
    assert first.headers[: len(SECRETS)] == SECRETS
    retry = backend.post(key='"k"')
    assert (retry.replayed, retry.header("location")) == (True, "/orders/17")
    assert not any("s3cr3t" in value for _, value in retry.headers)
    [record] = backend.records()
    assert b"s3cr3t" not in record.headers
    assert len(backend.calls) == 1
