"""A message as SQS carries it, and back: a CloudEvent in structured mode as the body, the application's headers as JSON
in one attribute (SQS takes ten attributes, and text only).

Invariant: what was sent comes back equal; a body without an envelope comes as the bytes of its text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Final

from onefold._kernel.messages import (
    STRUCTURED,
    Delivery,
    Message,
    Origin,
    name_apart,
    read,
    read_delivery,
    write,
    write_structured,
)
from onefold.errors import MessageUnreadable

_HEADERS: Final = "onefold-headers"
_CONTENT_TYPE: Final = "content-type"
#: What SQS takes as the name of a group, and as what two sends of one message have in common.
_NAME: Final = re.compile(r"[A-Za-z0-9!-/:-@\[-`{-~]{1,128}", re.ASCII)
#: Characters that SQS takes in no text, and that JSON leaves as they are.
_UNFIT: Final = re.compile("[\x7f-\x84\x86-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_BATCH: Final = 10


@dataclass(frozen=True, slots=True)
class SqsEntry:
    """One message of a batch. Its index among what is published is its id there."""

    index: int
    size: int
    """As SQS counts: the body, and the names, types and values of its attributes."""
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class SqsReceipt:
    """What settles a delivery."""

    handle: str


def entry_of(index: int, message: Message, *, fifo: bool) -> SqsEntry:
    _, document = write_structured(message)
    body = _UNFIT.sub(lambda found: f"\\u{ord(found[0]):04x}", document.decode(errors="surrogatepass"))
    attributes = {_CONTENT_TYPE: STRUCTURED}
    if message.headers:
        attributes[_HEADERS] = json.dumps(dict(message.headers))
    request: dict[str, Any] = {
        "Id": str(index),
        "MessageBody": body,
        "MessageAttributes": {name: {"DataType": "String", "StringValue": value} for name, value in attributes.items()},
    }
    if fifo:
        apart = name_apart(message.id, message.source)
        # Without a key there is no order to keep: a group of its own holds up no other.
        request["MessageGroupId"] = _fit(apart if message.key is None else message.key)
        request["MessageDeduplicationId"] = _fit(apart)
    size = len(body.encode()) + sum(len(name) + len("String") + len(value) for name, value in attributes.items())
    return SqsEntry(index, size, request)


def pack(entries: Iterable[SqsEntry], bytes_max: int) -> Iterator[list[SqsEntry]]:
    """Batches that SQS takes: at most ten, and together no larger than one message may be."""
    batch: list[SqsEntry] = []
    size = 0
    for entry in entries:
        if batch and (len(batch) == _BATCH or size + entry.size > bytes_max):
            yield batch
            batch, size = [], 0
        batch.append(entry)
        size += entry.size
    if batch:
        yield batch


def delivery_of(found: Mapping[str, Any], queue: str) -> Delivery:
    """What came, whether or not it has an envelope."""
    body = str(found.get("Body", ""))
    attributes = {
        name: str(each["StringValue"])
        for name, each in found.get("MessageAttributes", {}).items()
        if "StringValue" in each
    }
    headers = _headers_of(attributes)
    data = body.encode(errors="surrogatepass")
    counted = found.get("Attributes", {})
    redelivered = int(counted.get("ApproximateReceiveCount", 1)) > 1
    receipt = SqsReceipt(str(found["ReceiptHandle"]))
    origin = Origin(broker="sqs", subject=queue, topic=queue, id=str(found.get("MessageId")), percent=False)
    try:
        message = read(headers, data, percent=False)
    except MessageUnreadable:
        return read_delivery(headers, data, redelivered=redelivered, receipt=receipt, origin=origin)
    # As in binary mode, in which failed messages are kept.
    return Delivery(
        data=message.data,
        headers=write(message, percent=False),
        message=message,
        origin=replace(origin, topic=message.topic),  # a queue is no topic
        redelivered=redelivered,
        receipt=receipt,
    )


def _headers_of(attributes: Mapping[str, str]) -> dict[str, str]:
    """Our own in one attribute; those of other producers, one each."""
    headers = dict(attributes)
    try:
        found = json.loads(headers.get(_HEADERS, "null"))
        ours = {str(name): str(value) for name, value in found.items()} if isinstance(found, dict) else None
    except (ValueError, RecursionError):  # the latter: nested too deeply
        return headers
    if ours is not None:
        del headers[_HEADERS]
        headers |= ours
    return headers


def _fit(name: str) -> str:
    return name if _NAME.fullmatch(name) else blake2b(name.encode(errors="surrogatepass"), digest_size=32).hexdigest()
