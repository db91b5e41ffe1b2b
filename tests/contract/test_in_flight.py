"""Duplicates that come while the first is running, and the resource that tells what became of a key."""

from __future__ import annotations

import time
from concurrent.futures import FIRST_COMPLETED, Future, wait

import pytest

from tests.contract.plans import Desk, Gate, Plan
from tests.contract.rows import SQLITE
from tests.contract.wire import Answer
from tests.contract.worlds import World
from tests.patience import PATIENCE_S

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
def test_c18_of_twenty_duplicates_one_runs_and_the_others_are_told_to_wait(world: World) -> None:
    gate = Gate()
    crowd = [world.start(key='"k"', plan=Plan(gate=gate)).future for _ in range(CROWD)]
    refused = first_done(crowd, CROWD - 1)
    gate.open()
    assert {(answer.status, answer.problem) for answer in refused} == {(409, "key-in-flight")}
    assert all(int(answer.header("retry-after") or 0) >= 1 for answer in refused)
    assert all(answer.json["retryable"] for answer in refused)
    [winner] = [answer for answer in first_done(crowd, CROWD) if answer.status != 409]
    assert (winner.status, winner.replayed) == (201, False)
    assert len(world.calls) == 1
    assert world.rows() == ["book"]


@pytest.mark.contract("C18", worlds=SQLITE)
def test_c18_a_handler_that_is_alive_is_never_run_beside_itself_however_long_it_takes(world: World) -> None:
    """It has its transaction in hand and has written nothing yet; it may be calling a card processor."""

    gate = Gate()

    async def touch_and_wait(desk: Desk) -> None:
        assert desk.connection is not None
        await desk.pass_gate(gate)

    world.serve(settings={"lease_s": 0.1})
    running = world.start(key='"k"', plan=Plan(writes=False, acts=touch_and_wait))
    gate.await_arrival()
    time.sleep(0.5)  # longer than its lease_s: this is about real time passing
    assert world.post(key='"k"').problem == "key-in-flight"
    assert world.post(key='"k"', body={"item": "another"}).problem == "key-reused"
    gate.open()
    assert (running.answer().status, running.answer().replayed) == (201, False)
    assert len(world.calls) == 1


@pytest.mark.contract("C18")
def test_c18_twenty_duplicates_that_race_freely_run_once(world: World) -> None:
    crowd = [world.start(key='"k"').future for _ in range(CROWD)]
    answers = first_done(crowd, CROWD)
    assert {answer.status for answer in answers} <= {201, 409}
    assert sum(answer.status == 201 and not answer.replayed for answer in answers) == 1
    assert len(world.calls) == 1
    assert world.rows() == ["book"]


@pytest.mark.contract("C18")
def test_c18_where_the_route_waits_every_duplicate_gets_the_answer(world: World) -> None:
    world.serve(settings={"wait_s": 15})
    gate = Gate()
    running = world.start(key='"k"', plan=Plan(gate=gate, body=b"the one answer"))
    gate.await_arrival()
    crowd = [world.start(key='"k"').future for _ in range(CROWD - 1)]
    gate.open()
    assert running.answer().status == 201
    answers = first_done(crowd, CROWD - 1)
    assert {(answer.status, answer.body, answer.replayed) for answer in answers} == {(201, b"the one answer", True)}
    assert len(world.calls) == 1


@pytest.mark.contract("C18")
def test_c18_a_wait_is_bounded(world: World) -> None:
    world.serve(settings={"wait_s": 0.05})
    gate = Gate()
    running = world.start(key='"k"', plan=Plan(gate=gate))
    gate.await_arrival()
    assert world.post(key='"k"').problem == "key-in-flight"
    gate.open()
    assert running.answer().status == 201


@pytest.mark.contract("C18")
def test_c18_a_duplicate_that_waited_for_a_failure_runs_itself(world: World) -> None:
    world.serve(settings={"wait_s": 15})
    gate = Gate()
    failing = world.start(key='"k"', plan=Plan(gate=gate, status=500))
    gate.await_arrival()
    waiting = world.start(key='"k"', plan=Plan(body=b"second try"))
    gate.open()
    assert failing.answer().status == 500
    assert (waiting.answer().status, waiting.answer().body) == (201, b"second try")
    assert world.rows() == ["book"]


@pytest.mark.contract("C18")
def test_c18_the_applications_own_conflict_is_told_apart(world: World) -> None:
    own = Plan(status=409, headers=(("content-type", "application/problem+json"),), body=b'{"type":"urn:shop:sold"}')
    world.post(key='"k"', plan=own)
    retry = world.post(key='"k"')
    assert (retry.status, retry.body, retry.replayed) == (409, b'{"type":"urn:shop:sold"}', True)


@pytest.mark.contract("C32")
def test_c32_a_key_is_unknown_then_in_flight_then_done(world: World) -> None:
    assert world.status_of('"k"') == {"operation": "POST /orders", "state": "unknown"}
    gate = Gate()
    running = world.start(key='"k"', plan=Plan(gate=gate))
    gate.await_arrival()
    assert world.status_of('"k"') == {"operation": "POST /orders", "state": "in_flight"}
    gate.open()
    running.answer()
    done = world.status_of('"k"')
    assert (done["state"], done["status"]) == ("done", 201)
    assert done["expires_at"].endswith("Z")
    assert len(world.calls) == 1


@pytest.mark.contract("C32")
def test_c32_asking_disturbs_nobody(world: World) -> None:
    gate = Gate()
    running = world.start(key='"k"', plan=Plan(gate=gate))
    gate.await_arrival()
    asking = {"method": "GET", "query": "operation=POST%20/orders", "key": '"k"'}
    crowd = [world.start("/onefold/status", b"", **asking).future for _ in range(CROWD)]  # type: ignore[arg-type]
    assert {answer.json["state"] for answer in first_done(crowd, CROWD)} == {"in_flight"}
    assert world.post(key='"k"').problem == "key-in-flight"
    gate.open()
    assert running.answer().status == 201


@pytest.mark.contract("C32")
def test_c32_a_key_is_shown_to_its_own_principal_only(world: World) -> None:
    world.post(key='"k"', account="acme")
    assert world.status_of('"k"', account="acme")["state"] == "done"
    assert world.status_of('"k"', account="evil")["state"] == "unknown"
    nobody = world.get("/onefold/status", query="operation=POST%20/orders", key='"k"', account="")
    assert (nobody.status, nobody.problem) == (401, "principal-missing")


@pytest.mark.contract("C32")
def test_c32_a_question_that_names_no_key_or_no_operation_is_refused(world: World) -> None:
    assert world.get("/onefold/status", query="operation=POST%20/orders").problem == "key-missing"
    assert world.get("/onefold/status", query="operation=POST%20/orders", key='"bad').problem == "key-malformed"
    unknown = world.get("/onefold/status", query="operation=POST%20/nothing", key='"k"')
    assert (unknown.status, unknown.problem, unknown.json["retryable"]) == (404, "operation-unknown", False)
    assert world.get("/onefold/status", query="", key='"k"').problem == "operation-unknown"
    assert "POST /orders" in unknown.json["detail"]


@pytest.mark.contract("C32")
def test_c32_an_expired_key_is_unknown_again(world: World) -> None:
    world.post(key='"k"')
    world.expire_all()
    assert world.status_of('"k"')["state"] == "unknown"
