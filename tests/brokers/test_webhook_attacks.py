"""Webhooks under attack: captured deliveries that were changed, endpoints that flood, endpoints inside our network."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from onefold._kernel.messages import Message, read, write_structured
from onefold.brokers.webhook import EndpointAnswer, WebhookBroker, read_webhook, verify_webhook
from onefold.brokers.webhook._sender import HttpxSender, PublicAddressesOnly, is_public
from onefold.errors import MessageRefused, MessageUnreadable

SECRET = "whsec_" + base64.b64encode(b"a" * 32).decode()
NOW_S = 1_800_000_000.0
MESSAGE = Message(id="0199-é", source="shop", topic="order.paid", data=b'{"order":42}', key="ord-42", version=3)


async def captured(message: Message = MESSAGE) -> tuple[dict[str, str], bytes]:
    """A delivery as it is on the wire."""
    seen: list[tuple[dict[str, str], bytes]] = []

    async def sender(
        method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float
    ) -> EndpointAnswer:
        seen.append((dict(headers), body))
        return EndpointAnswer(status=204, headers={})

    broker = WebhookBroker("https://shop.example", secret=SECRET, sender=sender, wall_s=lambda: NOW_S)
    assert list(await broker.publish([message])) == [None]
    return seen[0]


async def test_a_delivery_is_read_with_all_that_is_signed() -> None:
    headers, body = await captured()
    found = read_webhook(SECRET, {name.title(): value for name, value in headers.items()}, body, now_s=NOW_S)
    assert (found.id, found.topic, found.data, found.key, found.version) == (
        MESSAGE.id, MESSAGE.topic, MESSAGE.data, MESSAGE.key, MESSAGE.version,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"idempotency-key": '"another"'}, "Idempotency-Key"),
        ({"idempotency-key": ""}, "Idempotency-Key"),
        ({"ce-type": "order.refunded"}, "'ce-type'"),
        ({"ce-id": "0199-%C3%A9"}, "'ce-id'"),
        ({"content-type": "application/json", "ce-type": "order.refunded"}, "'ce-type'"),
    ],
)
@pytest.mark.parametrize("receive", [verify_webhook, read_webhook])
async def test_what_the_signature_does_not_cover_is_not_believed(
    receive: Any, changed: dict[str, str], named: str
) -> None:
    headers, body = await captured()
    receive(SECRET, headers, body, now_s=NOW_S)
    with pytest.raises(MessageUnreadable, match=named):
        receive(SECRET, headers | changed, body, now_s=NOW_S)


async def test_an_event_under_another_webhooks_id_is_refused() -> None:
    from onefold.brokers.webhook._signature import read_keys, sign

    _, body = await captured()
    headers = {"content-type": "application/cloudevents+json"} | sign(read_keys(SECRET), "other", body, now_s=NOW_S)
    with pytest.raises(MessageUnreadable, match="the event's id"):
        verify_webhook(SECRET, headers, body, now_s=NOW_S)


async def test_a_signed_body_that_is_no_json_is_refused_and_nothing_else() -> None:
    from onefold.brokers.webhook._signature import read_keys, sign

    body = b"[" * 100_000
    headers = {"content-type": "application/cloudevents+json"} | sign(read_keys(SECRET), "id", body, now_s=NOW_S)
    with pytest.raises(MessageUnreadable, match="not JSON"):
        verify_webhook(SECRET, headers, body, now_s=NOW_S)


@pytest.mark.parametrize("member", ['"id": "\\ud800"', '"id": "id", "data": "\\ud800"'])
async def test_a_signed_body_with_half_a_character_is_refused_and_nothing_else(member: str) -> None:
    from onefold.brokers.webhook._signature import read_keys, sign

    body = f'{{"specversion": "1.0", "source": "shop", "type": "order.placed", {member}}}'.encode()
    headers = {"content-type": "application/cloudevents+json"} | sign(read_keys(SECRET), "id", body, now_s=NOW_S)
    with pytest.raises(MessageUnreadable):
        read_webhook(SECRET, headers, body, now_s=NOW_S)


async def test_an_id_with_a_dot_is_neither_sent_nor_accepted() -> None:
    broker = WebhookBroker("https://shop.example", secret=SECRET)
    [confirm] = await broker.publish([Message(id="a.1", source="shop", topic="t", data=b"")])
    assert isinstance(confirm, MessageRefused)
    assert "dot" in str(confirm)
    headers, body = await captured()
    with pytest.raises(MessageUnreadable, match="dot"):
        verify_webhook(SECRET, headers | {"webhook-id": "a.1"}, body, now_s=NOW_S)


@given(
    st.one_of(
        st.binary(max_size=40).map(lambda data: (data, "application/octet-stream")),
        st.text(max_size=40).map(lambda text: (text.encode("utf-8", "replace"), "text/plain")),
        st.sampled_from([b"1.0", b'{"a": 1}', b'{"a":1}', b"null", b"", b"[[", b'"x"', b"1e400"]).map(
            lambda data: (data, "application/json")
        ),
    )
)
def test_any_data_comes_back_byte_for_byte(data: tuple[bytes, str]) -> None:
    message = Message(id="1", source="s", topic="t", data=data[0], content_type=data[1], time="2026-01-01T00:00:00Z")
    headers, body = write_structured(message)
    json.loads(body)
    assert read(headers, body) == message


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("8.8.8.8", True),
        ("2606:4700::1111", True),
        ("127.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.2.3", False),
        ("172.16.0.1", False),
        ("192.168.1.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1%eth0", False),
        ("fc00::1", False),
        ("::ffff:127.0.0.1", False),
        ("::ffff:8.8.8.8", True),
        ("64:ff9b::7f00:1", False),
        ("2002:7f00:1::", False),
        ("ff02::1", False),
        ("fec0::1", False),
        ("feff::1", False),
        ("::127.0.0.1", False),
    ],
)
def test_an_address_is_public_or_it_is_not(address: str, public: bool) -> None:
    assert is_public(address) is public


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]", "2130706433", "0x7f.1", "169.254.169.254"])
async def test_an_endpoint_in_our_own_network_is_refused_and_not_tried_again(host: str) -> None:
    broker = WebhookBroker(f"http://{host}:1/hook", secret=SECRET)
    try:
        [confirm] = await broker.publish([MESSAGE])
    finally:
        await broker.close()
    assert isinstance(confirm, MessageRefused), confirm
    assert "allow_private=True" in str(confirm)


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to() -> None:
    """A name that has a public address when it is checked, and a private one a moment later."""
    asked: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(204)

    async def resolve(host: str, port: int) -> Sequence[str]:
        assert (host, port) == ("evil.example", 443)
        return ["127.0.0.1", "93.184.216.34"]

    transport = PublicAddressesOnly(httpx.MockTransport(answer), resolve)
    async with httpx.AsyncClient(transport=transport) as client:
        response = await client.post("https://evil.example/hook", content=b"x")
    assert response.status_code == 204
    assert asked[0].url.host == "93.184.216.34"
    assert asked[0].headers["host"] == "evil.example"
    assert asked[0].extensions["sni_hostname"] == "evil.example"


async def test_a_host_without_an_address_may_have_one_later() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        raise OSError("unknown name")

    async with httpx.AsyncClient(
        transport=PublicAddressesOnly(httpx.MockTransport(lambda _: httpx.Response(204)), resolve)
    ) as client:
        with pytest.raises(httpx.ConnectError, match="unknown name"):
            await client.post("https://gone.example/hook")


async def test_an_answer_that_unpacks_into_gigabytes_is_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    import gzip

    bomb = gzip.compress(bytes(50_000_000))
    transport = httpx.MockTransport(
        lambda _: httpx.Response(503, headers={"content-encoding": "gzip"}, stream=httpx.ByteStream(bomb))
    )
    sender = HttpxSender(allow_private=True)
    monkeypatch.setattr(sender, "_client", httpx.AsyncClient(transport=transport))
    answer = await sender("POST", "https://shop.example", {}, b"", 60.0)
    await sender.close()
    assert answer.status == 503
    assert len(answer.body) <= 16_384
    assert answer.body == bomb[: len(answer.body)], "as it came"
