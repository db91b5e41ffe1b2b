"""What a relay has at hand: rows read as messages, the order they are sent in, and which buckets are whose.

Everything here is a function of its arguments. Of one stream, no round holds more than one event, and the rounds
hold them in their order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final, NamedTuple, Protocol, TypeVar

from onefold._kernel.effects import Row
from onefold._kernel.messages import Message
from onefold._outbox.request_names import read_headers

#: How often a row may have been at hand when a relay died, before it is a dead letter.
AT_HAND_MAX: Final = 3

DIED_OF: Final = f"it was at hand when a relay died, {AT_HAND_MAX} times; look at the event, then retry or discard it"

#: What both dialects read of a row, after its bucket.
COLUMNS: Final = (
    "position, stream, id, source, topic, key, epoch, version, time, content_type, headers, data, started, finished, "
    "destination, error"
)

#: Comes after every stream.
BEYOND: Final = b"\xff" * 17

ERROR_LENGTH_MAX: Final = 1000


class TourPosition(NamedTuple):
    """Where a tour of the streams goes on: behind this one."""

    bucket: int = -1
    destination: str = ""
    stream: bytes = b""


START: Final = TourPosition()


class Limits(NamedTuple):
    """How much a claim takes at most."""

    per_bucket: int
    """Of a bucket, where its oldest rows are looked at."""
    rows: int
    data_bytes: int
    per_stream: int
    steps: int
    """From one stream to the next."""


class Failure(NamedTuple):
    """A row that was not taken, and when it is tried again."""

    position: int
    error: str
    wait_ms: int | None
    """None: it is a dead letter."""
    counted: int
    """1, or 0 where it does not count as an attempt."""


class ClaimedRow(NamedTuple):
    """A row that this relay has claimed, and its event. `message` is why not, where the row cannot be read as one."""

    bucket: int
    position: int
    stream: bytes | None
    destination: str
    message: Message | ValueError
    finished: int
    failed_before: bool


class ClaimResult(NamedTuple):
    """What a claim has found, in its order."""

    rows: list[ClaimedRow]
    full: bool = False
    """A scan saw as many rows of a bucket as it looks at: more may stand behind them."""
    crowded: bool = False
    """A scan saw little but what may not go, or what is of few streams: more may stand behind it."""
    goes_on: TourPosition = START
    """Where a tour had to stop."""


def read_scan(found: Sequence[Row], per_bucket: int) -> ClaimResult:
    """What a scan has found. A row without a position may not go."""
    rows = sorted((read(row) for row in found if row[1] is not None), key=_position)
    counts: dict[int, int] = {}
    for row in found:
        counts[row[0]] = counts.get(row[0], 0) + 1
    various: dict[int, set[bytes | int]] = {}
    for row in rows:
        various.setdefault(row.bucket, set()).add(row.stream or row.position)
    full = {bucket: count for bucket, count in counts.items() if count >= per_bucket}
    crowded = any(2 * len(various.get(bucket, ())) < count for bucket, count in full.items())
    return ClaimResult(rows, full=bool(full), crowded=crowded)


def read_tour(found: Sequence[Row]) -> ClaimResult:
    """What a tour has found. A row without a position says where it had to stop."""
    rows = sorted((read(row) for row in found if row[1] is not None), key=_position)
    for bucket, position, stream, _, _, destination, *_ in found:
        if position is None:
            return ClaimResult(rows, goes_on=TourPosition(bucket, destination, bytes(stream)))
    return ClaimResult(rows)


def _position(row: ClaimedRow) -> int:
    return row.position


def read(row: Row) -> ClaimedRow:
    """A row of a claim."""
    bucket, position, stream, id_, source, topic, key, epoch, version, time, content_type, headers, data, *more = row
    _, finished, destination, error = more
    message: Message | ValueError
    try:
        message = Message(
            id=id_,
            source=source,
            topic=topic,
            data=bytes(data),
            content_type=content_type,
            time=time,
            key=key,
            epoch=epoch,
            version=version,
            headers={} if headers == "{}" else read_headers(headers)[0],
            endpoint=destination,
        )
    except ValueError as unreadable:  # it was edited by hand: it stops its stream, not the relay
        message = unreadable
    stream = None if stream is None else bytes(stream)
    return ClaimedRow(bucket, position, stream, destination or topic, message, finished, error is not None)


class InStream(Protocol):
    """What waits to be published, in its stream, or in none."""

    @property
    def stream(self) -> bytes | None: ...


E = TypeVar("E", bound=InStream)


def rounds(rows: Sequence[E]) -> list[list[E]]:
    """First the first of each stream and all that have none, then the second of each, and so on."""
    found: list[list[E]] = []
    indexes: dict[bytes, int] = {}
    for row in rows:
        index = 0
        if row.stream is not None:
            index = indexes.get(row.stream, 0)
            indexes[row.stream] = index + 1
        if index == len(found):
            found.append([])
        found[index].append(row)
    return found


def assign_buckets(
    relay: str, relays: Sequence[str], owners: Mapping[int, str | None], *, leaving: bool = False
) -> dict[int, str | None]:
    """Which buckets change hands when this relay rebalances: those without a living owner, and its own above its fair
    share (when leaving, all of them).

    They go to the relays that have fewest, at once: a bucket without an owner waits. Those of other living relays are
    not touched, because they may be publishing from them.
    """
    held: dict[str, list[int]] = {name: [] for name in relays}
    homeless: list[int] = []
    for bucket, owner in owners.items():
        held.get(owner or "", homeless).append(bucket)
    if leaving:
        homeless += held.pop(relay, [])
    if not held:
        return {bucket: None for bucket in homeless if owners[bucket] is not None}
    share = ceil(len(owners) / len(held))
    if relay in held:
        homeless += held[relay][share:]
        held[relay] = held[relay][:share]
    changes: dict[int, str | None] = {}
    for bucket in sorted(homeless):
        taker = min(held, key=lambda name: len(held[name]))
        held[taker].append(bucket)
        changes[bucket] = taker
    return {bucket: taker for bucket, taker in changes.items() if owners[bucket] != taker}


def shorten(error: object) -> str:
    """An error as it is stored."""
    return str(error).replace("\0", "")[:ERROR_LENGTH_MAX]
