"""What errors mean, whoever raised them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import requests

from onefold._client.error_outcomes import outcome_of, outcome_on
from onefold._policy.outcome import Answered, Outcome, Unanswered
from onefold.errors import KeyInFlight, SchemaMissing
from onefold.testing.scripted_server import Reply, ScriptedServer

HEADERS = {"Retry-After": "7"}


def of_httpx(status: int, headers: dict[str, str]) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://ledger")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, headers=headers))


def of_requests(status: int, headers: dict[str, str]) -> requests.HTTPError:
    response = requests.Response()
    response.status_code = status
    response.headers.update(headers)
    return requests.HTTPError("no", response=response)


class OfAiohttp(Exception):
    """aiohttp's errors carry these themselves."""

    def __init__(self, status: int, headers: dict[str, str]) -> None:
        super().__init__("no")
        self.status, self.headers = status, headers


@pytest.mark.parametrize("make", [of_httpx, of_requests, OfAiohttp])
@pytest.mark.parametrize(
    ("status", "headers", "outcome"),
    [
        (503, {}, Answered(status=503)),
        (503, HEADERS, Answered(status=503, retry_after_s=7.0)),
        (404, HEADERS, Answered(status=404, retry_after_s=7.0)),
        (429, {"Retry-After": "soon"}, Answered(status=429)),
    ],
)
def test_an_error_that_carries_a_response_tells_its_status_and_its_retry_after(
    make: Any, status: int, headers: dict[str, str], outcome: Outcome
) -> None:
    assert outcome_of(make(status, headers)) == outcome


NEVER = b'{"type": "urn:onefold:problem:store-not-migrated", "retryable": false}'


@pytest.mark.parametrize("vendor", ["httpx", "requests"])
@pytest.mark.parametrize("content_type", ["application/problem+json", "application/json"])
def test_a_problem_that_no_retry_can_help_is_final_where_it_was_read(vendor: str, content_type: str) -> None:
    with ScriptedServer([Reply(503, NEVER, {"Content-Type": content_type})]) as server:
        get: Any = httpx.get if vendor == "httpx" else requests.get
        with pytest.raises((httpx.HTTPStatusError, requests.HTTPError)) as raised:
            get(server.url).raise_for_status()
    outcome = outcome_of(raised.value)
    assert isinstance(outcome, Answered)
    assert outcome.should_retry is (False if "problem" in content_type else None)


@pytest.mark.parametrize("vendor", ["httpx", "requests"])
def test_an_answer_that_was_not_read_is_left_unread(vendor: str) -> None:
    with ScriptedServer([Reply(503, NEVER, {"Content-Type": "application/problem+json"})]) as server:
        asked: Any = httpx.stream("GET", server.url) if vendor == "httpx" else requests.get(server.url, stream=True)
        with asked as response:
            with pytest.raises((httpx.HTTPStatusError, requests.HTTPError)) as raised:
                response.raise_for_status()
            assert outcome_of(raised.value) == Answered(status=503)
            assert (response.read() if vendor == "httpx" else response.raw.read()) == NEVER


@pytest.mark.parametrize("error", [ConnectionError("gone"), ValueError("?"), OfAiohttp(0, {}), httpx.ReadError("cut")])
def test_any_other_error_means_that_there_was_no_answer(error: Exception) -> None:
    assert outcome_of(error) == Unanswered(maybe_sent=True)


def test_an_error_of_onefold_that_no_retry_can_help_is_final() -> None:
    assert outcome_of(SchemaMissing("no table")) == Answered(
        status=503, problem_type="store-not-migrated", should_retry=False
    )


def test_an_error_of_onefold_is_what_it_would_be_as_an_answer() -> None:
    outcome = outcome_of(KeyInFlight("busy", retry_after_s=2.0))
    assert isinstance(outcome, Answered)
    assert outcome.in_flight
    assert outcome.retry_after_s == 2.0


@pytest.mark.parametrize(
    ("said", "outcome"),
    [
        (True, Unanswered(maybe_sent=True)),
        (False, None),
        (None, None),
        (3, Answered(status=429, retry_after_s=3.0)),
        (0.0, Answered(status=429, retry_after_s=0.0)),
        (Answered(status=500), Answered(status=500)),
    ],
)
def test_a_function_may_say_it(said: Any, outcome: Outcome | None) -> None:
    assert outcome_on(lambda _: said)(ConnectionError("gone")) == outcome


def test_an_odd_response_is_no_answer() -> None:
    error = ValueError("?")
    error.response = SimpleNamespace(status_code="503")  # type: ignore[attr-defined]
    assert outcome_of(error) == Unanswered(maybe_sent=True)
