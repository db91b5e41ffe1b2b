"""What the application publishes about its keys, and that every refusal looks like the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from onefold._http.route_policy import Settings
from onefold._kernel.ids import RANDOM_BYTES, uuid7
from onefold.errors import AnsweredError
from tests.contract.backends import Backend
from tests.contract.plans import Plan, RequestGuard
from tests.contract.wire import Answer


@pytest.mark.contract("C10")
def test_c10_the_specification_names_every_operation_and_its_expiration_policy(backend: Backend) -> None:
    routes: dict[str, Settings] = {
        "POST /orders": {"required": True, "strict": True, "retention_s": 7200},
        "PATCH /orders/{id}": {"expiry": "refuse", "wait_s": 2},
    }
    backend.serve(routes=routes)
    page = backend.get("/onefold/specification")
    assert (page.status, page.header("content-type")) == (200, "text/html; charset=utf-8")
    text = page.body.decode()
    for promise in (
        "draft-ietf-httpapi-idempotency-key-header-07",
        "POST /orders",
        "required",
        "2 h",
        "runs again",
        "PATCH /orders/{id}",
        "24 h",
        "is refused (410)",
        "waits up to 2 s",
        "urn:onefold:problem:key-in-flight",
    ):
        assert promise in text, promise


@pytest.mark.contract("C10")
def test_c10_every_problem_a_client_can_meet_is_on_the_page(backend: Backend) -> None:
    backend.serve()
    text = backend.get("/onefold/specification").body.decode()
    # What features have of their own (sagas) is raised to their callers, and answered to no request.
    found = [kind for kind in kinds_of(AnsweredError) if kind.__module__ == AnsweredError.__module__]
    named = {kind.slug: kind.status for kind in found if "slug" in vars(kind)}
    del named[AnsweredError.slug]
    assert named.keys() >= PROVOKED.keys() - {"handler-broken"}
    for slug, status in named.items():
        assert f"<td>{status}</td><td><code>urn:onefold:problem:{slug}</code>" in text


def kinds_of(kind: type[AnsweredError]) -> Iterator[type[AnsweredError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from kinds_of(narrower)


def missing(backend: Backend) -> Answer:
    backend.serve(settings={"required": True})
    return backend.post()


def malformed(backend: Backend) -> Answer:
    return backend.post(key='"')


def anonymous(backend: Backend) -> Answer:
    return backend.post(key='"k"', account="")


def reused(backend: Backend) -> Answer:
    backend.post(key='"k"')
    return backend.post(key='"k"', body=b"other")


def in_flight(backend: Backend) -> Answer:
    guard = RequestGuard()
    running = backend.start(key='"k"', plan=Plan(guard=guard))
    guard.await_arrival()
    refused = backend.post(key='"k"')
    guard.open()
    running.answer()
    return refused


def expired(backend: Backend) -> Answer:
    backend.serve(settings={"expiry": "refuse"})
    return backend.post(key=f'"{uuid7(1, os.urandom(RANDOM_BYTES))}"')


def not_kept(backend: Backend) -> Answer:
    backend.serve(settings={"response_bytes_max": 3})
    backend.post(key='"k"', plan=Plan(body=b"long"))
    return backend.post(key='"k"')


def encoded(backend: Backend) -> Answer:
    backend.post(key='"k"', plan=Plan(headers=(("content-encoding", "br"), ("content-type", "text/plain"))))
    return backend.post(key='"k"', headers=(("accept-encoding", "gzip"),))


def too_large(backend: Backend) -> Answer:
    backend.serve(settings={"body_bytes_max": 1})
    return backend.post(key='"k"')


def too_slow(backend: Backend) -> Answer:
    backend.serve(settings={"body_timeout_s": 0.01})
    return backend.post(key='"k"', arrival="stalls")


def not_migrated(backend: Backend) -> Answer:
    backend.serve()
    backend.sql("ALTER TABLE onefold_record RENAME TO hidden")
    refused = backend.post(key='"k"')
    backend.sql("ALTER TABLE hidden RENAME TO onefold_record")
    return refused


def handler_broken(backend: Backend) -> Answer:
    backend.serve(development=True)
    return backend.post(key='"k"', plan=Plan(writes=False))


PROVOKED: dict[str, tuple[Callable[[Backend], Answer], int, bool]] = {
    "key-missing": (missing, 400, False),
    "key-malformed": (malformed, 400, False),
    "principal-missing": (anonymous, 401, False),
    "answer-encoded": (encoded, 406, False),
    "body-too-slow": (too_slow, 408, True),
    "key-in-flight": (in_flight, 409, True),
    "key-expired": (expired, 410, False),
    "answer-not-kept": (not_kept, 410, False),
    "body-too-large": (too_large, 413, False),
    "key-reused": (reused, 422, False),
    "handler-broken": (handler_broken, 500, False),
    "store-not-migrated": (not_migrated, 503, False),
}


@pytest.mark.contract("C31")
@pytest.mark.parametrize("name", PROVOKED)
def test_c31_a_refusal_is_a_problem_with_stable_members(backend: Backend, name: str) -> None:
    provoke, status, retryable = PROVOKED[name]
    refused = provoke(backend)
    assert (refused.status, refused.problem) == (status, name)
    assert refused.json.keys() == {"type", "title", "status", "detail", "retryable"}
    assert refused.json["retryable"] is retryable
    assert all(isinstance(refused.json[member], str) and refused.json[member] for member in ("title", "detail"))
    assert (refused.header("retry-after") is not None) == retryable
    assert refused.header("cache-control") == "no-store"
    assert refused.header("content-length") == str(len(refused.body))
    assert refused.header("link") == '</onefold/specification>; rel="describedby"'
    assert not refused.replayed


@pytest.mark.contract("C31")
def test_c31_a_problem_tells_nothing_about_the_store(backend: Backend, caplog: pytest.LogCaptureFixture) -> None:
    refused = not_migrated(backend)
    assert "onefold migrate" in caplog.text
    assert "onefold migrate" in refused.json["detail"]
    assert "onefold_record" not in refused.body.decode()
