"""The faster way to the wire: the messages of a batch as bytes, in one write. nats-py has no public name for that: its
`publish` frames one message at a time, and takes twice as long for one with headers.

All private names of nats-py that onefold uses are in this file. They are used in versions that the tests have run with,
and where all of them are there; `_publish.send` takes any other version.
"""

from __future__ import annotations

from collections.abc import Sequence
from inspect import iscoroutinefunction
from typing import Final

from nats.aio.client import Client

from onefold._kernel.public_drivers import may_use_private_names
from onefold.brokers.nats._publish import EncodedMessage, Refusals

#: Minor versions of nats-py; tests/packaging/test_lower_bounds.py runs with each of them.
TESTED: Final = tuple((2, minor) for minor in range(7, 17))
_NAMES: Final = ("_send_command", "_flush_pending")


def works_with(client: Client) -> bool:
    return may_use_private_names("nats-py", TESTED) and all(
        iscoroutinefunction(getattr(client, name, None)) for name in _NAMES
    )


async def send(client: Client, batch: Sequence[EncodedMessage]) -> Refusals:
    parts: list[bytes] = []
    for each in batch:
        size = len(each.head)
        command = f"HPUB {each.subject} {each.reply} {size} {size + len(each.data)}\r\n".encode()
        parts += (command, each.head, each.data, b"\r\n")
    await client._send_command(b"".join(parts))
    await client._flush_pending()
    return ()
