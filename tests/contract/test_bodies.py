"""Bodies with edges: streamed and large answers, large and slow and broken requests, clients that hang up."""

from __future__ import annotations

import pytest

from tests.contract.backends import Backend
from tests.contract.plans import Plan, RequestGuard
from tests.contract.rows import ASGI
from tests.contract.wire import NO_ANSWER

TEXT = (("content-type", "text/plain"),)


@pytest.mark.contract("C26")
def test_c26_a_stream_that_fits_is_kept_whole(backend: Backend) -> None:
    chunks = (b"one ", b"", b"two ", b"three")
    first = backend.post(key='"k"', plan=Plan(headers=TEXT, chunks=chunks))
    retry = backend.post(key='"k"')
    assert (first.body, first.replayed) == (b"one two three", False)
    assert (retry.body, retry.replayed) == (b"one two three", True)


@pytest.mark.contract("C26")
@pytest.mark.parametrize(
    "chunks",
    [(b"x" * 101,), (b"x" * 60, b"y" * 60, b"z" * 60), (b"x" * 100, b"y")],
    ids=["at once", "streamed", "by one"],
)
def test_c26_an_answer_too_large_to_keep_goes_out_whole_and_is_not_run_again(
    backend: Backend, chunks: tuple[bytes, ...]
) -> None:
    backend.serve(settings={"response_bytes_max": 100})
    first = backend.post(key='"k"', plan=Plan(headers=TEXT, chunks=chunks))
    assert (first.status, first.body) == (201, b"".join(chunks))
    retry = backend.post(key='"k"')
    assert (retry.status, retry.problem, retry.json["retryable"]) == (410, "answer-not-kept", False)
    assert "201" in retry.json["detail"]
    assert backend.rows() == ["book"]
    assert backend.status_of('"k"')["status"] == 201


@pytest.mark.contract("C17", "C26")
def test_c26_an_answer_that_breaks_off_before_it_was_committed_leaves_nothing(backend: Backend) -> None:
    error = LookupError("no more lines")
    broken = backend.post(key='"k"', plan=Plan(headers=TEXT, chunks=(b"one", b"two"), breaks=error))
    assert (broken.status, broken.error) == (500, error)
    assert (backend.rows(), backend.records()) == ([], [])
    assert backend.post(key='"k"').status == 201


@pytest.mark.contract("C26")
def test_c26_an_answer_that_breaks_off_after_it_was_committed_is_not_run_again(backend: Backend) -> None:
    backend.serve(settings={"response_bytes_max": 4})
    error = LookupError("no more lines")
    broken = backend.post(key='"k"', plan=Plan(headers=TEXT, chunks=(b"one", b"two"), breaks=error))
    assert broken.error is error
    assert backend.post(key='"k"').problem == "answer-not-kept"
    assert backend.rows() == ["book"]


@pytest.mark.contract("C26")
def test_c26_an_answer_of_exactly_the_limit_is_kept(backend: Backend) -> None:
    backend.serve(settings={"response_bytes_max": 100})
    backend.post(key='"k"', plan=Plan(headers=TEXT, body=b"x" * 100))
    assert backend.post(key='"k"').body == b"x" * 100


@pytest.mark.contract("C14", "C26")
@pytest.mark.parametrize("body", [b"small", b"x" * 200], ids=["kept", "too large to keep"])
def test_c26_rows_and_record_are_committed_before_the_first_byte_is_sent(backend: Backend, body: bytes) -> None:
    backend.serve(settings={"response_bytes_max": 100})
    seen: list[tuple[int, int]] = []

    def look() -> None:
        seen.append((len(backend.rows()), len(backend.records())))

    backend.post(key='"k"', plan=Plan(headers=TEXT, chunks=(body, body)), answered=look)
    assert seen == [(1, 1)]


@pytest.mark.contract("C27")
@pytest.mark.parametrize("arrival", ["whole", "in pieces"])
def test_c27_a_body_larger_than_the_limit_is_refused_and_claims_nothing(backend: Backend, arrival: str) -> None:
    backend.serve(settings={"body_bytes_max": 50})
    refused = backend.post(key='"k"', body=b'"' + b"x" * 49 + b'"', arrival=arrival)
    assert (refused.status, refused.problem, refused.json["retryable"]) == (413, "body-too-large", False)
    assert (backend.calls, backend.status_of('"k"')["state"]) == ([], "unknown")
    fitting = backend.post(key='"k"', body=b'"' + b"x" * 48 + b'"', arrival=arrival)
    assert (fitting.status, fitting.replayed) == (201, False)
    assert backend.rows() == ["x" * 48]


@pytest.mark.contract("C27")
def test_c27_a_body_that_stalls_is_refused_and_claims_nothing(backend: Backend) -> None:
    backend.serve(settings={"body_timeout_s": 0.05})
    refused = backend.post(key='"k"', arrival="stalls")
    assert (refused.status, refused.problem, refused.json["retryable"]) == (408, "body-too-slow", True)
    assert (backend.calls, backend.status_of('"k"')["state"]) == ([], "unknown")
    assert backend.post(key='"k"').status == 201


@pytest.mark.contract("C27")
def test_c27_a_client_that_is_gone_in_the_middle_of_its_body_claims_nothing(backend: Backend) -> None:
    refused = backend.post(key='"k"', arrival="breaks off")
    if backend.name in ASGI:
        assert refused.status == NO_ANSWER
    else:  # to WSGI a body that ends early looks the same whether someone still listens or not
        assert (refused.status, refused.problem) == (400, "body-incomplete")
    assert (backend.calls, backend.status_of('"k"')["state"]) == ([], "unknown")
    assert backend.post(key='"k"').status == 201


@pytest.mark.contract("C27")
def test_c27_a_body_in_pieces_is_one_body(backend: Backend) -> None:
    assert backend.post(key='"k"', arrival="in pieces").status == 201
    assert backend.post(key='"k"', arrival="whole").replayed
    assert backend.rows() == ["book"]


@pytest.mark.contract("C28")
def test_c28_a_client_that_hangs_up_does_not_stop_the_work(backend: Backend) -> None:
    guard = RequestGuard()
    abandoned = backend.start(key='"k"', plan=Plan(guard=guard, body=b"done"))
    guard.await_arrival()
    abandoned.line.hang_up()
    guard.open()
    assert abandoned.answer().body != b"done"
    retry = backend.post(key='"k"')
    assert (retry.status, retry.body, retry.replayed) == (201, b"done", True)
    assert backend.rows() == ["book"]
