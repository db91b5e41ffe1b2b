"""Requests that work in steps, in each framework, on each database: what is recorded is never done again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from onefold import AsyncOnefold, Keyring, single_principal
from onefold.caches import MemoryCache
from onefold.db.sqlite._connection import SqliteConnection
from onefold.errors import WorkParked
from onefold.fastapi import StepOptions, Steps
from onefold.policies import Quota
from onefold.telemetry import CacheLooked, Event
from tests.steps.places import Place, effects
from tests.steps.rides import FRAMEWORKS, Application, breaks


@pytest.fixture(params=FRAMEWORKS)
def rides(request: pytest.FixtureRequest, address: str) -> Iterator[Application]:
    with FRAMEWORKS[request.param](address) as application:
        yield application


def test_the_answer_of_a_work_is_repeated_by_a_cache(address: str, place: Place) -> None:
    looks: list[str] = []

    def hear(event: Event) -> None:
        if isinstance(event, CacheLooked):
            looks.append(event.outcome)

    with FRAMEWORKS["fastapi"](address, cache=MemoryCache(), listener=hear) as rides:
        answers = [rides.post("k1"), rides.post("k1")]
    assert [answer.status_code for answer in answers] == [201, 201]
    assert answers[0].body == answers[1].body
    assert looks == ["miss", "hit"]


def events(place: Place) -> int:
    return len(place.rows("SELECT id FROM onefold_outbox"))


def test_a_request_does_each_step_once_and_leaves_its_record_only(rides: Application, place: Place) -> None:
    first = rides.post()
    assert (first.status_code, first.json()) == (201, {"charge": "ch_0"})
    assert effects(place) == ["paid ch_0", "ride"]
    assert events(place) == 1
    assert (place.works_left(), place.steps_left()) == (0, [])
    again = rides.post()
    assert (again.status_code, again.json(), again.headers["idempotent-replayed"]) == (201, first.json(), "true")
    assert rides.shop.plan.runs["charge"] == 1


def test_an_event_of_the_last_phase_is_stored_once_where_no_finish_follows(rides: Application, place: Place) -> None:
    rides.shop.plan.finishes = False
    assert rides.post().status_code == 201
    assert (effects(place), events(place)) == (["ride"], 1)
    assert (place.works_left(), place.steps_left()) == (0, [])


def test_an_attempt_that_failed_after_a_phase_is_no_record_of_its_quota(address: str, place: Place) -> None:
    with FRAMEWORKS["fastapi"](address, defaults={"quota": Quota(records_per_hour=2)}) as rides:
        rides.shop.plan.after["created"] = breaks
        assert [rides.post().status_code for _ in range(4)] == [500] * 4
        rides.shop.plan.after.clear()
        assert [rides.post(key).status_code for key in ("k-1", "k-2", "k-3")] == [201, 201, 429]


def test_recorded_steps_that_cannot_be_read_are_a_problem_for_the_operator(address: str, place: Place) -> None:
    with FRAMEWORKS["fastapi"](address) as rides:
        rides.shop.plan.after["created"] = breaks
        assert rides.post().status_code == 500
    keys = Keyring({"k": b"k" * 32}, write="k")
    with FRAMEWORKS["fastapi"](address, sealer=keys) as rides:
        answer = rides.post()
        assert (answer.status_code, answer.json()["retryable"]) == (503, False)
        assert answer.json()["type"] == "urn:onefold:problem:work-unreadable"
        assert rides.shop.plan.runs["charge"] == 0
    with FRAMEWORKS["fastapi"](address, sealer=keys, unsealed_answers=True) as rides:
        assert rides.post().status_code == 201


def test_a_request_that_fails_anywhere_is_gone_on_with_where_it_stood(rides: Application, place: Place) -> None:
    plan, processor = rides.shop.plan, rides.shop.processor
    for number, where in enumerate(("insert", "created", "charge", "charged", "pay", "finished"), start=1):
        plan.runs.clear()
        plan.after[where] = breaks
        assert [rides.post(where).status_code for _ in range(2)] == [500, 500]
        plan.after.clear()
        answer = rides.post(where)
        assert (answer.status_code, answer.headers.get("idempotent-replayed")) == (201, None)
        assert answer.json()["charge"].startswith("ch_")
        rows = effects(place)
        assert (len(rows), rows.count("ride")) == (2 * number, number)
        assert events(place) == number
        assert (len(processor.effects), set(processor.effects.values())) == (number, {1})
        assert plan.runs["insert"] == (3 if where == "insert" else 1)
        assert plan.runs["charge"] == (3 if where == "charge" else 1)
        assert (place.works_left(), place.steps_left()) == (0, [])


def test_a_call_that_is_made_again_has_the_same_key(rides: Application, place: Place) -> None:
    rides.shop.processor.fail_next = [ConnectionError("lost"), ConnectionError("lost")]
    assert [rides.post().status_code for _ in range(3)] == [500, 500, 201]
    assert len(rides.shop.processor.calls) == 3
    assert len(set(rides.shop.processor.calls)) == 1


def test_a_request_that_failed_before_its_first_step_leaves_nothing(rides: Application, place: Place) -> None:
    rides.shop.plan.after["insert"] = breaks
    assert rides.post().status_code == 500
    assert place.works_left() == 0


def test_another_payload_under_the_key_of_a_work_is_refused(rides: Application, place: Place) -> None:
    rides.shop.plan.after["created"] = breaks
    assert rides.post().status_code == 500
    assert rides.post(ride={"from": "C", "to": "D"}).status_code == 422


def test_a_work_that_is_being_done_is_in_flight(rides: Application, place: Place) -> None:
    rides.shop.plan.after["created"] = breaks
    assert rides.post().status_code == 500
    place.change(
        "UPDATE onefold_work SET lease_ends_at = now() + interval '1 hour'"
        if place.is_postgres
        else "UPDATE onefold_work SET lease_ends_at_ms = lease_ends_at_ms + 3600000"
    )
    answer = rides.post()
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:onefold:problem:key-in-flight")


def test_a_retry_of_a_request_in_flight_is_told_to_ask_again_when_its_lease_ends(
    rides: Application, place: Place
) -> None:
    """Its process has been silent for half of the lease."""
    rides.shop.plan.after["created"] = breaks
    assert rides.post().status_code == 500
    place.change(
        "UPDATE onefold_work SET lease_ends_at = now() + interval '7 seconds'"
        if place.is_postgres
        else "UPDATE onefold_work SET lease_ends_at_ms = lease_ends_at_ms + 7000"
    )
    answer = rides.post()
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:onefold:problem:key-in-flight")
    assert 2 <= int(answer.headers["retry-after"]) <= 7


def test_a_refusal_keeps_the_phases_and_undoes_the_finish(rides: Application, place: Place) -> None:
    rides.shop.plan.status = 402
    assert rides.post().status_code == 402
    assert effects(place) == ["ride"]
    assert place.works_left() == 0
    rides.shop.plan.status = 201
    again = rides.post()
    assert (again.status_code, again.headers["idempotent-replayed"]) == (402, "true")


def test_a_parked_work_answers_409(rides: Application, place: Place) -> None:
    rides.shop.plan.after["created"] = breaks
    assert rides.post().status_code == 500
    place.change("UPDATE onefold_work SET parked = 'outcome unknown: charge'")
    answer = rides.post()
    assert (answer.status_code, answer.json()["type"]) == (409, "urn:onefold:problem:work-parked")
    assert answer.json()["retryable"] is False
    assert_for_strangers(answer.json())


def assert_for_strangers(problem: dict[str, Any]) -> None:
    """Those who call the application do not know what it is made of."""
    text = f"{problem['title']} {problem['detail']}"
    for word in ("onefold", "work ", "works ", "lease", "phase", "StepOptions", "charge"):
        assert word not in text


def test_a_request_that_the_application_no_longer_knows_is_explained_to_its_client_and_in_the_log(
    rides: Application, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    rides.shop.plan.after["created"] = breaks
    assert rides.post().status_code == 500
    place.change("UPDATE onefold_step SET name = 'begin'")
    answer = rides.post()
    assert (answer.status_code, answer.json()["type"]) == (500, "urn:onefold:problem:work-changed")
    assert_for_strangers(answer.json())
    assert "has recorded phase 'begin' there" in caplog.text


@pytest.mark.parametrize("swallows", [False, True])
async def test_the_attempt_that_parks_a_work_answers_as_those_after_it_do(sqlite_path: Path, swallows: bool) -> None:
    app, once = FastAPI(), AsyncOnefold(sqlite_path, principal=single_principal)
    once.install(app)

    async def lose() -> None:
        raise ConnectionError("the answer was lost")

    @app.post("/rides")
    @once.idempotent(required=True)
    async def create_ride(work: Steps) -> None:
        try:
            await work.call(StepOptions("charge", repeatable=False), lose)
        except WorkParked:
            if not swallows:
                raise

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        lost, parking, parked = [await client.post("/rides", headers={"Idempotency-Key": '"k"'}) for _ in range(3)]
    await once.close()
    assert lost.status_code == 500
    assert (parking.status_code, parking.json()["type"]) == (409, "urn:onefold:problem:work-parked")
    assert_for_strangers(parking.json())
    assert (parked.status_code, parked.json()) == (409, parking.json())


async def test_a_retry_on_sqlite_closes_no_connection(sqlite_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its claim is refused by the work that is there: the traceback of that must not keep the connection."""
    closed: list[object] = []
    monkeypatch.setattr(SqliteConnection, "_close", lambda _, file: closed.append(file))
    app, once = FastAPI(), AsyncOnefold(sqlite_path, principal=single_principal)
    once.install(app)

    async def fail() -> str:
        raise TimeoutError

    @app.post("/print")
    @once.idempotent(required=True)
    async def print_it(work: Steps) -> str:
        printed: str = await work.call("print", fail)
        return printed

    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        told = [await client.post("/print", headers={"Idempotency-Key": '"k"'}) for _ in range(2)]
    await once.close()
    assert [each.status_code for each in told] == [500, 500]
    assert closed == []
