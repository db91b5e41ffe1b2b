"""The envelope: what is written is read again, by us and by the CloudEvents SDK; what cannot be read says why."""

from __future__ import annotations

import json
from typing import Any

import pytest
from cloudevents.core.bindings.http import HTTPMessage, from_binary_event, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from onefold._kernel.messages import Message, read, read_delivery, write
from onefold.errors import MessageUnreadable

names = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1, max_size=40)
texts = st.text(st.characters().filter(str.isprintable), min_size=1, max_size=60)
messages = st.builds(
    Message,
    id=names,
    source=names,
    topic=names,
    data=st.binary(max_size=200),
    content_type=st.sampled_from(["application/json", "application/x-order; v=1"]),
    time=st.none() | st.just("2026-01-02T03:04:05.678Z"),
    key=st.none() | texts,
    epoch=st.none() | st.integers(0, 2**62),
    version=st.none() | st.integers(0, 2**62),
    headers=st.dictionaries(st.sampled_from(["tenant", "traceparent", "correlation-id"]), names),
)

ORDER = Message(
    id="018f2f5e-7a1b-7c3d-8e4f-5a6b7c8d9e0f",
    source="orders",
    topic="order.placed",
    data=b'{"total":12}',
    time="2026-01-02T03:04:05.678Z",
    key='Ærø "1" 100%',
    epoch=1_767_000_000_000,
    version=7,
)


@given(message=messages, percent=st.booleans(), prefix=st.sampled_from(["ce-", "ce_", "cloudEvents_"]))
def test_what_is_written_is_read_again(message: Message, percent: bool, prefix: str) -> None:
    headers = write(message, prefix=prefix, percent=percent)
    if percent:
        assert all(value.isascii() and value.isprintable() for name, value in headers.items() if name != "content-type")
    assert read(headers, message.data, prefix=prefix, percent=percent) == message


def test_the_cloudevents_sdk_reads_what_we_write() -> None:
    event = from_binary_event(HTTPMessage(write(ORDER), ORDER.data))
    assert (event.get_id(), event.get_source(), event.get_type()) == (ORDER.id, ORDER.source, ORDER.topic)
    assert event.get_data() == {"total": 12}
    assert event.get_extension("partitionkey") == ORDER.key
    assert event.get_extension("sequence") == "7"
    moment = event.get_time()
    assert moment is not None
    assert moment.isoformat() == "2026-01-02T03:04:05.678000+00:00"


@pytest.mark.parametrize("mode", [to_binary_event, to_structured_event])
def test_we_read_what_the_cloudevents_sdk_writes(mode: Any) -> None:
    attributes = {"id": "1", "source": "/legacy", "type": "order.placed", "partitionkey": "Ærø 1", "sequence": "7"}
    attributes |= {"datacontenttype": "application/json"}
    sent = mode(CloudEvent(attributes=attributes, data={"total": 12}))
    message = read({name.lower(): value for name, value in sent.headers.items()}, sent.body)
    assert (message.id, message.source, message.topic, message.key, message.version) == (
        "1", "/legacy", "order.placed", "Ærø 1", 7,
    )  # fmt: skip
    assert message.json() == {"total": 12}


STRUCTURED = {"content-type": "application/cloudevents+json; charset=utf-8", "tenant": "acme"}
NAMED = {"id": "1", "source": "s", "type": "t", "specversion": "1.0"}


@pytest.mark.parametrize(
    ("document", "content_type", "data"),
    [
        ({"data_base64": "AP8=", "datacontenttype": "application/x-order"}, "application/x-order", b"\x00\xff"),
        ({"data": "<a/>", "datacontenttype": "text/xml"}, "text/xml", b"<a/>"),
        ({"data": "text"}, "application/json", b'"text"'),
        ({}, "application/json", b"null"),
    ],
)
def test_a_structured_message_is_read_whatever_its_data(
    document: dict[str, str], content_type: str, data: bytes
) -> None:
    message = read(STRUCTURED, json.dumps({**NAMED, **document}).encode())
    assert (message.content_type, message.data, message.headers) == (content_type, data, {"tenant": "acme"})


@pytest.mark.parametrize(
    ("headers", "data", "says"),
    [
        ({}, b"hello", "no CloudEvents attribute 'id'"),
        ({"ce-id": "1", "ce-source": "s"}, b"", "no CloudEvents attribute 'type'"),
        ({"ce-id": "", "ce-source": "s", "ce-type": "t"}, b"", "no CloudEvents attribute 'id'"),
        ({"ce-id": "a%00b", "ce-source": "s", "ce-type": "t"}, b"", "must be printable"),
        ({"ce-id": "1" * 513, "ce-source": "s", "ce-type": "t"}, b"", "513 characters"),
        (STRUCTURED, b"{", "is not JSON"),
        (STRUCTURED, b"[]", "is a JSON list"),
        (STRUCTURED, b'{"id": "1", "source": "s"}', "no CloudEvents attribute 'type'"),
        (STRUCTURED, json.dumps({**NAMED, "data_base64": "?"}).encode(), "not base64"),
        (STRUCTURED, json.dumps({**NAMED, "data_base64": 7}).encode(), "not base64"),
        (STRUCTURED, json.dumps({**NAMED, "data": "\ud800"}).encode(), "cannot be read: UnicodeEncodeError"),
        (STRUCTURED, json.dumps({**NAMED, "id": "\ud800"}).encode(), "must be printable"),
        (STRUCTURED, b"[" * 100_000, "is not JSON"),
        (STRUCTURED, b'{"id": ' + b"9" * 10_000 + b"}", "is not JSON"),
        (STRUCTURED, b"\xff\xfe\x00", "is not JSON"),
    ],
)
def test_what_cannot_be_read_says_why_and_keeps_its_bytes(headers: dict[str, str], data: bytes, says: str) -> None:
    with pytest.raises(MessageUnreadable, match=says):
        read(headers, data)
    delivery = read_delivery(headers, data, redelivered=True, receipt=1)
    assert (delivery.message, delivery.data, delivery.headers) == (None, data, headers)
    assert says in (delivery.problem or "")


@pytest.mark.parametrize("sequence", ["seven", "7.0", "", "9" * 30, "9" * 19, "\u0667"])
def test_a_foreign_sequence_that_is_no_number_is_no_version(sequence: str) -> None:
    headers = {"ce-id": "1", "ce-source": "s", "ce-type": "t", "ce-sequence": sequence}
    assert read(headers, b"").version is None
