"""What the application publishes about its keys, and that every refusal looks like the others."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest

from onefold._kernel.ids import RANDOM_BYTES, uuid7
from onefold.errors import CallerError
from onefold.http.policy import Settings
from tests.contract.plans import Gate, Plan
from tests.contract.wire import Answer
from tests.contract.worlds import World


@pytest.mark.contract("C10")
def test_c10_the_specification_names_every_operation_and_its_expiration_policy(world: World) -> None:
    routes: dict[str, Settings] = {
        "POST /orders": {"required": True, "strict": True, "retention_s": 7200},
        "PATCH /orders/{id}": {"expiry": "refuse", "wait_s": 2},
    }
    world.serve(routes=routes)
    page = world.get("/onefold/specification")
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
def test_c10_every_problem_a_client_can_meet_is_on_the_page(world: World) -> None:
    world.serve()
    text = world.get("/onefold/specification").body.decode()
    named = {kind.slug: kind.status for kind in kinds_of(CallerError) if "slug" in vars(kind)}
    del named[CallerError.slug]
    assert named.keys() >= PROVOKED.keys() - {"handler-broken"}
    for slug, status in named.items():
        assert f"<td>{status}</td><td><code>urn:onefold:problem:{slug}</code>" in text


def kinds_of(kind: type[CallerError]) -> Iterator[type[CallerError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from kinds_of(narrower)


def missing(world: World) -> Answer:
    world.serve(settings={"required": True})
    return world.post()


def malformed(world: World) -> Answer:
    return world.post(key='"')


def anonymous(world: World) -> Answer:
    return world.post(key='"k"', account="")


def reused(world: World) -> Answer:
    world.post(key='"k"')
    return world.post(key='"k"', body=b"other")


def in_flight(world: World) -> Answer:
    gate = Gate()
    running = world.start(key='"k"', plan=Plan(gate=gate))
    gate.await_arrival()
    refused = world.post(key='"k"')
    gate.open()
    running.answer()
    return refused


def expired(world: World) -> Answer:
    world.serve(settings={"expiry": "refuse"})
    return world.post(key=f'"{uuid7(1, os.urandom(RANDOM_BYTES))}"')


def not_kept(world: World) -> Answer:
    world.serve(settings={"response_bytes_max": 3})
    world.post(key='"k"', plan=Plan(body=b"long"))
    return world.post(key='"k"')


def encoded(world: World) -> Answer:
    world.post(key='"k"', plan=Plan(headers=(("content-encoding", "br"), ("content-type", "text/plain"))))
    return world.post(key='"k"', headers=(("accept-encoding", "gzip"),))


def too_large(world: World) -> Answer:
    world.serve(settings={"body_bytes_max": 1})
    return world.post(key='"k"')


def too_slow(world: World) -> Answer:
    world.serve(settings={"body_timeout_s": 0.01})
    return world.post(key='"k"', arrival="stalls")


def not_migrated(world: World) -> Answer:
    world.serve()
    world.sql("ALTER TABLE onefold_record RENAME TO hidden")
    refused = world.post(key='"k"')
    world.sql("ALTER TABLE hidden RENAME TO onefold_record")
    return refused


def handler_broken(world: World) -> Answer:
    world.serve(development=True)
    return world.post(key='"k"', plan=Plan(writes=False))


PROVOKED: dict[str, tuple[Callable[[World], Answer], int, bool]] = {
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
def test_c31_a_refusal_is_a_problem_with_stable_members(world: World, name: str) -> None:
    provoke, status, retryable = PROVOKED[name]
    refused = provoke(world)
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
def test_c31_a_problem_tells_nothing_about_the_store(world: World, caplog: pytest.LogCaptureFixture) -> None:
    refused = not_migrated(world)
    assert "onefold migrate" in caplog.text
    assert "onefold migrate" in refused.json["detail"]
    assert "onefold_record" not in refused.body.decode()
