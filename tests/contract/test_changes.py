"""What a retry gets after the application was changed in a way its client cannot see."""

from __future__ import annotations

import json

import pytest

from onefold import canonical_json, named_strategy, raw_bytes, selected_fields
from onefold.http.policy import Settings
from onefold.idempotency.fingerprint import Asked, Strategy
from tests.contract.plans import Gate, Plan
from tests.contract.rows import POSTGRES
from tests.contract.worlds import World

BODY = b'{"item": "book", "cents": 5}'
REFUNDS = "/orders/17/refunds"


@pytest.mark.contract("C41")
@pytest.mark.parametrize("renamed", ["/orders/{order_id}/refunds", "/orders/{id:path}/refunds"])
def test_c41_a_parameter_that_is_renamed_does_not_run_keys_again(world: World, renamed: str) -> None:
    world.serve(routes={"POST /orders/{id}/refunds": {}})
    first = world.post(REFUNDS, key='"k"', plan=Plan(body=b"refunded"))
    world.serve(routes={f"POST {renamed}": {}})
    retry = world.post(REFUNDS, key='"k"')
    assert (retry.status, retry.body, retry.replayed) == (first.status, b"refunded", True)
    assert world.post("/orders/18/refunds", key='"k"').status == 422
    assert len(world.calls) == 1


@pytest.mark.contract("C41")
def test_c41_a_route_that_moves_keeps_its_keys_by_its_operation(world: World) -> None:
    world.serve(routes={"POST /orders/{id}/refunds": {"operation": "refund"}})
    world.post(REFUNDS, key='"k"', plan=Plan(body=b"refunded"))
    world.serve(routes={"POST /v2/refunds/{order}": {"operation": "refund"}})
    retry = world.post("/v2/refunds/17", key='"k"')
    assert (retry.body, retry.replayed) == (b"refunded", True)
    assert world.post("/v2/refunds/18", key='"k"').status == 422
    assert len(world.calls) == 1


@pytest.mark.contract("C41")
def test_c41_a_route_may_get_an_operation_later_or_take_its_template_for_one(world: World) -> None:
    world.serve(routes={"POST /orders/{id}/refunds": {}})
    world.post(REFUNDS, key='"k"')
    world.serve(routes={"POST /orders/{id}/refunds": {"operation": "refund"}})
    assert world.post(REFUNDS, key='"k"').replayed
    world.serve(routes={"POST /moved/{id}": {"operation": "/orders/{any}/refunds"}})
    assert world.post("/moved/17", key='"k"').replayed
    assert len(world.calls) == 1


@pytest.mark.contract("C23")
def test_c23_an_operation_belongs_to_a_method(world: World) -> None:
    shared: Settings = {"operation": "order"}
    world.serve(routes={"POST /orders": shared, "DELETE /orders": shared})
    assert not world.post(key='"k"').replayed
    assert not world.post(key='"k"', method="DELETE").replayed


def by_item(asked: Asked) -> bytes:
    return bytes(json.loads(asked.body)["item"], "utf-8")


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
    world: World, before: Strategy, after: Strategy, other: bytes
) -> None:
    world.serve(routes={"POST /orders": {"fingerprint": before}})
    world.post(body=BODY, key='"k"')
    world.serve(routes={"POST /orders": {"fingerprint": after, "fingerprint_before": (ITEM,)}})
    assert world.post(body=BODY, key='"k"').replayed
    assert world.post(body=other, key='"k"').status == 422, "compared the way the record was made"
    assert len(world.calls) == 1


@pytest.mark.contract("C41", worlds=POSTGRES)
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
    world: World, before: Strategy, after: Strategy
) -> None:
    world.serve(routes={"POST /orders": {"fingerprint": before}})
    gate = Gate()
    running = world.start(body=BODY, key='"k"', plan=Plan(gate=gate))
    gate.await_arrival()
    world.serve(routes={"POST /orders": {"fingerprint": after}})
    assert world.post(body=BODY, key='"k"').status == 409
    assert world.post(body=b'{"item": "pen"}', key='"k"').status == 422
    gate.open()
    assert running.answer().status == 201


@pytest.mark.contract("C41")
def test_c41_a_strategy_that_is_gone_is_said_and_nothing_is_decided(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.serve(routes={"POST /orders": {"fingerprint": ITEM}})
    world.post(body=BODY, key='"k"')
    world.serve(routes={"POST /orders": {}})
    refused = world.post(body=BODY, key='"k"')
    assert (refused.status, refused.json["retryable"]) == (503, True)
    assert "b'citem'" in caplog.text
    assert "fingerprint_before" in caplog.text
    assert len(world.calls) == 1


def form(boundary: str, item: str = "book") -> bytes:
    return (
        f'--{boundary}\r\nContent-Disposition: form-data; name="item"\r\n\r\n{item}\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="photo"; filename="a.png"\r\n'
        f"Content-Type: image/png\r\n\r\n\x02\r\n\x01\r\n--{boundary}--\r\n"
    ).encode("latin-1")


@pytest.mark.contract("C40")
def test_c40_the_same_form_with_another_boundary_is_a_replay(world: World) -> None:
    def post(boundary: str, body: bytes) -> tuple[int, bool]:
        answer = world.post(body=body, key='"k"', media_type=f"multipart/form-data; boundary={boundary}")
        return answer.status, answer.replayed

    assert post("first", form("first")) == (201, False)
    assert post("second", form("second")) == (201, True)
    assert post('"third"', form("third")) == (201, True)
    assert post("fourth", form("fourth", item="pen")) == (422, False)
    assert post("fifth", form("first")) == (422, False)
    assert len(world.calls) == 1


@pytest.mark.contract("C40")
def test_c40_the_same_form_in_flight_is_a_conflict_and_no_mismatch(world: World) -> None:
    gate = Gate()
    running = world.start(
        body=form("a"), key='"k"', media_type="multipart/form-data; boundary=a", plan=Plan(gate=gate, writes=False)
    )
    gate.await_arrival()
    assert world.post(body=form("b"), key='"k"', media_type="multipart/form-data; boundary=b").status == 409
    gate.open()
    assert running.answer().status == 201
