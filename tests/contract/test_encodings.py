"""Stored answers that are encoded, and callers that do not accept their coding."""

from __future__ import annotations

import gzip
import zlib

import pytest

from tests.contract.backends import Backend
from tests.contract.plans import Plan

TEXT = b"a long text " * 100
STRONG = (("etag", '"v1"'), ("vary", "accept-encoding"), ("content-type", "text/plain"))


def raw_deflate(body: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(body) + packer.flush()


PACKED = {
    "gzip": gzip.compress(TEXT, mtime=0),
    "X-Gzip": gzip.compress(TEXT, mtime=0),
    "deflate": zlib.compress(TEXT),
    "deflate, gzip": gzip.compress(zlib.compress(TEXT), mtime=0),
    "identity": TEXT,
}


def ask_first(backend: Backend, coding: str, body: bytes, key: str = '"k"') -> None:
    plan = Plan(headers=(("content-encoding", coding), *STRONG), body=body)
    first = backend.post(key=key, plan=plan, headers=(("accept-encoding", coding),))
    assert (first.status, first.body) == (201, body)


def accepting(value: str | None) -> tuple[tuple[str, str | bytes], ...]:
    return () if value is None else (("accept-encoding", value),)


@pytest.mark.contract("C42")
def test_c42_what_a_caller_does_not_accept_is_decoded_for_it(backend: Backend) -> None:
    for number, (coding, body) in enumerate((*PACKED.items(), ("deflate", raw_deflate(TEXT)))):
        ask_first(backend, coding, body, f'"{number}"')
        for accepted in (None, "", "identity", "br", "gzip;q=0, deflate;q=0.0, x-gzip; q=0", "*;q=0"):
            retry = backend.post(key=f'"{number}"', headers=accepting(accepted))
            assert (retry.status, retry.body, retry.replayed) == (201, TEXT, True), (coding, accepted)
            assert retry.header("content-encoding") in (None, "identity")
            assert retry.header("content-length") == str(len(TEXT))
            assert retry.header("etag") == ('"v1"' if coding == "identity" else 'W/"v1"')
            assert retry.header("vary") == "accept-encoding"
    assert len(backend.calls) == len(PACKED) + 1


@pytest.mark.contract("C42")
def test_c42_what_a_caller_accepts_is_replayed_byte_for_byte(backend: Backend) -> None:
    for number, (coding, body) in enumerate(PACKED.items()):
        ask_first(backend, coding, body, f'"{number}"')
        for accepted in (coding, "gzip, x-gzip, deflate;q=0.5", "*", "br;q=1, *;q=0.1"):
            retry = backend.post(key=f'"{number}"', headers=accepting(accepted))
            assert (retry.body, retry.header("content-encoding")) == (body, coding), accepted
            assert (retry.header("etag"), retry.replayed) == ('"v1"', True)


@pytest.mark.contract("C42")
@pytest.mark.parametrize(
    ("coding", "body"), [("br", b"\x0b\x02\x80text\x03"), ("gzip", b"no gzip at all"), ("gzip", PACKED["gzip"][:-9])]
)
def test_c42_what_cannot_be_decoded_is_refused_and_never_sent_as_unreadable_bytes(
    backend: Backend, coding: str, body: bytes
) -> None:
    ask_first(backend, coding, body)
    refused = backend.post(key='"k"', headers=accepting("identity"))
    assert (refused.status, refused.problem, refused.json["retryable"]) == (406, "answer-encoded", False)
    assert f"Accept-Encoding: {coding}" in refused.json["detail"]
    assert not refused.replayed
    assert backend.post(key='"k"', headers=accepting(f"identity, {coding}")).body == body
    assert len(backend.calls) == 1


@pytest.mark.contract("C42")
def test_c42_an_answer_that_would_be_decoded_into_too_much_is_refused(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold._http.encodings.DECODED_BYTES_MAX", len(TEXT) - 1)
    ask_first(backend, "gzip", PACKED["gzip"])
    assert backend.post(key='"k"', headers=accepting("identity")).problem == "answer-encoded"


@pytest.mark.contract("C42")
def test_c42_an_encoded_answer_without_a_body_is_replayed_as_it_is(backend: Backend) -> None:
    ask_first(backend, "br", b"")
    retry = backend.post(key='"k"', headers=accepting("identity"))
    assert (retry.status, retry.body, retry.replayed) == (201, b"", True)
