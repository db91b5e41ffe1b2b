"""When two requests are the same request: what is compared, what is not, and what a mismatch gets."""

from __future__ import annotations

import json

import pytest

from onefold._http.route_policy import Settings
from onefold._idempotency.fingerprint import RequestContent, Strategy
from onefold.policies import canonical_json, raw_bytes, selected_fields
from tests.contract.backends import Backend
from tests.contract.plans import Plan, RequestGuard
from tests.contract.wire import HeaderLines


@pytest.mark.contract("C07")
def test_c07_another_payload_is_refused_and_the_first_answer_stays(backend: Backend) -> None:
    first = backend.post(body={"item": "book"}, key='"k"', plan=Plan(body=b'{"id": 1}'))
    other = backend.post(body={"item": "pen"}, key='"k"', plan=Plan(body=b'{"id": 2}'))
    assert (other.status, other.problem, other.json["retryable"]) == (422, "key-reused", False)
    assert len(backend.calls) == 1
    again = backend.post(body={"item": "book"}, key='"k"')
    assert (again.status, again.body, again.replayed) == (first.status, b'{"id": 1}', True)
    assert backend.rows() == ["book"]


@pytest.mark.contract("C07")
def test_c07_another_query_is_another_payload(backend: Backend) -> None:
    backend.post(key='"k"', query="currency=eur")
    assert backend.post(key='"k"', query="currency=usd").problem == "key-reused"
    assert backend.post(key='"k"', query="currency=eur").replayed


@pytest.mark.contract("C07")
def test_c07_a_stored_refusal_keeps_its_key_too(backend: Backend) -> None:
    backend.post(body={"item": "book"}, key='"k"', plan=Plan(status=402))
    assert backend.post(body={"item": "pen"}, key='"k"').status == 422
    assert len(backend.calls) == 1


def by_item(content: RequestContent) -> bytes:
    return bytes(json.loads(content.body)["item"], "utf-8")


@pytest.mark.contract("C11")
@pytest.mark.parametrize(
    ("strategy", "same", "other"),
    [
        (canonical_json, b'{"cents":5.00,"item":"book"}', b'{"item": "book", "cents": 6}'),
        (raw_bytes, b'{"item": "book", "cents": 5}', b'{"item": "book",  "cents": 5}'),
        (selected_fields("item"), b'{"item": "book", "cents": 9}', b'{"item": "pen", "cents": 5}'),
        (by_item, b'{"item": "book", "cents": 9}', b'{"item": "pen", "cents": 5}'),
    ],
    ids=["canonical JSON", "raw bytes", "selected fields", "custom"],
)
def test_c11_a_route_chooses_how_payloads_are_compared(
    backend: Backend, strategy: Strategy, same: bytes, other: bytes
) -> None:
    routes: dict[str, Settings] = {"POST /orders": {"fingerprint": strategy}, "PATCH /orders": {}}
    backend.serve(routes=routes)
    backend.post(body=b'{"item": "book", "cents": 5}', key='"k"')
    assert backend.post(body=same, key='"k"').replayed
    assert backend.post(body=other, key='"k"').status == 422
    assert len(backend.calls) == 1


@pytest.mark.contract("C12")
def test_c12_the_spelling_of_json_does_not_matter(backend: Backend) -> None:
    backend.post(body=b'{"item": "book", "cents": 500}', key='"k"')
    for spelling in (
        b'{"cents":500,"item":"book"}',
        b'\n{ "cents" : 5e2 ,\t"item": "\\u0062ook" }\n',
        b'{"item": "book", "cents": 500.00}',
    ):
        assert backend.post(body=spelling, key='"k"').replayed, spelling


@pytest.mark.contract("C12")
def test_c12_every_digit_of_a_number_counts(backend: Backend) -> None:
    neighbours = (
        (b"9223372036854775807", b"9223372036854775806"),
        (b"18446744073709551615", b"18446744073709551614"),
        (b"0.1000000000000000055511151231257827", b"0.1000000000000000055511151231257828"),
        (b"1e400", b"1e401"),
        (b"1" * 4000, b"1" * 3999 + b"2"),
    )
    for number, (value, neighbour) in enumerate(neighbours):
        key = f'"number-{number}"'
        assert backend.post(body=b"[%b]" % value, key=key).status == 201, value
        assert backend.post(body=b"[%b]" % neighbour, key=key).status == 422, neighbour
        assert backend.post(body=b"[%b]" % value, key=key).replayed, value


@pytest.mark.contract("C13")
def test_c13_what_differs_on_any_retry_does_not_make_another_request(backend: Backend) -> None:
    backend.post(key='"k"', headers=(("user-agent", "retrying/1.0"), ("date", "Mon, 14 Nov 1994 08:12:31 GMT")))
    differences: tuple[HeaderLines, ...] = (
        (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),),
        (("date", "Tue, 15 Nov 1994 08:12:31 GMT"), ("user-agent", "retrying/2.0")),
        (("authorization", "Bearer acme.a-token-that-was-rotated"),),
        (("content-type", "application/json; charset=utf-8"),),
    )
    for headers in differences:
        retry = backend.post(key='"k"', headers=headers)
        assert (retry.status, retry.replayed) == (201, True), headers
    assert len(backend.calls) == 1


@pytest.mark.contract("C19")
@pytest.mark.parametrize("wait_s", [0.0, 0.3], ids=["at once", "where the route waits"])
def test_c19_another_payload_while_the_first_is_in_flight_is_a_mismatch(backend: Backend, wait_s: float) -> None:
    backend.serve(settings={"wait_s": wait_s})
    guard = RequestGuard()
    first = backend.start(body={"item": "book"}, key='"k"', plan=Plan(guard=guard))
    guard.await_arrival()
    other = backend.post(body={"item": "pen"}, key='"k"')
    assert (other.status, other.problem) == (422, "key-reused")
    guard.open()
    assert first.answer().status == 201
    assert backend.rows() == ["book"]


@pytest.mark.contract("C22")
def test_c22_two_principals_with_the_same_key_and_body_are_two_executions(backend: Backend) -> None:
    acme = backend.post(key='"k"', account="acme", plan=Plan(body=b"acme's secret"))
    evil = backend.post(key='"k"', account="evil", plan=Plan(body=b"evil's own"))
    assert (acme.body, acme.replayed) == (b"acme's secret", False)
    assert (evil.body, evil.replayed) == (b"evil's own", False)
    assert backend.post(key='"k"', account="acme").body == b"acme's secret"
    assert backend.post(key='"k"', account="evil").body == b"evil's own"
    assert backend.rows() == ["book", "book"]
    assert len(backend.records()) == 2


@pytest.mark.contract("C22")
def test_c22_another_principal_is_neither_told_of_a_request_in_flight_nor_of_a_mismatch(backend: Backend) -> None:
    guard = RequestGuard()
    running = backend.start(key='"k"', account="acme", plan=Plan(guard=guard, writes=False))
    guard.await_arrival()
    assert backend.post(key='"k"', account="evil").status == 201
    assert backend.post(body={"item": "pen"}, key='"k2"', account="evil").status == 201
    guard.open()
    assert running.answer().status == 201


@pytest.mark.contract("C22")
def test_c22_principals_that_look_alike_are_not_the_same(backend: Backend) -> None:
    alike = (("a", '"bc"'), ("ab", '"c"'), ("ab", '"bc"'), ("AB", '"bc"'), ("ab ", '"bc"'))
    for account, key in alike:
        assert not backend.post(key=key, account=account).replayed, (account, key)
    assert len(backend.calls) == len(alike)


@pytest.mark.contract("C22")
def test_c22_a_request_without_a_principal_is_turned_away(backend: Backend) -> None:
    refused = backend.post(key='"k"', headers=(("authorization", ""),))
    assert (refused.status, refused.problem) == (401, "principal-missing")
    assert not backend.calls
