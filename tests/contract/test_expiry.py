"""Keys that outlive their answers, and answers that outlive the release that wrote them."""

from __future__ import annotations

import os
import time

import pytest

from onefold._kernel.ids import RANDOM_BYTES, uuid7
from onefold.idempotency.model import SCHEMA_VERSION
from tests.contract.plans import Plan
from tests.contract.worlds import World

HOUR_MS = 3_600_000


def key_of(age_ms: int) -> str:
    """A UUIDv7 minted that long ago."""
    return f'"{uuid7(time.time_ns() // 1_000_000 - age_ms, os.urandom(RANDOM_BYTES))}"'


@pytest.mark.contract("C24")
def test_c24_after_expiry_a_key_runs_anew_and_is_remembered_anew(world: World) -> None:
    world.post(key='"k"', plan=Plan(body=b"first"))
    world.expire_all()
    second = world.post(key='"k"', plan=Plan(body=b"second"))
    assert (second.status, second.body, second.replayed) == (201, b"second", False)
    third = world.post(key='"k"')
    assert (third.body, third.replayed) == (b"second", True)
    assert world.rows() == ["book", "book"]
    assert len(world.records()) == 1


@pytest.mark.contract("C24")
def test_c24_after_expiry_a_key_may_name_another_request(world: World) -> None:
    world.post(key='"k"', body={"item": "book"})
    world.expire_all()
    assert world.post(key='"k"', body={"item": "pen"}).status == 201
    assert world.post(key='"k"', body={"item": "book"}).status == 422


@pytest.mark.contract("C24")
def test_c24_a_refusal_after_expiry_does_not_bring_the_old_answer_back(world: World) -> None:
    world.post(key='"k"', plan=Plan(body=b"old"))
    world.expire_all()
    assert world.post(key='"k"', plan=Plan(status=402, body=b"no")).status == 402
    retry = world.post(key='"k"')
    assert (retry.status, retry.body, retry.replayed) == (402, b"no", True)
    assert world.rows() == ["book"]


@pytest.mark.contract("C24")
def test_c24_a_failure_after_expiry_leaves_the_key_free(world: World) -> None:
    world.post(key='"k"', plan=Plan(body=b"old"))
    world.expire_all()
    assert world.post(key='"k"', plan=Plan(status=500)).status == 500
    assert world.post(key='"k"', plan=Plan(body=b"new")).body == b"new"


@pytest.mark.contract("C24")
@pytest.mark.parametrize("reaped", [False, True], ids=["expired", "expired and reaped"])
def test_c24_where_late_retries_are_refused_an_expired_key_never_runs(world: World, reaped: bool) -> None:
    key = key_of(age_ms=HOUR_MS + 1000)
    world.serve(settings={"expiry": "refuse", "retention_s": 2 * 3600})
    world.post(key=key)
    world.expire_all()
    world.serve(settings={"expiry": "refuse", "retention_s": 3600})
    if reaped:
        assert world.reap() == 1
    late = world.post(key=key)
    assert (late.status, late.problem, late.json["retryable"]) == (410, "key-expired", False)
    assert world.post(key=key, body={"item": "pen"}).status == 410
    assert len(world.calls) == 1


@pytest.mark.contract("C24")
def test_c24_where_late_retries_are_refused_a_key_that_was_never_seen_may_still_be_too_old(world: World) -> None:
    world.serve(settings={"expiry": "refuse", "retention_s": 3600})
    assert world.post(key=key_of(age_ms=HOUR_MS + 1000)).problem == "key-expired"
    assert world.post(key=key_of(age_ms=HOUR_MS - 60_000)).status == 201
    assert len(world.calls) == 1


@pytest.mark.contract("C24")
def test_c24_where_late_retries_are_refused_keys_must_tell_their_time(world: World) -> None:
    world.serve(settings={"expiry": "refuse"})
    for key in ('"k"', '"8e03978e-40d5-43dd-bc93-6894a57f9324"', key_of(age_ms=-25 * HOUR_MS)):
        refused = world.post(key=key)
        assert (refused.status, refused.problem) == (400, "key-malformed"), key
    assert world.post(key=key_of(age_ms=-HOUR_MS)).status == 201
    assert len(world.calls) == 1


@pytest.mark.contract("C33")
def test_c33_a_record_of_an_older_schema_version_replays(world: World) -> None:
    world.post(key='"k"', plan=Plan(body=b"written long ago"))
    for version in range(SCHEMA_VERSION + 1):
        world.sql(f"UPDATE onefold_record SET schema_version = {version}")
        world.serve()
        retry = world.post(key='"k"')
        assert (retry.body, retry.replayed) == (b"written long ago", True), version
    assert len(world.calls) == 1


@pytest.mark.contract("C33")
def test_c33_a_record_of_a_newer_schema_version_is_refused_by_name_and_never_run_over(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.post(key='"k"')
    world.sql(f"UPDATE onefold_record SET schema_version = {SCHEMA_VERSION + 1}")
    refused = world.post(key='"k"')
    assert (refused.status, refused.json["retryable"]) == (503, True)
    assert f"schema version {SCHEMA_VERSION + 1}" in caplog.text
    assert len(world.calls) == 1
    world.sql(f"UPDATE onefold_record SET schema_version = {SCHEMA_VERSION}")
    assert world.post(key='"k"').replayed
