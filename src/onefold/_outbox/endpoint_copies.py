"""An event that goes to endpoints becomes one copy for each: what one endpoint does not take is no other one's affair.

With one endpoint too. Where an event goes is settled once, in the database: aimed again at each try, an event whose
only endpoint was disabled meanwhile would be taken for one that has none, and a key would have two streams at one
endpoint.

A copy is a row like any other, with its endpoint as its destination and, where the event has a key, with a stream of
that endpoint's own. It is in the bucket of the event, so that one relay makes the copies of a stream, in its order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from onefold._kernel.messages import Message
from onefold._outbox.claimed_rows import ClaimedRow

#: The names of the endpoints that an event goes to.
EndpointsOf: TypeAlias = Callable[[Message], Sequence[str]]

#: No further event is copied in a round that makes so many copies.
COPIES_MAX: Final = 1000


class EndpointCopy(NamedTuple):
    """A copy to be made of a row."""

    position: int
    stream: bytes | None
    destination: str


def split_by_endpoint(
    rows: Sequence[ClaimedRow], endpoints_of: EndpointsOf
) -> tuple[list[ClaimedRow], list[EndpointCopy]]:
    """The rows that go as they are, and the copies to be made of others. What stands behind a row that goes as it is
    is left for another round: a copy of it could arrive first."""
    going: list[ClaimedRow] = []
    copies: list[EndpointCopy] = []
    whole: set[bytes | None] = set()
    for row in rows:
        message = row.message
        names = endpoints_of(message) if isinstance(message, Message) and message.endpoint is None else ()
        if not names:
            going.append(row)
            whole.add(row.stream)
        elif len(copies) < COPIES_MAX and (row.stream is None or row.stream not in whole):
            copies += [EndpointCopy(row.position, _stream(row.stream, name), name) for name in names]
    return going, copies


def _stream(stream: bytes | None, name: str) -> bytes | None:
    return None if stream is None else blake2b(stream + name.encode(), digest_size=16).digest()
