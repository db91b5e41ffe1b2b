"""A handler that raised, and one whose answer does not go out: half of its work does not stay, and none follows."""

from __future__ import annotations

import pytest

from onefold import Released
from tests.contract.plans import Desk, Plan
from tests.contract.rows import ASGI, POSTGRES
from tests.contract.worlds import World


async def publish(desk: Desk) -> None:
    assert desk.tx is not None
    await desk.tx.publish("orders", {"item": "book"})


def raising(status: int, *, acts: bool = False) -> Plan:
    return Plan(rescued=Plan(status=status, body=b"rescued"), acts=publish if acts else None)


@pytest.mark.contract("C37")
@pytest.mark.parametrize("status", [200, 201, 303])
def test_c37_an_exception_handler_that_answers_success_does_not_keep_half_a_handler(
    world: World, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    world.serve(framework=True)
    answer = world.post(key='"k"', plan=raising(status, acts=True))
    assert (answer.status, answer.body) == (status, b"rescued")
    assert (world.rows(), world.records()) == ([], [])
    assert world.sql("SELECT count(*) FROM onefold_outbox") == [(0,)]
    assert Released("POST /orders", "Rescued") in world.events
    assert f"raised Rescued and an exception handler answered {status}" in caplog.text
    retry = world.post(key='"k"')
    assert (retry.status, retry.replayed) == (201, False)
    assert world.rows() == ["book"]


@pytest.mark.contract("C37")
def test_c37_a_refusal_by_an_exception_handler_is_stored_without_the_rows(world: World) -> None:
    world.serve(framework=True)
    for _ in range(2):
        answer = world.post(key='"k"', plan=raising(409, acts=True))
        assert (answer.status, answer.body) == (409, b"rescued")
    assert answer.replayed
    assert len(world.calls) == 1
    assert world.rows() == []
    assert world.sql("SELECT count(*) FROM onefold_outbox") == [(0,)]


@pytest.mark.contract("C37")
def test_c37_without_a_key_half_a_handler_does_not_stay_either(world: World) -> None:
    world.serve(framework=True)
    for status in (200, 303, 409):
        assert world.post(plan=raising(status)).status == status
    assert world.rows() == []
    assert world.post().status == 201
    assert world.rows() == ["book"]


@pytest.mark.contract("C38")
def test_c38_what_follows_an_answer_does_not_follow_the_one_that_goes_out_in_its_place(world: World) -> None:
    world.serve(framework=True, development=True)
    mails: list[list[str]] = []

    def mail() -> None:
        mails.append(world.rows())

    # In development a success that never used its transaction is refused.
    for key in ('"k"', None):
        refused = world.post(key=key, plan=Plan(writes=False, follows=mail))
        assert (refused.status, refused.problem, mails) == (500, "handler-broken", [])
    assert world.post(key='"k"', plan=Plan(follows=mail)).status == 201
    assert mails == [["book"]]
    assert world.post(key='"k"', plan=Plan(follows=mail)).replayed
    assert mails == [["book"]]


@pytest.mark.contract("C38", worlds=POSTGRES)
def test_c38_nothing_follows_an_answer_whose_commit_failed(world: World) -> None:
    world.serve(framework=True)
    world.sql("ALTER TABLE orders ADD CONSTRAINT one UNIQUE (item) DEFERRABLE INITIALLY DEFERRED")
    world.sql("INSERT INTO orders VALUES ('book')")
    mails: list[str] = []
    for key in ('"k"', None):
        assert world.post(key=key, plan=Plan(follows=lambda: mails.append("sent"))).status == 500
    assert (mails, world.rows(), world.records()) == ([], ["book"], [])


@pytest.mark.contract("C38", worlds=ASGI)
def test_c38_an_application_without_a_framework_is_stopped_where_it_sends(world: World) -> None:
    world.serve(development=True, settings={"response_bytes_max": 10})
    broken = LookupError("the rest was made")
    refused = world.post(key='"k"', plan=Plan(writes=False, chunks=(b"x" * 11, b"rest"), breaks=broken))
    assert (refused.status, refused.problem, refused.error) == (500, "handler-broken", None)
