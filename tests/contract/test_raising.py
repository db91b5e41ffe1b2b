"""A handler that raised, and one whose answer does not go out: half of its work does not stay, and none follows."""

from __future__ import annotations

import pytest

from onefold.telemetry import Released
from tests.contract.backends import Backend
from tests.contract.plans import Desk, Plan
from tests.contract.rows import ASGI, POSTGRES


async def publish(desk: Desk) -> None:
    assert desk.tx is not None
    await desk.tx.publish("orders", {"item": "book"})


def raising(status: int, *, acts: bool = False) -> Plan:
    return Plan(rescued=Plan(status=status, body=b"rescued"), acts=publish if acts else None)


@pytest.mark.contract("C37")
@pytest.mark.parametrize("status", [200, 201, 303])
def test_c37_an_exception_handler_that_answers_success_does_not_keep_half_a_handler(
    backend: Backend, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    backend.serve(framework=True)
    answer = backend.post(key='"k"', plan=raising(status, acts=True))
    assert (answer.status, answer.body) == (status, b"rescued")
    assert (backend.rows(), backend.records()) == ([], [])
    assert backend.sql("SELECT count(*) FROM onefold_outbox") == [(0,)]
    assert Released("POST /orders", "Rescued") in backend.events
    assert f"raised Rescued and an exception handler answered {status}" in caplog.text
    retry = backend.post(key='"k"')
    assert (retry.status, retry.replayed) == (201, False)
    assert backend.rows() == ["book"]


@pytest.mark.contract("C37")
def test_c37_a_refusal_by_an_exception_handler_is_stored_without_the_rows(backend: Backend) -> None:
    backend.serve(framework=True)
    for _ in range(2):
        answer = backend.post(key='"k"', plan=raising(409, acts=True))
        assert (answer.status, answer.body) == (409, b"rescued")
    assert answer.replayed
    assert len(backend.calls) == 1
    assert backend.rows() == []
    assert backend.sql("SELECT count(*) FROM onefold_outbox") == [(0,)]


@pytest.mark.contract("C37")
def test_c37_without_a_key_half_a_handler_does_not_stay_either(backend: Backend) -> None:
    backend.serve(framework=True)
    for status in (200, 303, 409):
        assert backend.post(plan=raising(status)).status == status
    assert backend.rows() == []
    assert backend.post().status == 201
    assert backend.rows() == ["book"]


@pytest.mark.contract("C38")
def test_c38_what_follows_an_answer_does_not_follow_the_one_that_goes_out_in_its_place(backend: Backend) -> None:
    backend.serve(framework=True, development=True)
    mails: list[list[str]] = []

    def mail() -> None:
        mails.append(backend.rows())

    # In development a success that never used its transaction is refused.
    for key in ('"k"', None):
        refused = backend.post(key=key, plan=Plan(writes=False, follows=mail))
        assert (refused.status, refused.problem, mails) == (500, "handler-broken", [])
    assert backend.post(key='"k"', plan=Plan(follows=mail)).status == 201
    assert mails == [["book"]]
    assert backend.post(key='"k"', plan=Plan(follows=mail)).replayed
    assert mails == [["book"]]


@pytest.mark.contract("C38", backends=POSTGRES)
def test_c38_nothing_follows_an_answer_whose_commit_failed(backend: Backend) -> None:
    backend.serve(framework=True)
    backend.sql("ALTER TABLE orders ADD CONSTRAINT one UNIQUE (item) DEFERRABLE INITIALLY DEFERRED")
    backend.sql("INSERT INTO orders VALUES ('book')")
    mails: list[str] = []
    for key in ('"k"', None):
        assert backend.post(key=key, plan=Plan(follows=lambda: mails.append("sent"))).status == 500
    assert (mails, backend.rows(), backend.records()) == ([], ["book"], [])


@pytest.mark.contract("C38", backends=ASGI)
def test_c38_an_application_without_a_framework_is_stopped_where_it_sends(backend: Backend) -> None:
    backend.serve(development=True, settings={"response_bytes_max": 10})
    broken = LookupError("the rest was made")
    refused = backend.post(key='"k"', plan=Plan(writes=False, chunks=(b"x" * 11, b"rest"), breaks=broken))
    assert (refused.status, refused.problem, refused.error) == (500, "handler-broken", None)
