"""A consumer's end of Redis Streams: a reader of its own name in the consumer's group, and the trimming of what all
groups are done with.

Invariant: an entry leaves its stream only after every group has acknowledged it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Protocol

from redis.exceptions import NoPermissionError, ResponseError

from onefold._kernel.messages import Delivery, Origin, read_delivery
from onefold.errors import BrokerUnavailable, ConfigurationError

#: The field of an entry that holds the data; no header can have that name.
DATA: Final = ":data"
#: For how long a read blocks at most: what another reader gave back is looked for in between.
_BLOCK_S: Final = 1.0
#: How many entries are trimmed by one command: the server does nothing else meanwhile.
_TRIM: Final = 10_000
#: A reader without entries that was not heard of for so long is forgotten.
_FORGET_MS: Final = 86_400_000
_FORGET: Final = """
for _, fields in ipairs(redis.call('XINFO', 'CONSUMERS', KEYS[1], ARGV[1])) do
  local reader = {}
  for i = 1, #fields, 2 do reader[fields[i]] = fields[i + 1] end
  if reader.pending == 0 and reader.idle > tonumber(ARGV[2]) then
    redis.call('XGROUP', 'DELCONSUMER', KEYS[1], ARGV[1], reader.name)
  end
end
"""


class Streams(Protocol):
    """What a subscription needs of its broker."""

    lease_s: float
    trim_every_s: float

    async def ask(self, *command: Any, wait_s: float = 0.0) -> Any: ...
    def pipeline(self) -> Any: ...
    async def execute(self, pipe: Any) -> None: ...
    def unavailable(self, reason: BaseException | str) -> BrokerUnavailable: ...


class RedisSubscription:
    """A reader of its own name in the consumer's group."""

    def __init__(self, broker: Streams, group: str, topics: Mapping[str, str]) -> None:
        """`topics` by the keys of their streams."""
        self._broker = broker
        self._group = group
        self._topics = topics
        self._keys = keys = list(topics)
        self._reader = uuid.uuid4().hex
        self._buffer: deque[tuple[float, Delivery]] = deque()
        self._unsettled: set[_Receipt] = set()
        self._cursors = dict.fromkeys(keys, b"0-0")
        self._trim_at = time.monotonic() + broker.trim_every_s
        self._closed = False

    async def prepare(self) -> None:
        """Make the groups that are missing. A new one gets all that its stream still has."""
        for key in self._keys:
            try:
                await self._broker.ask("XGROUP", "CREATE", key, self._group, "0", "MKSTREAM")
            except ResponseError as error:
                if is_final(error):
                    raise ConfigurationError(f"{self._group!r} cannot subscribe to the key {key!r}: {error}") from error
                if not str(error).startswith("BUSYGROUP"):
                    raise self._broker.unavailable(error) from error

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait_s
        fresh_since = time.monotonic() - self._broker.lease_s / 2
        while self._buffer and self._buffer[0][0] < fresh_since:
            self._buffer.popleft()  # its lease is running out: it comes again
        try:
            while True:
                await self._take_over(limit)
                while len(self._buffer) < limit and await self._read(limit, 0.0):
                    pass
                left = deadline - time.monotonic()
                if self._buffer or left <= 0:
                    break
                await self._read(limit, min(left, _BLOCK_S, self._broker.lease_s / 4))
        except ResponseError as error:
            if str(error).startswith("NOGROUP"):
                await self.prepare()
            raise self._broker.unavailable(error) from error
        found = [self._buffer.popleft()[1] for _ in range(min(limit, len(self._buffer)))]
        self._unsettled.update(delivery.receipt for delivery in found)
        return found

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        receipts = [delivery.receipt for delivery in deliveries]
        self._unsettled.difference_update(receipts)  # what does not arrive comes again, and is no longer ours
        pipe = self._broker.pipeline()
        for key, ids in _by_key(receipts).items():
            pipe.xack(key, self._group, *ids)
        await self._broker.execute(pipe)
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + self._broker.trim_every_s
            with suppress(BrokerUnavailable, ResponseError):
                for key in self._keys:
                    await self._trim(key)

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        receipts = [delivery.receipt for delivery in deliveries]
        self._unsettled.difference_update(receipts)
        await self._set_idle(receipts, self._broker.lease_s)

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        await self._set_idle([delivery.receipt for delivery in deliveries], 0.0)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        left = [*self._unsettled, *(delivery.receipt for _, delivery in self._buffer)]
        self._unsettled.clear()
        self._buffer.clear()
        with suppress(BrokerUnavailable):
            await self._set_idle(left, self._broker.lease_s)

    async def _read(self, limit: int, block_s: float) -> bool:
        """Entries that no member of the group has. COUNT holds per stream, so a few more than requested may come."""
        count = -(-(limit - len(self._buffer)) // len(self._keys))
        block = ("BLOCK", max(1, int(block_s * 1000))) if block_s else ()
        command = ("XREADGROUP", "GROUP", self._group, self._reader, "COUNT", count, *block)
        answer = await self._broker.ask(*command, "STREAMS", *self._keys, *(">" for _ in self._keys), wait_s=block_s)
        for key, entries in answer or ():
            self._arrive(key.decode(), entries, redelivered=False)
        return bool(answer)

    async def _take_over(self, limit: int) -> None:
        """What a member of the group was given, and did not settle or keep for a lease's time."""
        lease_ms = int(self._broker.lease_s * 1000)
        for key in self._keys:
            room = limit - len(self._buffer)
            if room <= 0:
                return
            command = ("XAUTOCLAIM", key, self._group, self._reader, lease_ms, self._cursors[key], "COUNT", room)
            self._cursors[key], entries, *_ = await self._broker.ask(*command)
            self._arrive(key, entries, redelivered=True)

    def _arrive(self, key: str, entries: Sequence[Any], *, redelivered: bool) -> None:
        now = time.monotonic()
        for entry, fields in entries:
            if fields:  # an entry that was deleted has none
                self._buffer.append((now, _delivery(_Receipt(key, entry), fields, self._topics[key], redelivered)))

    async def _set_idle(self, receipts: Sequence[_Receipt], idle_s: float) -> None:
        pipe = self._broker.pipeline()
        for key, ids in _by_key(receipts).items():
            pipe.xclaim(key, self._group, self._reader, 0, ids, idle=int(idle_s * 1000), justid=True)
        await self._broker.execute(pipe)

    async def _trim(self, key: str) -> None:
        """Remove what every group has acknowledged: all before the first entry that is pending, or not yet delivered,
        in some group. A group made at this moment starts at what is left."""
        floors: list[tuple[int, int]] = []
        for group in await self._broker.ask("XINFO GROUPS", key):
            name, delivered = group["name"], _number(group["last-delivered-id"])
            pending = await self._broker.ask("XPENDING", key, name)
            after = (delivered[0], delivered[1] + 1)
            floors.append(min(after, _number(pending["min"])) if pending["min"] else after)
        if floors:
            milliseconds, sequence = min(floors)
            trim = ("XTRIM", key, "MINID", "~", f"{milliseconds}-{sequence}", "LIMIT", _TRIM)
            while await self._broker.ask(*trim):  # until nothing is left to trim: a part of it each time would pile up
                pass
        await self._broker.ask("EVAL", _FORGET, 1, key, self._group, _FORGET_MS)


@dataclass(frozen=True, slots=True)
class _Receipt:
    key: str
    entry: bytes


def is_final(error: BaseException) -> bool:
    """Whether the error is permanent: the server would answer every repetition alike. All other errors pass."""
    return isinstance(error, NoPermissionError) or str(error).startswith("WRONGTYPE")


def _by_key(receipts: Sequence[_Receipt]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for receipt in receipts:
        found.setdefault(receipt.key, []).append(receipt.entry)
    return found


def _delivery(receipt: _Receipt, fields: Mapping[bytes, bytes], topic: str, redelivered: bool) -> Delivery:
    texts = {_text(name): value for name, value in fields.items()}
    data = texts.pop(DATA, None)
    if data is None:  # not one of ours: its one value, or all of them as JSON
        values = list(texts.values())
        data = (
            values[0] if len(values) == 1 else json.dumps({name: _text(text) for name, text in texts.items()}).encode()
        )
    headers = {name: _text(value) for name, value in texts.items()}
    origin = Origin(broker="redis", subject=receipt.key, topic=topic, id=receipt.entry.decode(), percent=False)
    return read_delivery(headers, data, redelivered=redelivered, receipt=receipt, origin=origin)


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _number(entry: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry.decode().partition("-")
    return int(milliseconds), int(sequence)
