"""The port on httpx: what it sends at the same time meets, and arrives whole."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

from onefold._verify.http_port import NoAnswer, ProbeAnswer, ProbeRequest
from onefold._verify.httpx_port import _hold_last_byte, open_port
from tests.support.patience import PATIENCE_S
from tests.verify.model_api import ModelApi
from tests.verify.model_server import serving
from tests.verify.probes import ACME


def order(url: str, key: str, body: bytes = b'{"item": "book"}') -> ProbeRequest:
    headers = (*ACME, ("Idempotency-Key", f'"{key}"'.encode()))
    return ProbeRequest(method="POST", url=url, headers=headers, body=body)


def test_no_last_byte_leaves_before_the_rest_of_every_request_has_left() -> None:
    start = Barrier(2)
    one, two = _hold_last_byte(b"one", start), _hold_last_byte(b"two", start)
    assert (next(one), next(two)) == (b"on", b"tw")
    with ThreadPoolExecutor(2) as threads:
        first = threads.submit(next, one)
        assert not first.done()
        assert (next(two), first.result(PATIENCE_S)) == (b"o", b"e")


def test_requests_at_the_same_time_arrive_whole_and_in_one_piece() -> None:
    api = ModelApi()
    with serving(api, groups=(3,)) as url, open_port(timeout_s=PATIENCE_S, local=True, agent="test") as port:
        replies = port.send([order(f"{url}/orders", key) for key in ("a", "b", "c")])
    assert [reply.status for reply in replies if isinstance(reply, ProbeAnswer)] == [201, 201, 201]
    assert {request.body for request in api.requests} == {b'{"item": "book"}'}


def test_requests_without_a_body_are_sent_at_the_same_time_too() -> None:
    api = ModelApi()
    with serving(api) as url, open_port(timeout_s=PATIENCE_S, local=True, agent="test") as port:
        replies = port.send([order(f"{url}/orders", key, b"") for key in ("a", "b")])
    assert [reply.status for reply in replies if isinstance(reply, ProbeAnswer)] == [400, 400]


def test_a_server_that_is_not_there_is_told_for_each_request() -> None:
    with open_port(timeout_s=PATIENCE_S, local=True, agent="test") as port:
        replies = port.send([order("http://127.0.0.1:1/orders", key) for key in ("a", "b", "c")])
    assert [reply.connected for reply in replies if isinstance(reply, NoAnswer)] == [False] * 3


def test_cookies_of_one_answer_are_not_sent_with_the_next_request() -> None:
    api = ModelApi()
    with serving(api) as url, open_port(timeout_s=PATIENCE_S, local=True, agent="test") as port:
        for key in ("a", "b"):
            [answer] = port.send([order(f"{url}/orders", key)])
            assert isinstance(answer, ProbeAnswer)
            assert answer.header("set-cookie")
    assert not [name for request in api.requests for name, _ in request.headers if name.lower() == "cookie"]
