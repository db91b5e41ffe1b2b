"""Redis and Valkey Streams: a stream per topic, a consumer group per consumer name.

Invariant: an entry leaves its stream only after every group has acknowledged it. What a reader neither acknowledged nor
kept for `lease_s`, the next reader of its group takes over; what is given back counts as that old at once.

The server confirms before it syncs (appendfsync everysec): a killed server keeps what it confirmed, a power cut may
take the last second of it. Where that matters, set appendfsync=always.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError, RedisError, ResponseError

from onefold._kernel.messages import Confirm, Delivery, Message, received, write
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused

#: The field of an entry that holds the data; no header can have that name.
_DATA: Final = ":data"
#: For how long a read blocks at most: what another reader gave back is looked for in between.
_BLOCK_S: Final = 1.0
#: Below this version a server has no idempotent XADD. Valkey calls itself 7.2.4.
_IDEMPOTENT_SINCE: Final = (8, 6)
#: How many entries are trimmed at once.
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
_TROUBLE: Final = (RedisError, OSError, TimeoutError)


class RedisBroker:
    """`RedisBroker("redis://127.0.0.1:6379/0")`. Keys are `<prefix>:<topic>`. One server, or a primary with replicas:
    a cluster has no read over several streams."""

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "onefold",
        confirm_s: float = 10.0,
        lease_s: float = 30.0,
        redelivery_s: float = 7 * 86_400.0,
        message_bytes_max: int = 1_000_000,
        trim_every_s: float = 60.0,
        allow_volatile: bool = False,
    ) -> None:
        numbers = {"confirm_s": confirm_s, "lease_s": lease_s, "redelivery_s": redelivery_s}
        for field, value in {**numbers, "message_bytes_max": message_bytes_max, "trim_every_s": trim_every_s}.items():
            if value <= 0:
                raise ConfigurationError(f"RedisBroker({field}={value!r}): must be greater than 0")
        if not re.fullmatch(r"[\w.:{}-]{1,100}", prefix, re.ASCII):
            raise ConfigurationError(f"RedisBroker(prefix={prefix!r}): must be letters, digits and . : {{ }} _ -")
        self.keep_every_s = lease_s / 3
        self.redelivery_s = redelivery_s
        self.confirm_s = confirm_s
        self.lease_s = lease_s
        self.trim_every_s = trim_every_s
        self._url = url
        self._prefix = prefix
        self._bytes_max = message_bytes_max
        self._allow_volatile = allow_volatile
        self._idempotent = False
        self._client: Any = None

    async def open(self) -> None:
        """Connect; refuse a server that forgets."""
        await self.close()
        try:
            client: Any = redis.asyncio.Redis.from_url(
                self._url,
                protocol=2,
                retry=Retry(NoBackoff(), 0),
                socket_connect_timeout=self.confirm_s,
                socket_keepalive=True,
            )
        except ValueError as error:
            raise ConfigurationError(f"RedisBroker({_without_password(self._url)!r}): {error}") from error
        try:
            async with asyncio.timeout(self.confirm_s):
                found = await client.info()
            self._check(found)
        except BaseException as error:
            await client.aclose()
            if isinstance(error, _TROUBLE):
                raise self.unavailable(error) from error
            raise
        self._idempotent = is_idempotent(found)
        self._client = client

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        """One round trip for all of them."""
        pipe = self.pipeline()
        answers: list[Confirm] = []
        sent: list[int] = []
        for message in messages:
            fields = write(message, percent=False)
            size = len(message.data) + sum(map(len, fields)) + sum(map(len, fields.values()))
            if size > self._bytes_max:
                text = (
                    f"the message {message.id} has {size} bytes; RedisBroker takes message_bytes_max={self._bytes_max}"
                )
                answers.append(MessageRefused(text))
                continue
            sent.append(len(answers))
            answers.append(None)
            once = ("IDMP", self._prefix, message.id) if self._idempotent else ()
            pairs = [part for pair in fields.items() for part in pair]
            pipe.execute_command("XADD", self.key(message.topic), *once, "*", *pairs, _DATA, message.data)
        if sent:
            for index, answer in zip(sent, await self._sent(pipe, len(sent)), strict=True):
                answers[index] = answer
        return answers

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> RedisSubscription:
        if not topics:
            raise ConfigurationError(f"{consumer!r} cannot subscribe to no topics")
        subscription = RedisSubscription(self, consumer, [self.key(topic) for topic in dict.fromkeys(topics)])
        await subscription.prepare()
        return subscription

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(*_TROUBLE):
                await client.aclose()

    @property
    def client(self) -> Any:
        if self._client is None:
            raise self.unavailable("this broker is closed; call open()")
        return self._client

    def key(self, topic: str) -> str:
        return f"{self._prefix}:{topic}"

    def unavailable(self, reason: BaseException | str) -> BrokerUnavailable:
        why = str(reason) or f"no answer within confirm_s={self.confirm_s}"
        return BrokerUnavailable(f"Redis at {_without_password(self._url)}: {why}")

    async def ask(self, *command: Any, wait_s: float = 0.0) -> Any:
        """One command, bounded, and its errors as ours. A refusal of the command itself is passed on."""
        try:
            async with asyncio.timeout(self.confirm_s + wait_s):
                return await self.client.execute_command(*command)
        except ResponseError:
            raise
        except _TROUBLE as error:
            raise self.unavailable(error) from error

    def pipeline(self) -> Any:
        """For many commands in one round trip."""
        return self.client.pipeline(transaction=False)

    async def execute(self, pipe: Any) -> None:
        """The first command that is refused is trouble for all."""
        try:
            async with asyncio.timeout(self.confirm_s):
                await pipe.execute()
        except _TROUBLE as error:
            raise self.unavailable(error) from error

    async def _sent(self, pipe: Any, count: int) -> list[Confirm]:
        try:
            async with asyncio.timeout(self.confirm_s):
                answers = await pipe.execute(raise_on_error=False)
        except _TROUBLE as error:
            return [self.unavailable(error)] * count
        return [self._confirm(answer) for answer in answers]

    def _confirm(self, answer: object) -> Confirm:
        if not isinstance(answer, BaseException):
            return None
        if _is_final(answer):
            return MessageRefused(f"Redis at {_without_password(self._url)}: {answer}")
        return self.unavailable(answer)

    def _check(self, found: Mapping[str, Any]) -> None:
        """INFO says what CONFIG says, and is allowed where CONFIG is not."""
        policy = found.get("maxmemory_policy", "noeviction")
        where = f"Redis at {_without_password(self._url)}"
        if found.get("cluster_enabled"):
            raise ConfigurationError(f"{where} has cluster-enabled=yes: streams of several topics cannot be read there")
        if not found.get("aof_enabled") and not self._allow_volatile:
            raise ConfigurationError(
                f"{where} has appendonly=no, so a restart forgets what it confirmed: set appendonly=yes, "
                "or accept the loss with allow_volatile=True"
            )
        # The volatile- policies evict only keys with a time to live, which our streams have not.
        if found.get("maxmemory") and str(policy).startswith("allkeys-"):
            raise ConfigurationError(
                f"{where} has maxmemory={found['maxmemory']} with maxmemory-policy={policy}, which may evict a stream: "
                "set maxmemory-policy=noeviction"
            )


class RedisSubscription:
    """A reader of its own name in the consumer's group."""

    def __init__(self, broker: RedisBroker, group: str, keys: list[str]) -> None:
        self._broker = broker
        self._group = group
        self._keys = keys
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
                if _is_final(error):
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
        pipe = self._broker.pipeline()
        for key, ids in _by_key(receipts).items():
            pipe.xack(key, self._group, *ids)
        await self._broker.execute(pipe)
        self._unsettled.difference_update(receipts)
        if time.monotonic() >= self._trim_at:
            self._trim_at = time.monotonic() + self._broker.trim_every_s
            with suppress(BrokerUnavailable, ResponseError):
                for key in self._keys:
                    await self._trim(key)

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        receipts = [delivery.receipt for delivery in deliveries]
        await self._set_idle(receipts, self._broker.lease_s)
        self._unsettled.difference_update(receipts)

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
        """What nobody of the group was given yet. COUNT holds per stream, so there may be a few more than asked for."""
        count = -(-(limit - len(self._buffer)) // len(self._keys))
        block = ("BLOCK", max(1, int(block_s * 1000))) if block_s else ()
        command = ("XREADGROUP", "GROUP", self._group, self._reader, "COUNT", count, *block)
        answer = await self._broker.ask(*command, "STREAMS", *self._keys, *(">" for _ in self._keys), wait_s=block_s)
        for key, entries in answer or ():
            self._arrive(key.decode(), entries, redelivered=False)
        return bool(answer)

    async def _take_over(self, limit: int) -> None:
        """What somebody of the group was given, and did not settle or keep for a lease's time."""
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
            if fields:  # an entry that somebody deleted has none
                self._buffer.append((now, _delivery(_Receipt(key, entry), fields, redelivered)))

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
            await self._broker.ask("XTRIM", key, "MINID", "~", f"{milliseconds}-{sequence}", "LIMIT", _TRIM)
        await self._broker.ask("EVAL", _FORGET, 1, key, self._group, _FORGET_MS)


@dataclass(frozen=True, slots=True)
class _Receipt:
    key: str
    entry: bytes


def is_idempotent(info: Mapping[str, Any]) -> bool:
    """Whether this server discards what it was given before under the same id."""
    numbers = re.findall(r"\d+", str(info.get("redis_version", "0.0")))
    return info.get("server_name", "redis") == "redis" and tuple(map(int, numbers[:2])) >= _IDEMPOTENT_SINCE


def _is_final(error: BaseException) -> bool:
    """Whether the server would say the same again, whenever it is asked; all else is trouble that passes."""
    return isinstance(error, NoPermissionError) or str(error).startswith("WRONGTYPE")


def _by_key(receipts: Sequence[_Receipt]) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for receipt in receipts:
        found.setdefault(receipt.key, []).append(receipt.entry)
    return found


def _delivery(receipt: _Receipt, fields: Mapping[bytes, bytes], redelivered: bool) -> Delivery:
    texts = {_text(name): value for name, value in fields.items()}
    data = texts.pop(_DATA, None)
    if data is None:  # not one of ours: its one value, or all of them as JSON
        values = list(texts.values())
        data = (
            values[0] if len(values) == 1 else json.dumps({name: _text(text) for name, text in texts.items()}).encode()
        )
    headers = {name: _text(value) for name, value in texts.items()}
    return received(headers, data, redelivered=redelivered, receipt=receipt, percent=False)


def _text(value: bytes) -> str:
    return value.decode(errors="backslashreplace")


def _number(entry: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry.decode().partition("-")
    return int(milliseconds), int(sequence)


def _without_password(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)
