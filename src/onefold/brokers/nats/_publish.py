"""What a message is on the wire of NATS, and its way there through nats-py's public API.

Invariant: what NATS cannot carry is refused before a byte of it is written. NATS's protocol is text, so nothing in a
message may end a line; and the server ends the connection over a message that is larger than it takes.

`_fast_publish` writes the same messages faster, through private names, where `Link` may use it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import nats.errors
from nats.aio.client import Client

from onefold._kernel.messages import PREFIX, Message, name_apart, write
from onefold.errors import MessageRefused

SUBJECT: Final = re.compile(r"[\w-]+(\.[\w-]+)*", re.ASCII)
_NAMES: Final = re.compile(r"[!-9;-~]+(\n[!-9;-~]+)*")
#: What the client says of one message, not of its connection. BadHeaderError came with 2.16, which takes fewer
#: characters in the name of a header than the server does.
_REFUSALS: Final = tuple(
    getattr(nats.errors, name)
    for name in ("BadHeaderError", "BadSubjectError", "MaxPayloadError")
    if hasattr(nats.errors, name)
)


class EncodedMessage(NamedTuple):
    """A message that NATS can carry, the `number`-th of its call. `head` are its headers as they are on the wire."""

    number: int
    subject: str
    reply: str
    headers: dict[str, str]
    head: bytes
    data: bytes


#: By the number of its message in the call.
Refusals = Sequence[tuple[int, MessageRefused]]


def encode(message: Message, number: int, prefix: str, reply: str, bytes_max: int) -> EncodedMessage:
    """Raises MessageRefused."""
    if not SUBJECT.fullmatch(message.topic):
        raise MessageRefused(
            f"the topic {message.topic!r} is not a NATS subject: a part is empty, or has more than A-Z a-z 0-9 _ -"
        )
    headers = write(message)
    headers["Nats-Msg-Id"] = name_apart(headers[f"{PREFIX}id"], message.source)
    lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
    sound = lines.isascii() and lines.count("\r") == lines.count("\n") == len(headers)
    if not sound or not _NAMES.fullmatch("\n".join(headers)):
        raise MessageRefused(f"NATS cannot carry the headers of the message {message.id}: {dict(message.headers)}")
    head = f"NATS/1.0\r\n{lines}\r\n".encode()
    size = len(head) + len(message.data)
    if size > bytes_max:
        raise MessageRefused(f"the message {message.id} has {size} bytes; NATS takes max_payload={bytes_max}")
    return EncodedMessage(number, f"{prefix}.{message.topic}", reply, headers, head, message.data)


async def send(client: Client, batch: Sequence[EncodedMessage]) -> Refusals:
    """Hand each message to the client, which writes them out at the loop's next turn."""
    refused: list[tuple[int, MessageRefused]] = []
    for each in batch:
        try:
            await client.publish(each.subject, each.data, reply=each.reply, headers=each.headers)
        except _REFUSALS as error:
            refused.append((each.number, MessageRefused(f"nats-py refuses a message to {each.subject}: {error}")))
    return refused
