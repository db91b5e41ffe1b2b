"""Two layers that both retry multiply their attempts: they are refused, each with the way out."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
from requests.adapters import HTTPAdapter
from urllib3 import Retry

from onefold import Retrying, RetryPolicy, retrying
from onefold.clients import report_of
from onefold.errors import ConfigurationError, ProgrammerError
from onefold.testing.no_waiting import no_waiting
from onefold.testing.scripted_server import Reply, Reset, ScriptedServer
from tests.client.http.clients import Kind


@pytest.mark.parametrize(
    "inner",
    [httpx.HTTPTransport, httpx.AsyncHTTPTransport, httpx2.HTTPTransport, httpx2.AsyncHTTPTransport, HTTPAdapter],
)
def test_what_retries_already_is_not_made_to_retry(inner: type[httpx.HTTPTransport]) -> None:
    with pytest.raises(ConfigurationError, match="wrap it once"):
        retrying(retrying(inner()))


@pytest.mark.parametrize("retries", [3, Retry(3), Retry(total=None, connect=2)])
def test_an_adapter_with_retries_of_its_own_is_refused(retries: int | Retry) -> None:
    with pytest.raises(ConfigurationError, match="max_retries=0"):
        retrying(HTTPAdapter(max_retries=retries))


@pytest.mark.parametrize(
    "inner", [httpx.HTTPTransport, httpx.AsyncHTTPTransport, httpx2.HTTPTransport, httpx2.AsyncHTTPTransport]
)
def test_a_transport_that_connects_again_by_itself_is_refused(inner: type[httpx.HTTPTransport]) -> None:
    with pytest.raises(ConfigurationError, match="retries=2"):
        retrying(inner(retries=2))


def test_what_is_no_transport_is_refused() -> None:
    anything: Any = object()
    with pytest.raises(ConfigurationError, match="middleware"):
        retrying(anything)


async def test_what_a_client_has_given_up_is_not_tried_again_by_the_function_around_it(
    kind: Kind, patient: RetryPolicy
) -> None:
    layer = Retrying(patient, generate_keys=True)
    with ScriptedServer([Reset()]) as server:
        async with kind.opened(Retrying(patient, generate_keys=True)) as caller:

            @layer.calls("ledger", on=Exception)
            async def ask() -> None:
                await caller.send("GET", server.url)

            with no_waiting(), pytest.raises(Exception) as caught:  # noqa: PT011
                await ask()
    assert report_of(caught.value) is not None
    assert len(server.requests) == patient.attempts_max


class Passing(httpx.BaseTransport):
    """A wrapper of the user's own between two layers; it makes new answers and errors of what it gets."""

    def __init__(self, inner: httpx.BaseTransport, how: str) -> None:
        self._inner = inner
        self._how = how

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if self._how == "as it is":
            return self._inner.handle_request(request)
        try:
            return self._inner.handle_request(request)
        except httpx.TransportError as error:
            raise httpx.ReadError("of the wrapper") from error

    def close(self) -> None:
        self._inner.close()


@pytest.mark.parametrize("act", [Reset(), Reply(503)], ids=["no answer", "503"])
@pytest.mark.parametrize("how", ["as it is", "as another error"])
@pytest.mark.parametrize("shared", [False, True], ids=["two", "one"])
def test_two_layers_with_a_wrapper_between_them_do_not_multiply(
    patient: RetryPolicy, act: Reset | Reply, how: str, shared: bool, caplog: pytest.LogCaptureFixture
) -> None:
    inner = Retrying(patient)
    outer = inner if shared else Retrying(patient)
    transport = outer.around(Passing(inner.around(httpx.HTTPTransport()), how))
    with ScriptedServer([act]) as server, httpx.Client(transport=transport, trust_env=False) as client:
        for _ in range(2):
            with suppress(httpx.TransportError):
                client.get(server.url)
    assert len(server.requests) == 2 * patient.attempts_max
    assert len([record for record in caplog.records if "Keep one of the two" in record.getMessage()]) == 1


def test_an_error_that_a_mock_raises_again_is_no_sign_of_a_second_layer(patient: RetryPolicy) -> None:
    asked, error = [0], httpx.ConnectError("always the same object")

    def answer(_: httpx.Request) -> httpx.Response:
        asked[0] += 1
        raise error

    with httpx.Client(transport=retrying(httpx.MockTransport(answer), patient)) as client:
        for _ in range(2):
            with pytest.raises(httpx.ConnectError):
                client.get("http://host/")
    assert asked[0] == 2 * patient.attempts_max


async def test_two_retrying_middlewares_in_one_session_are_refused(patient: RetryPolicy) -> None:
    both = [Retrying(patient, generate_keys=True).middleware, Retrying(patient, generate_keys=True).middleware]
    with ScriptedServer([Reply(200)]) as server:
        async with aiohttp.ClientSession(middlewares=both) as session:
            with pytest.raises(ProgrammerError, match="attempts would multiply"):
                await session.get(server.url)
    assert server.requests == []
