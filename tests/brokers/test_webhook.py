"""Webhooks are signed as others expect it, confirmed by a 2xx only, and checked on the other side."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import pytest
from standardwebhooks import Webhook

from onefold._kernel.messages import Confirm, Message, read
from onefold._kernel.ports import Broker
from onefold.brokers.webhook import EndpointAnswer, HttpxSender, WebhookBroker, read_webhook, verify_webhook
from onefold.brokers.webhook._slow_endpoints import SLOW_S
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused, MessageUnreadable
from tests.support.patience import PATIENCE_S

SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
NEXT_SECRET = "whsec_" + base64.b64encode(b"b" * 32).decode()
URL = "https://shop.example/hooks?token=t0p"
NOW_S = 1_800_000_000.5
MESSAGE = Message(
    id="0199-é",
    source="shop",
    topic="orders",
    data='{"name":"Zoë"}'.encode(),
    key="Zoë",
    version=3,
    headers={"correlation-id": "c-1"},
)

# What the specification of Standard Webhooks publishes as an example.
VECTOR_SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
VECTOR_BODY = b'{"test": 2432232314}'
VECTOR_HEADERS = {
    "webhook-id": "msg_p5jXN8AQM9LWM0D4loKWxJek",
    "webhook-timestamp": "1614265330",
    "webhook-signature": "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
}


@dataclass
class Endpoint:
    """A sender that answers as it is told, and remembers what it was asked."""

    answer: EndpointAnswer | Exception = field(default_factory=lambda: EndpointAnswer(status=204, headers={}))
    asked: list[tuple[str, str, Mapping[str, str], bytes]] = field(default_factory=list)
    at_once: int = 0
    most_at_once: int = 0

    async def __call__(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> EndpointAnswer:
        self.asked.append((method, url, headers, body))
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


async def publish(endpoint: Endpoint, *, secret: str | tuple[str, ...] = SECRET, now_s: float = NOW_S) -> Confirm:
    broker = WebhookBroker(URL, secret=secret, sender=endpoint, wall_s=lambda: now_s)
    [confirm] = await broker.publish([MESSAGE])
    return confirm


async def test_a_message_is_one_request_that_reads_as_the_message() -> None:
    endpoint = Endpoint()
    assert await publish(endpoint) is None
    [(method, url, headers, body)] = endpoint.asked
    assert (method, url) == ("POST", URL)
    own = {name: text for name, text in headers.items() if not name.startswith(("webhook-", "idempotency-"))}
    assert read(own, body) == MESSAGE
    assert headers["idempotency-key"] == '"0199-%C3%A9"'
    found = read_webhook(SECRET, headers, body, now_s=NOW_S)
    assert replace(found, headers=MESSAGE.headers) == MESSAGE
    assert all(text.isascii() for text in headers.values())


async def test_the_trace_is_in_the_headers_and_in_the_body_that_is_signed() -> None:
    endpoint, trace = Endpoint(), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    message = replace(MESSAGE, headers={"traceparent": trace})
    assert await WebhookBroker(URL, secret=SECRET, sender=endpoint, wall_s=lambda: NOW_S).publish([message]) == [None]
    [(_, _, headers, body)] = endpoint.asked
    assert headers["traceparent"] == trace
    assert json.loads(body)["traceparent"] == trace
    assert read_webhook(SECRET, headers, body, now_s=NOW_S).headers["traceparent"] == trace


async def test_an_id_with_a_backslash_is_still_one_string_in_the_key() -> None:
    endpoint = Endpoint()
    broker = WebhookBroker(URL, secret=SECRET, sender=endpoint)
    await broker.publish([Message(id='a\\b"c', source="shop", topic="orders", data=b"")])
    assert endpoint.asked[0][2]["idempotency-key"] == '"a\\\\b%22c"'


async def test_the_signature_is_good_for_the_verifier_of_standard_webhooks() -> None:
    endpoint = Endpoint()
    await publish(endpoint, now_s=time.time())
    [(_, _, headers, body)] = endpoint.asked
    assert Webhook(SECRET).verify(body, dict(headers))["data"] == {"name": "Zoë"}


async def test_each_of_several_secrets_signs() -> None:
    endpoint = Endpoint()
    await publish(endpoint, secret=(SECRET, NEXT_SECRET), now_s=time.time())
    [(_, _, headers, body)] = endpoint.asked
    for secret in (SECRET, NEXT_SECRET):
        assert Webhook(secret).verify(body, dict(headers))["data"] == {"name": "Zoë"}
        verify_webhook(secret, headers, body)


def test_the_published_example_is_verified() -> None:
    verify_webhook(VECTOR_SECRET, VECTOR_HEADERS, VECTOR_BODY, now_s=1614265330)
    shouted = {name.title(): text for name, text in VECTOR_HEADERS.items()}
    verify_webhook((SECRET, VECTOR_SECRET), shouted, VECTOR_BODY, now_s=1614265330 + 300)


@pytest.mark.parametrize(
    ("changed", "body", "now_s", "said"),
    [
        ({}, b'{"test": 2432232315}', 1614265330, "no signature of the webhook fits"),
        ({"webhook-id": "msg_other"}, VECTOR_BODY, 1614265330, "no signature of the webhook fits"),
        ({"webhook-timestamp": "1614265331"}, VECTOR_BODY, 1614265330, "no signature of the webhook fits"),
        ({"webhook-signature": "v1a,é v2,x"}, VECTOR_BODY, 1614265330, "no signature of the webhook fits"),
        ({"webhook-signature": ""}, VECTOR_BODY, 1614265330, "no header 'webhook-signature'"),
        ({"webhook-id": ""}, VECTOR_BODY, 1614265330, "no header 'webhook-id'"),
        ({"webhook-timestamp": "-1"}, VECTOR_BODY, 1614265330, "not a number of seconds"),
        ({"webhook-timestamp": "9" * 5000}, VECTOR_BODY, 1614265330, "not a number of seconds"),
        ({}, VECTOR_BODY, 1614265330 + 301, "301 s old"),
        ({}, VECTOR_BODY, 1614265330 - 301, "301 s ahead"),
    ],
)
def test_what_was_changed_or_is_old_is_not_verified(
    changed: Mapping[str, str], body: bytes, now_s: float, said: str
) -> None:
    with pytest.raises(MessageUnreadable, match=said):
        verify_webhook(VECTOR_SECRET, {**VECTOR_HEADERS, **changed}, body, now_s=now_s)


def test_another_secret_does_not_verify() -> None:
    with pytest.raises(MessageUnreadable, match="another secret"):
        verify_webhook([SECRET, NEXT_SECRET], VECTOR_HEADERS, VECTOR_BODY, now_s=1614265330)


def problem(status: int, kind: object) -> EndpointAnswer:
    body = json.dumps({"type": kind, "title": "?"}).encode()
    return EndpointAnswer(status=status, headers={"Content-Type": "application/problem+json; charset=utf-8"}, body=body)


@pytest.mark.parametrize(
    "answer",
    [
        *(EndpointAnswer(status=status, headers={}) for status in (408, 425, 429, 500, 501, 503, 599)),
        problem(409, "https://onefold.example/problems/key-in-flight"),
        ConnectionRefusedError("refused"),
        TimeoutError(),
    ],
    ids=str,
)
async def test_what_may_still_come_right_is_unavailable(answer: EndpointAnswer | Exception) -> None:
    confirm = await publish(Endpoint(answer))
    assert isinstance(confirm, BrokerUnavailable)
    assert "https://shop.example" in str(confirm)
    assert "/hooks" not in str(confirm), "the path of an endpoint may be its token"
    assert "t0p" not in str(confirm)


@pytest.mark.parametrize(
    "answer",
    [
        *(EndpointAnswer(status=status, headers={}) for status in (301, 400, 401, 404, 409, 410, 413, 422)),
        problem(409, "about:blank"),
        problem(409, 7),
        EndpointAnswer(status=409, headers={"content-type": "application/problem+json"}, body=b"{"),
        EndpointAnswer(status=409, headers={"content-type": "application/problem+json"}, body=b"[]"),
        EndpointAnswer(status=409, headers={"content-type": "text/plain"}, body=b'{"type":"key-in-flight"}'),
    ],
    ids=str,
)
async def test_what_the_endpoint_will_not_have_is_refused(answer: EndpointAnswer) -> None:
    confirm = await publish(Endpoint(answer))
    assert isinstance(confirm, MessageRefused)
    assert f"answered {answer.status}" in str(confirm)


async def test_an_error_repeats_neither_the_answer_nor_a_token_of_the_endpoint() -> None:
    confirm = await publish(Endpoint(EndpointAnswer(status=400, headers={}, body=b"you sent card 4242 4242 4242 4242")))
    assert str(confirm) == "https://shop.example answered 400"


async def test_an_endpoint_that_does_not_answer_is_given_up() -> None:
    async def never(method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> EndpointAnswer:
        await asyncio.Event().wait()
        raise AssertionError

    broker = WebhookBroker(URL, secret=SECRET, sender=never, confirm_s=0.1)
    [confirm] = await broker.publish([MESSAGE])
    assert isinstance(confirm, BrokerUnavailable)
    assert "0.1 s" in str(confirm)


async def test_an_endpoint_that_leaves_requests_unanswered_holds_up_no_other() -> None:
    """Each round that tried it took as long as its time limit, and a queue for it kept all others from being sent."""
    answers, asked, given_up = asyncio.Event(), Counter[str](), asyncio.Event()

    async def send(method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> EndpointAnswer:
        asked[url] += 1
        if url == "https://silent.example/":
            await answers.wait() if given_up.is_set() else await asyncio.sleep(timeout_s + 1)
        return EndpointAnswer(status=204, headers={})

    broker = WebhookBroker(
        {"silent": "https://silent.example/", "good": "https://good.example/"},
        secret=SECRET, sender=send, concurrency=2, confirm_s=SLOW_S,
    )  # fmt: skip
    silent = [replace(MESSAGE, id=f"s{number}", topic="silent") for number in range(20)]
    good = [replace(MESSAGE, id=f"g{number}", topic="good") for number in range(3)]
    *refused, last = await broker.publish([*silent, good[0]])
    assert last is None
    assert all(isinstance(confirm, BrokerUnavailable) for confirm in refused)
    assert asked["https://silent.example/"] == 2, "those behind them are not asked for in turn"
    given_up.set()
    broker._confirm_s = PATIENCE_S
    *refused, last = await asyncio.wait_for(broker.publish([*silent, good[1]]), PATIENCE_S / 2)
    assert last is None
    assert all("one event at a time" in str(confirm) for confirm in refused)
    assert asked["https://silent.example/"] == 3
    answers.set()
    while asked["https://silent.example/"] == 3:  # the request that was under way is the answer, and no other is made
        [confirm] = await broker.publish(silent[:1])
        if confirm is None:
            break
    assert asked["https://silent.example/"] == 3
    assert await broker.publish([*silent[1:], good[2]]) == [None] * 20
    assert asked == {"https://silent.example/": 22, "https://good.example/": 3}
    await broker.close()


async def test_a_broker_that_is_closed_leaves_no_request_behind() -> None:
    begun, ended = asyncio.Semaphore(0), asyncio.Semaphore(0)

    async def never(method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> EndpointAnswer:
        begun.release()
        try:
            await asyncio.Event().wait()
        finally:
            ended.release()
        raise AssertionError

    broker = WebhookBroker(URL, secret=SECRET, sender=never, confirm_s=SLOW_S)
    for _ in range(2):
        [confirm] = await broker.publish([MESSAGE])
        assert isinstance(confirm, BrokerUnavailable)
        await begun.acquire()
    await broker.close()
    for _ in range(2):
        await asyncio.wait_for(ended.acquire(), PATIENCE_S)


async def test_no_more_requests_than_agreed_are_made_at_once() -> None:
    endpoint = Endpoint()
    broker = WebhookBroker(URL, secret=SECRET, sender=endpoint, concurrency=3)
    assert await broker.publish([MESSAGE] * 20) == [None] * 20
    assert endpoint.most_at_once == 3


async def test_a_topic_goes_to_its_endpoints_and_one_without_any_is_refused() -> None:
    endpoint = Endpoint()
    urls = {"orders": ["https://a.example/", "https://b.example/"], "refunds": "https://c.example/"}
    broker = WebhookBroker(urls, secret=SECRET, sender=endpoint)
    other = Message(id="2", source="shop", topic="nobody", data=b"")
    first, second = await broker.publish([MESSAGE, other])
    assert first is None
    assert isinstance(second, MessageRefused)
    assert "topic 'nobody' has no endpoint" in str(second)
    assert sorted(url for _, url, _, _ in endpoint.asked) == ["https://a.example/", "https://b.example/"]


async def test_a_pattern_of_topics_has_endpoints_and_each_gets_a_message_once() -> None:
    endpoint = Endpoint()
    urls = {"order.*": ["https://a.example/", "https://b.example/"], "order.>": "https://a.example/", "*": "https://c/"}
    broker = WebhookBroker(urls, secret=SECRET, sender=endpoint)
    for topic in ("order.paid", "order.paid.late", "orders"):
        assert await broker.publish([Message(id="2", source="shop", topic=topic, data=b"")]) == [None]
    asked = [url for _, url, _, _ in endpoint.asked]
    assert sorted(asked[:3]) == ["https://a.example/", "https://b.example/", "https://c/"]
    assert sorted(asked[3:]) == ["https://a.example/", "https://c/", "https://c/"]
    with pytest.raises(ConfigurationError, match="topic 'order>' of an endpoint is not a topic"):
        WebhookBroker({"order>": URL}, secret=SECRET)


async def test_of_several_endpoints_the_one_that_may_still_come_right_decides() -> None:
    async def answers(
        method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> EndpointAnswer:
        return EndpointAnswer(status={"a": 200, "b": 404, "c": 503}[url[8]], headers={})

    urls = {"orders": ["https://a/", "https://b/", "https://c/"]}
    [confirm] = await WebhookBroker(urls, secret=SECRET, sender=answers).publish([MESSAGE])
    assert isinstance(confirm, BrokerUnavailable)
    [confirm] = await WebhookBroker({"orders": urls["orders"][:2]}, secret=SECRET, sender=answers).publish([MESSAGE])
    assert isinstance(confirm, MessageRefused)


async def test_a_header_that_would_break_the_request_is_refused() -> None:
    endpoint = Endpoint()
    message = Message(id="1", source="shop", topic="orders", data=b"", headers={"content-length": "7"})
    [confirm] = await WebhookBroker(URL, secret=SECRET, sender=endpoint).publish([message])
    assert isinstance(confirm, MessageRefused)
    assert "'content-length'" in str(confirm)
    assert endpoint.asked == []


async def test_nobody_subscribes_to_webhooks() -> None:
    broker: Broker = WebhookBroker(URL, secret=SECRET)
    await broker.open()
    with pytest.raises(ConfigurationError, match="webhooks only send"):
        await broker.subscribe("billing", ["orders"])
    await broker.close()


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", "does not begin with 'whsec_'"),
        ("whsec_" + base64.b64encode(b"sh0rt" * 4).decode(), "has 20 bytes"),
        ("whsec_" + base64.b64encode(b"l0ng" * 20).decode(), "has 80 bytes"),
        ("whsec_n0t base64!", "not base64"),
        ((), "names no secret"),
    ],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(secret: str | tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigurationError, match=said) as refused:
        WebhookBroker(URL, secret=secret)
    assert not isinstance(secret, str) or secret.removeprefix("whsec_") not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "shop.example",
        "shop.example/hooks/pa55",
        "ftp://shop.example/",
        "https://",
        "https://user:pa55@shop.example/",
        "https://shop.example:pa55/",
        "https://shop.example:99999/",
        "https://shop.example:0/",
        "https://[pa55/hooks",
    ],
)
def test_an_endpoint_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError, match=r"must be an http\(s\) URL") as refused:
        WebhookBroker({"orders": [url]}, secret=SECRET)
    assert "pa55" not in str(refused.value)


def test_settings_out_of_range_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="concurrency=0"):
        WebhookBroker(URL, secret=SECRET, concurrency=0)
    with pytest.raises(ConfigurationError, match=r"confirm_s=0\.0"):
        WebhookBroker(URL, secret=SECRET, confirm_s=0.0)


@asynccontextmanager
async def listening(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers each request with these bytes, then hangs up."""
    heard: list[bytes] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"(?i)content-length: ([0-9]+)", head)
        heard.append(head + await reader.readexactly(int(length[1]) if length else 0))
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hooks", heard


async def test_the_default_sender_speaks_http() -> None:
    async with listening(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n") as (url, heard):
        broker = WebhookBroker(url, secret=SECRET, allow_private=True)
        assert await broker.publish([MESSAGE]) == [None]
        await broker.close()
        await broker.close()
    [request] = heard
    assert request.startswith(b"POST /hooks HTTP/1.1\r\n")
    assert request.lower().count(b"\r\ncontent-type: application/cloudevents+json\r\n") == 1
    assert MESSAGE.data in request


async def test_the_default_sender_follows_no_redirect_and_reads_no_endless_answer() -> None:
    answer = b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 100_000
    async with listening(answer) as (url, heard):
        sender = HttpxSender(allow_private=True)
        found = await sender("POST", url, {}, b"", 5.0)
        await sender.close()
    assert (found.status, len(found.body), len(heard)) == (302, 16_384, 1)


async def test_the_default_sender_reports_a_server_that_is_gone_or_hangs_up() -> None:
    async with listening(b"") as (url, _):
        broker = WebhookBroker(url, secret=SECRET, allow_private=True)
        [confirm] = await broker.publish([MESSAGE])
        assert isinstance(confirm, BrokerUnavailable)
    [confirm] = await broker.publish([MESSAGE])
    assert isinstance(confirm, BrokerUnavailable)
    await broker.close()
