"""What a retry gets after the application was changed in a way its client cannot see."""

from __future__ import annotations

import json

import pytest

from onefold._http.route_policy import Settings
from onefold._idempotency.fingerprint import RequestContent, Strategy
from onefold.policies import canonical_json, named_strategy, raw_bytes, selected_fields
from tests.contract.backends import Backend
from tests.contract.plans import Plan, RequestGuard
from tests.contract.rows import POSTGRES

BODY = b'{"item": "book", "cents": 5}'
REFUNDS = "/orders/17/refunds"


@pytest.mark.contract("C41")
@pytest.mark.parametrize("renamed", ["/orders/{order_id}/refunds", "/orders/{id:path}/refunds"])
def test_c41_a_parameter_that_is_renamed_does_not_run_keys_again(backend: Backend, renamed: str) -> None:
    backend.serve(routes={"POST /orders/{id}/refunds": {}})
    first = backend.post(REFUNDS, key='"k"', plan=Plan(body=b"refunded"))
    backend.serve(routes={f"POST {renamed}": {}})
    retry = backend.post(REFUNDS, key='"k"')
    assert (retry.status, retry.body, retry.replayed) == (first.status, b"refunded", True)
    assert backend.post("/orders/18/refunds", key='"k"').status == 422
    assert len(backend.calls) == 1


@pytest.mark.contract("C41")
def test_c41_a_route_that_moves_keeps_its_keys_by_its_operation(backend: Backend) -> None:
    backend.serve(routes={"POST /orders/{id}/refunds": {"operation": "refund"}})
    backend.post(REFUNDS, key='"k"', plan=Plan(body=b"refunded"))
    backend.serve(routes={"POST /v2/refunds/{order}": {"operation": "refund"}})
    retry = backend.post("/v2/refunds/17", key='"k"')
    assert (retry.body, retry.replayed) == (b"refunded", True)
    assert backend.post("/v2/refunds/18", key='"k"').status == 422
    assert len(backend.calls) == 1


@pytest.mark.contract("C41")
def test_c41_a_route_may_get_an_operation_later_or_take_its_template_for_one(backend: Backend) -> None:
    backend.serve(routes={"POST /orders/{id}/refunds": {}})
    backend.post(REFUNDS, key='"k"')
    backend.serve(routes={"POST /orders/{id}/refunds": {"operation": "refund"}})
    assert backend.post(REFUNDS, key='"k"').replayed
    backend.serve(routes={"POST /moved/{id}": {"operation": "/orders/{any}/refunds"}})
    assert backend.post("/moved/17", key='"k"').replayed
    assert len(backend.calls) == 1


@pytest.mark.contract("C23")
def test_c23_an_operation_belongs_to_a_method(backend: Backend) -> None:
    shared: Settings = {"operation": "order"}
    backend.serve(routes={"POST /orders": shared, "DELETE /orders": shared})
    assert not backend.post(key='"k"').replayed
    assert not backend.post(key='"k"', method="DELETE").replayed


def by_item(content: RequestContent) -> bytes:
    return bytes(json.loads(content.body)["item"], "utf-8")


ITEM = named_strategy("item", by_item)


@pytest.mark.contract("C41")
@pytest.mark.parametrize(
    ("before", "after", "other"),
    [
        (canonical_json, raw_bytes, b'{"cents":5, "item": "pen"}'),
        (raw_bytes, canonical_json, BODY + b" "),
        (selected_fields("item"), canonical_json, b'{"item": "pen"}'),
        (canonical_json, selected_fields("cents"), b'{"item": "pen", "cents": 5}'),
        (selected_fields("item"), selected_fields("cents"), b'{"item": "pen", "cents": 5}'),
        (canonical_json, by_item, b'{"item": "book", "cents": 6}'),
        (ITEM, raw_bytes, b'{"item": "pen"}'),
    ],
)
def test_c41_a_strategy_that_changes_does_not_turn_keys_into_mismatches(
    backend: Backend, before: Strategy, after: Strategy, other: bytes
) -> None:
    backend.serve(routes={"POST /orders": {"fingerprint": before}})
    backend.post(body=BODY, key='"k"')
    backend.serve(routes={"POST /orders": {"fingerprint": after, "fingerprint_before": (ITEM,)}})
    assert backend.post(body=BODY, key='"k"').replayed
    assert backend.post(body=other, key='"k"').status == 422, "compared the way the record was made"
    assert len(backend.calls) == 1


@pytest.mark.contract("C41", backends=POSTGRES)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (canonical_json, raw_bytes),
        (raw_bytes, canonical_json),
        (selected_fields("item"), canonical_json),
        (ITEM, raw_bytes),
    ],
)
def test_c41_the_same_bytes_in_flight_are_a_conflict_whatever_the_strategies(
    backend: Backend, before: Strategy, after: Strategy
) -> None:
    backend.serve(routes={"POST /orders": {"fingerprint": before}})
    guard = RequestGuard()
    running = backend.start(body=BODY, key='"k"', plan=Plan(guard=guard))
    guard.await_arrival()
    backend.serve(routes={"POST /orders": {"fingerprint": after}})
    assert backend.post(body=BODY, key='"k"').status == 409
    assert backend.post(body=b'{"item": "pen"}', key='"k"').status == 422
    guard.open()
    assert running.answer().status == 201


@pytest.mark.contract("C41")
def test_c41_a_strategy_that_is_gone_is_said_and_nothing_is_decided(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.serve(routes={"POST /orders": {"fingerprint": ITEM}})
    backend.post(body=BODY, key='"k"')
    backend.serve(routes={"POST /orders": {}})
    refused = backend.post(body=BODY, key='"k"')
    assert (refused.status, refused.json["retryable"]) == (503, True)
    assert "b'citem'" in caplog.text
    assert "fingerprint_before" in caplog.text
    assert len(backend.calls) == 1


def form(boundary: str, item: str = "book") -> bytes:
    return (
        f'--{boundary}\r\nContent-Disposition: form-data; name="item"\r\n\r\n{item}\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n'
        f"Content-Type: image/png\r\n\r\n\x02\r\n\x01\r\n--{boundary}--\r\n"
    ).encode("latin-1")


@pytest.mark.contract("C40")
def test_c40_the_same_form_with_another_boundary_is_a_replay(backend: Backend) -> None:
    def post(boundary: str, body: bytes) -> tuple[int, bool]:
        answer = backend.post(body=body, key='"k"', media_type=f"multipart/form-data; boundary={boundary}")
        return answer.status, answer.replayed

    assert post("first", form("first")) == (201, False)
    assert post("second", form("second")) == (201, True)
    assert post('"third"', form("third")) == (201, True)
    assert post("fourth", form("fourth", item="pen")) == (422, False)
    assert post("fifth", form("first")) == (422, False)
    assert len(backend.calls) == 1


@pytest.mark.contract("C40")
def test_c40_the_same_form_in_flight_is_a_conflict_and_no_mismatch(backend: Backend) -> None:
    guard = RequestGuard()
    running = backend.start(
        body=form("a"), key='"k"', media_type="multipart/form-data; boundary=a", plan=Plan(guard=guard, writes=False)
    )
    guard.await_arrival()
    assert backend.post(body=form("b"), key='"k"', media_type="multipart/form-data; boundary=b").status == 409
    guard.open()
    assert running.answer().status == 201
