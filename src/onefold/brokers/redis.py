"""Redis and Valkey Streams: a stream per topic, a consumer group per consumer name.

Invariant: an entry leaves its stream only after every group has acknowledged it. What a reader neither acknowledged nor
kept for `lease_s`, the next reader of its group takes over; what is given back counts as that old at once.

The server confirms before it syncs (appendfsync everysec): a killed server keeps what it confirmed, a power cut may
take the last second of it. Where that matters, set appendfsync=always.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from onefold._kernel.extras import missing_extra

try:
    import redis.asyncio
except ModuleNotFoundError as error:
    raise missing_extra(error, "redis") from None
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError

from onefold._kernel.messages import Confirm, Message, name_apart, write
from onefold._kernel.ports import SubscriptionSeen
from onefold._kernel.redaction import redact
from onefold._kernel.topics import refuse_patterns
from onefold.brokers._addresses import check_address
from onefold.brokers._redis_group import DATA, RedisSubscription, is_final
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused

__all__ = ["RedisBroker"]

#: Below this version a server has no idempotent XADD. Valkey calls itself 7.2.4.
_IDEMPOTENT_SINCE: Final = (8, 6)
#: What Redis and Valkey answer for a stream that is not there.
_GONE: Final = ("no such key", "requires the key to exist")
_TROUBLE: Final = (RedisError, OSError, TimeoutError)


class RedisBroker:
    """`RedisBroker("redis://127.0.0.1:6379/0")`. Keys are `<prefix>:<topic>`. One server, or a primary with replicas:
    a cluster has no read over several streams."""

    #: In spans.
    system = "redis"

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
        """`url` is redis://, rediss:// or unix://. An event counts as published when XADD is answered within
        `confirm_s`; one of more than `message_bytes_max` bytes is refused. A message whose process was silent for
        `lease_s` is given to another. `redelivery_s` is for how long that may happen: ledgers must remember for longer.
        What all groups have acknowledged is removed every `trim_every_s`. `allow_volatile` takes a server
        without an append-only file, whose restart loses what it has confirmed."""
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
        check_address("RedisBroker", url, ("redis", "rediss", "unix"))
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
        except ValueError:
            # Neither quoted nor chained: the client repeats what it could not read, which may be a password.
            raise ConfigurationError(
                f"RedisBroker({redact(self._url)!r}): the address cannot be read; it is written "
                "redis://user:password@host:port/0, with special characters of the password percent-encoded"
            ) from None
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
            once = ("IDMP", self._prefix, name_apart(message.id, message.source)) if self._idempotent else ()
            pairs = [part for pair in fields.items() for part in pair]
            pipe.execute_command("XADD", self.key(message.topic), *once, "*", *pairs, DATA, message.data)
        if sent:
            for index, answer in zip(sent, await self._send(pipe, len(sent)), strict=True):
                answers[index] = answer
        return answers

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> RedisSubscription:
        if not topics:
            raise ConfigurationError(f"{consumer!r} cannot subscribe to no topics")
        refuse_patterns("Redis", consumer, topics)
        subscription = RedisSubscription(self, consumer, {self.key(topic): topic for topic in topics})
        await subscription.prepare()
        return subscription

    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        """The group of each topic ends, with what waits in it."""
        for topic in topics:
            await self._destroy(self.key(topic), consumer)

    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        topics: dict[str, list[str]] = {}
        waiting: dict[str, int | None] = {}
        for key in await self._streams():
            for group in await self._administer("XINFO GROUPS", key) or ():
                name, count = group["name"].decode(), _waiting(group)
                topics.setdefault(name, []).append(key.removeprefix(f"{self._prefix}:"))
                before = waiting.get(name, 0)
                waiting[name] = None if before is None or count is None else before + count
        return [
            SubscriptionSeen(consumer=name, topics=tuple(sorted(found)), waiting=waiting[name])
            for name, found in sorted(topics.items())
        ]

    async def remove(self, consumer: str) -> int | None:
        dropped: int | None = None
        for key in await self._streams():
            for group in await self._administer("XINFO GROUPS", key) or ():
                if group["name"].decode() == consumer and await self._destroy(key, consumer):
                    dropped = (dropped or 0) + (_waiting(group) or 0)
        return dropped

    async def _streams(self) -> list[str]:
        """The keys of all topics. The prefix has none of the characters that a pattern gives a meaning."""
        try:
            async with asyncio.timeout(self.confirm_s):
                return [key.decode() async for key in self.client.scan_iter(f"{self._prefix}:*", 1000, "STREAM")]
        except _TROUBLE as error:
            raise self.unavailable(error) from error

    async def _destroy(self, key: str, group: str) -> bool:
        return bool(await self._administer("XGROUP", "DESTROY", key, group))

    async def _administer(self, *command: Any) -> Any:
        """A command on a stream that may be gone: then None. A right that is missing, or a server that only reads
        after a failover, is not taken for that."""
        try:
            return await self.ask(*command)
        except ResponseError as error:
            if any(gone in str(error) for gone in _GONE):
                return None
            raise self.unavailable(error) from error

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(*_TROUBLE):
                await client.aclose()

    @property
    def client(self) -> Any:
        """The client of redis-py. Raises BrokerUnavailable while it is not open."""
        if self._client is None:
            raise self.unavailable("this broker is closed; call open()")
        return self._client

    def key(self, topic: str) -> str:
        """The key of a topic's stream."""
        return f"{self._prefix}:{topic}"

    def unavailable(self, reason: BaseException | str) -> BrokerUnavailable:
        """The error that says so, without the password in the address."""
        why = str(reason) or f"no answer within confirm_s={self.confirm_s}"
        return BrokerUnavailable(f"Redis at {redact(self._url)}: {why}")

    async def ask(self, *command: Any, wait_s: float = 0.0) -> Any:
        """One command, bounded by `confirm_s` and what it waits for itself (`wait_s`), and its errors as ours. A
        refusal of the command itself is passed on."""
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

    async def _send(self, pipe: Any, count: int) -> list[Confirm]:
        try:
            async with asyncio.timeout(self.confirm_s):
                answers = await pipe.execute(raise_on_error=False)
        except _TROUBLE as error:
            return [self.unavailable(error)] * count
        return [self._confirm(answer) for answer in answers]

    def _confirm(self, answer: object) -> Confirm:
        if not isinstance(answer, BaseException):
            return None
        if is_final(answer):
            return MessageRefused(f"Redis at {redact(self._url)}: {answer}")
        return self.unavailable(answer)

    def _check(self, found: Mapping[str, Any]) -> None:
        """INFO says what CONFIG says, and is allowed where CONFIG is not."""
        policy = found.get("maxmemory_policy", "noeviction")
        where = f"Redis at {redact(self._url)}"
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


def is_idempotent(info: Mapping[str, Any]) -> bool:
    """Whether this server discards what it was given before under the same id."""
    numbers = re.findall(r"\d+", str(info.get("redis_version", "0.0")))
    return info.get("server_name", "redis") == "redis" and tuple(map(int, numbers[:2])) >= _IDEMPOTENT_SINCE


def _waiting(group: Mapping[str, Any]) -> int | None:
    """The number of entries that a group has not acknowledged or not received yet, if the server knows it."""
    return None if group.get("lag") is None else group["lag"] + group["pending"]
