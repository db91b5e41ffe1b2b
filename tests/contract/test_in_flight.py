"""Duplicates that come while the first is running, and the resource that tells what became of a key."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, wait

import pytest

from tests.contract.backends import Backend
from tests.contract.plans import Desk, Plan, RequestGuard
from tests.contract.rows import SQLITE
from tests.contract.wire import Answer
from tests.support.patience import PATIENCE_S

CROWD = 20


def first_done(futures: list[Future[Answer]], count: int) -> list[Answer]:
    """The answers of the first `count` requests that have one."""
    done: set[Future[Answer]] = set()
    left = set(futures)
    while len(done) < count:
        finished, left = wait(left, PATIENCE_S, FIRST_COMPLETED)
        assert finished, f"only {len(done)} of {count} requests were answered"
        done |= finished
    return [future.result() for future in done]


@pytest.mark.contract("C18")
def test_c18_of_twenty_duplicates_one_runs_and_the_others_are_told_to_wait(backend: Backend) -> None:
    guard = RequestGuard()
    crowd = [backend.start(key='"k"', plan=Plan(guard=guard)).future for _ in range(CROWD)]
    refused = first_done(crowd, CROWD - 1)
    guard.open()
    assert {(answer.status, answer.problem) for answer in refused} == {(409, "key-in-flight")}
    assert all(int(answer.header("retry-after") or 0) >= 1 for answer in refused)
    assert all(answer.json["retryable"] for answer in refused)
    [winner] = [answer for answer in first_done(crowd, CROWD) if answer.status != 409]
    assert (winner.status, winner.replayed) == (201, False)
    assert len(backend.calls) == 1
    assert backend.rows() == ["book"]


@pytest.mark.contract("C18", backends=SQLITE)
def test_c18_a_handler_that_is_alive_is_never_run_beside_itself_however_long_it_takes(backend: Backend) -> None:
    """It has its transaction in hand and has written nothing yet; it may be calling a card processor."""

    guard = RequestGuard()

    async def touch_and_wait(desk: Desk) -> None:
        assert desk.connection is not None
        await desk.pass_guard(guard)

    backend.serve(settings={"lease_s": 0.1})
    running = backend.start(key='"k"', plan=Plan(writes=False, acts=touch_and_wait))
    guard.await_arrival()
    time.sleep(0.5)  # longer than its lease_s: this is about real time passing
    assert backend.post(key='"k"').problem == "key-in-flight"
    assert backend.post(key='"k"', body={"item": "another"}).problem == "key-reused"
    guard.open()
    assert (running.answer().status, running.answer().replayed) == (201, False)
    assert len(backend.calls) == 1


@pytest.mark.contract("C18")
def test_c18_twenty_duplicates_that_race_freely_run_once(backend: Backend) -> None:
    crowd = [backend.start(key='"k"').future for _ in range(CROWD)]
    answers = first_done(crowd, CROWD)
    assert {answer.status for answer in answers} <= {201, 409}
    assert sum(answer.status == 201 and not answer.replayed for answer in answers) == 1
    assert len(backend.calls) == 1
    assert backend.rows() == ["book"]


@pytest.mark.contract("C18")
def test_c18_where_the_route_waits_every_duplicate_gets_the_answer(backend: Backend) -> None:
    backend.serve(settings={"wait_s": 15})
    guard = RequestGuard()
    running = backend.start(key='"k"', plan=Plan(guard=guard, body=b"the one answer"))
    guard.await_arrival()
    crowd = [backend.start(key='"k"').future for _ in range(CROWD - 1)]
    guard.open()
    assert running.answer().status == 201
    answers = first_done(crowd, CROWD - 1)
    assert {(answer.status, answer.body, answer.replayed) for answer in answers} == {(201, b"the one answer", True)}
    assert len(backend.calls) == 1


@pytest.mark.contract("C18")
def test_c18_a_wait_is_bounded(backend: Backend) -> None:
    backend.serve(settings={"wait_s": 0.05})
    guard = RequestGuard()
    running = backend.start(key='"k"', plan=Plan(guard=guard))
    guard.await_arrival()
    assert backend.post(key='"k"').problem == "key-in-flight"
    guard.open()
    assert running.answer().status == 201


@pytest.mark.contract("C18")
def test_c18_a_duplicate_that_waited_for_a_failure_runs_itself(backend: Backend) -> None:
    backend.serve(settings={"wait_s": 15})
    guard = RequestGuard()
    failing = backend.start(key='"k"', plan=Plan(guard=guard, status=500))
    guard.await_arrival()
    waiting = backend.start(key='"k"', plan=Plan(body=b"second try"))
    guard.open()
    assert failing.answer().status == 500
    assert (waiting.answer().status, waiting.answer().body) == (201, b"second try")
    assert backend.rows() == ["book"]


@pytest.mark.contract("C18")
def test_c18_the_applications_own_conflict_is_told_apart(backend: Backend) -> None:
    own = Plan(status=409, headers=(("content-type", "application/problem+json"),), body=b'{"type":"urn:shop:sold"}')
    backend.post(key='"k"', plan=own)
    retry = backend.post(key='"k"')
    assert (retry.status, retry.body, retry.replayed) == (409, b'{"type":"urn:shop:sold"}', True)


@pytest.mark.contract("C32")
def test_c32_a_key_is_unknown_then_in_flight_then_done(backend: Backend) -> None:
    assert backend.status_of('"k"') == {"operation": "POST /orders", "state": "unknown"}
    guard = RequestGuard()
    running = backend.start(key='"k"', plan=Plan(guard=guard))
    guard.await_arrival()
    assert backend.status_of('"k"') == {"operation": "POST /orders", "state": "in_flight"}
    guard.open()
    running.answer()
    done = backend.status_of('"k"')
    assert (done["state"], done["status"]) == ("done", 201)
    assert done["expires_at"].endswith("Z")
    assert len(backend.calls) == 1


@pytest.mark.contract("C32")
def test_c32_asking_disturbs_nobody(backend: Backend) -> None:
    guard = RequestGuard()
    running = backend.start(key='"k"', plan=Plan(guard=guard))
    guard.await_arrival()
    asking = {"method": "GET", "query": "operation=POST%20/orders", "key": '"k"'}
    crowd = [backend.start("/onefold/status", b"", **asking).future for _ in range(CROWD)]  # type: ignore[arg-type]
    assert {answer.json["state"] for answer in first_done(crowd, CROWD)} == {"in_flight"}
    assert backend.post(key='"k"').problem == "key-in-flight"
    guard.open()
    assert running.answer().status == 201


@pytest.mark.contract("C32")
def test_c32_a_key_is_shown_to_its_own_principal_only(backend: Backend) -> None:
    backend.post(key='"k"', account="acme")
    assert backend.status_of('"k"', account="acme")["state"] == "done"
    assert backend.status_of('"k"', account="evil")["state"] == "unknown"
    nobody = backend.get("/onefold/status", query="operation=POST%20/orders", key='"k"', account="")
    assert (nobody.status, nobody.problem) == (401, "principal-missing")


@pytest.mark.contract("C32")
def test_c32_a_question_that_names_no_key_or_no_operation_is_refused(backend: Backend) -> None:
    assert backend.get("/onefold/status", query="operation=POST%20/orders").problem == "key-missing"
    assert backend.get("/onefold/status", query="operation=POST%20/orders", key='"bad').problem == "key-malformed"
    unknown = backend.get("/onefold/status", query="operation=POST%20/nothing", key='"k"')
    assert (unknown.status, unknown.problem, unknown.json["retryable"]) == (404, "operation-unknown", False)
    assert backend.get("/onefold/status", query="", key='"k"').problem == "operation-unknown"
    assert "POST /orders" in unknown.json["detail"]


@pytest.mark.contract("C32")
def test_c32_an_expired_key_is_unknown_again(backend: Backend) -> None:
    backend.post(key='"k"')
    backend.expire_all()
    assert backend.status_of('"k"')["state"] == "unknown"
