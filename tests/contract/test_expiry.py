"""Keys that outlive their answers, and answers that outlive the release that wrote them."""

from __future__ import annotations

import os
import time

import pytest

from onefold._idempotency.model import SCHEMA_VERSION
from onefold._kernel.ids import RANDOM_BYTES, uuid7
from tests.contract.backends import Backend
from tests.contract.plans import Plan

HOUR_MS = 3_600_000


def key_of(age_ms: int) -> str:
    """A UUIDv7 generated that long ago."""
    return f'"{uuid7(time.time_ns() // 1_000_000 - age_ms, os.urandom(RANDOM_BYTES))}"'


@pytest.mark.contract("C24")
def test_c24_after_expiry_a_key_runs_anew_and_is_remembered_anew(backend: Backend) -> None:
    backend.post(key='"k"', plan=Plan(body=b"first"))
    backend.expire_all()
    second = backend.post(key='"k"', plan=Plan(body=b"second"))
    assert (second.status, second.body, second.replayed) == (201, b"second", False)
    third = backend.post(key='"k"')
    assert (third.body, third.replayed) == (b"second", True)
    assert backend.rows() == ["book", "book"]
    assert len(backend.records()) == 1


@pytest.mark.contract("C24")
def test_c24_after_expiry_a_key_may_name_another_request(backend: Backend) -> None:
    backend.post(key='"k"', body={"item": "book"})
    backend.expire_all()
    assert backend.post(key='"k"', body={"item": "pen"}).status == 201
    assert backend.post(key='"k"', body={"item": "book"}).status == 422


@pytest.mark.contract("C24")
def test_c24_a_refusal_after_expiry_does_not_bring_the_old_answer_back(backend: Backend) -> None:
    backend.post(key='"k"', plan=Plan(body=b"old"))
    backend.expire_all()
    assert backend.post(key='"k"', plan=Plan(status=402, body=b"no")).status == 402
    retry = backend.post(key='"k"')
    assert (retry.status, retry.body, retry.replayed) == (402, b"no", True)
    assert backend.rows() == ["book"]


@pytest.mark.contract("C24")
def test_c24_a_failure_after_expiry_leaves_the_key_free(backend: Backend) -> None:
    backend.post(key='"k"', plan=Plan(body=b"old"))
    backend.expire_all()
    assert backend.post(key='"k"', plan=Plan(status=500)).status == 500
    assert backend.post(key='"k"', plan=Plan(body=b"new")).body == b"new"


@pytest.mark.contract("C24")
@pytest.mark.parametrize("reaped", [False, True], ids=["expired", "expired and reaped"])
def test_c24_where_late_retries_are_refused_an_expired_key_never_runs(backend: Backend, reaped: bool) -> None:
    key = key_of(age_ms=HOUR_MS + 1000)
    backend.serve(settings={"expiry": "refuse", "retention_s": 2 * 3600})
    backend.post(key=key)
    backend.expire_all()
    backend.serve(settings={"expiry": "refuse", "retention_s": 3600})
    if reaped:
        assert backend.reap() == 1
    late = backend.post(key=key)
    assert (late.status, late.problem, late.json["retryable"]) == (410, "key-expired", False)
    assert backend.post(key=key, body={"item": "pen"}).status == 410
    assert len(backend.calls) == 1


@pytest.mark.contract("C24")
def test_c24_where_late_retries_are_refused_a_key_that_was_never_seen_may_still_be_too_old(backend: Backend) -> None:
    backend.serve(settings={"expiry": "refuse", "retention_s": 3600})
    assert backend.post(key=key_of(age_ms=HOUR_MS + 1000)).problem == "key-expired"
    assert backend.post(key=key_of(age_ms=HOUR_MS - 60_000)).status == 201
    assert len(backend.calls) == 1


@pytest.mark.contract("C24")
def test_c24_where_late_retries_are_refused_keys_must_tell_their_time(backend: Backend) -> None:
    backend.serve(settings={"expiry": "refuse"})
    for key in ('"k"', '"8e03978e-40d5-43dd-bc93-6894a57f9324"', key_of(age_ms=-25 * HOUR_MS)):
        refused = backend.post(key=key)
        assert (refused.status, refused.problem) == (400, "key-malformed"), key
    assert backend.post(key=key_of(age_ms=-HOUR_MS)).status == 201
    assert len(backend.calls) == 1


@pytest.mark.contract("C33")
def test_c33_a_record_of_an_older_schema_version_replays(backend: Backend) -> None:
    backend.post(key='"k"', plan=Plan(body=b"written long ago"))
    for version in range(SCHEMA_VERSION + 1):
        backend.sql(f"UPDATE onefold_record SET schema_version = {version}")
        backend.serve()
        retry = backend.post(key='"k"')
        assert (retry.body, retry.replayed) == (b"written long ago", True), version
    assert len(backend.calls) == 1


@pytest.mark.contract("C33")
def test_c33_a_record_of_a_newer_schema_version_is_refused_by_name_and_never_run_over(
    backend: Backend, caplog: pytest.LogCaptureFixture
) -> None:
    backend.post(key='"k"')
    backend.sql(f"UPDATE onefold_record SET schema_version = {SCHEMA_VERSION + 1}")
    refused = backend.post(key='"k"')
    assert (refused.status, refused.json["retryable"]) == (503, True)
    assert f"schema version {SCHEMA_VERSION + 1}" in caplog.text
    assert len(backend.calls) == 1
    backend.sql(f"UPDATE onefold_record SET schema_version = {SCHEMA_VERSION}")
    assert backend.post(key='"k"').replayed
