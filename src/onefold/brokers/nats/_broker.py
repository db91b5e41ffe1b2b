"""Publishing to JetStream: everything of a call is in flight at once, and every confirm is awaited.

Invariant: each message of a call gets one answer, and only a confirm of the stream is a yes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from onefold._kernel.extras import missing_extra

try:
    import nats.errors
except ModuleNotFoundError as error:
    raise missing_extra(error, "nats") from None
import nats.js.errors
from nats.aio.msg import Msg
from nats.js.api import StreamConfig

from onefold._kernel.messages import Confirm, Message
from onefold._kernel.ports import SubscriptionSeen
from onefold._kernel.redaction import redact
from onefold._kernel.topics import find_fault, is_pattern
from onefold.brokers._addresses import check_address
from onefold.brokers.nats._connection import OPEN, TROUBLE, NatsConnection, PublishCall
from onefold.brokers.nats._durables import remove, subscriptions, unsubscribe
from onefold.brokers.nats._publish import SUBJECT, EncodedMessage, encode
from onefold.brokers.nats._stream import check, covers, is_ours, stream_config
from onefold.brokers.nats._subscription import NatsSubscription
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused

#: The server holds so many unanswered messages of a stream and refuses more.
_IN_FLIGHT_MAX: Final = 4_000
#: After so many messages, or bytes, they are written out and the loop gets its turn: to read confirms.
_TURN: Final = 100
_TURN_BYTES: Final = 262_144
_TOO_LARGE: Final = 10054
_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_UNROUTED: Final = object()

_log = logging.getLogger("onefold.broker")


class NatsBroker:
    """`NatsBroker("nats://127.0.0.1:4222")`. `options` go to nats.connect as they are: tls, user_credentials and the
    like. Subjects are `<prefix>.<topic>`; the prefix is the stream's name unless it is given. What every consumer has
    acknowledged is purged from a stream that onefold made, and from no other unless `trim=True`; `trim=False` keeps
    all."""

    #: In spans.
    system = "nats"

    matches_patterns = True

    def __init__(
        self,
        servers: str | Sequence[str],
        *,
        stream: str = "onefold",
        prefix: str | None = None,
        replicas: int = 1,
        confirm_s: float = 10.0,
        ack_wait_s: float = 30.0,
        duplicate_window_s: float = 600.0,
        redelivery_s: float = 7 * 86_400.0,
        trim: bool | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        """`servers` is one address or several of one cluster. `stream` is made where it is not there, with so many
        `replicas` and a `duplicate_window_s` within which a message that comes twice is discarded. An event counts as
        published when it is confirmed within `confirm_s`. A message that was not acknowledged is given out again after
        `ack_wait_s`, which is renewed while it is being handled. `redelivery_s` is for how long the stream may give
        a message out again: ledgers must remember for longer."""
        for field, value in (("confirm_s", confirm_s), ("ack_wait_s", ack_wait_s), ("redelivery_s", redelivery_s)):
            if value <= 0:
                raise ConfigurationError(f"NatsBroker({field}={value!r}): must be greater than 0")
        if duplicate_window_s < 0.1:
            raise ConfigurationError(f"NatsBroker(duplicate_window_s={duplicate_window_s!r}): must be at least 0.1")
        if replicas not in (1, 3, 5):
            raise ConfigurationError(f"NatsBroker(replicas={replicas!r}): must be 1, 3 or 5")
        for field, value_text, shape in (
            ("stream", stream, r"[\w-]+"),
            ("prefix", prefix or stream, r"[\w-]+(\.[\w-]+)*"),
        ):
            if not re.fullmatch(shape, value_text, re.ASCII):
                raise ConfigurationError(f"NatsBroker({field}={value_text!r}): must look like {shape}")
        self.keep_every_s = ack_wait_s / 3
        self.redelivery_s = redelivery_s
        self.stream = stream
        self.prefix = prefix or stream
        self.confirm_s = confirm_s
        self.ack_wait_s = ack_wait_s
        self.duplicate_window_s = duplicate_window_s
        self._trim = trim
        self._wanted = stream_config(stream, self.prefix, replicas=replicas, duplicate_window_s=duplicate_window_s)
        self._servers = [servers] if isinstance(servers, str) else list(servers)
        for server in self._servers or [""]:
            address = server if "://" in server else f"nats://{server}"
            check_address("NatsBroker", address, _SCHEMES)
            if urlsplit(address).hostname is None:
                raise ConfigurationError(f"NatsBroker({redact(address)!r}) names no server: write nats://host:4222")
        self._options = dict(options or {})
        self._connecting = asyncio.Lock()
        self._connection: NatsConnection | None = None
        self._closed = True

    async def open(self) -> None:
        """Connect; make the stream, or check the one that is there."""
        self._closed = False
        try:
            config = await self._find_or_make(await self.connect())
            check(config, self.prefix)
        except BaseException as error:
            await self.close()
            if isinstance(error, BrokerUnavailable) and "authorization violation" in str(error).lower():
                raise ConfigurationError(
                    f"NATS at {', '.join(map(redact, self._servers))} refused the login: {error.__cause__}; see the "
                    "user and password of its address, or the options"
                ) from error
            raise
        if self._trim is None and not is_ours(config):
            _log.warning(
                "the NATS stream %r was not made by this release of onefold: messages that every consumer has "
                "acknowledged stay in it; NatsBroker(trim=True) purges them, trim=False keeps them without a warning",
                self.stream,
            )

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        connection = await self.connect() if messages else None
        answers: list[Confirm] = []
        for start in range(0, len(messages), _IN_FLIGHT_MAX):
            assert connection is not None
            answers += await self._send(connection, messages[start : start + _IN_FLIGHT_MAX])
        return answers

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> NatsSubscription:
        subjects = [self.subject(topic) for topic in dict.fromkeys(topics)]
        wrong = [topic for topic in topics if not _is_subject(topic)]
        if wrong or not subjects:
            raise ConfigurationError(f"{consumer!r} cannot subscribe to {wrong or topics}: NATS has no such subjects")
        subscription = NatsSubscription(self, consumer, subjects)
        await subscription.prepare()
        return subscription

    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        await unsubscribe(self, consumer, {self.subject(topic) for topic in topics})

    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        return await subscriptions(self)

    async def remove(self, consumer: str) -> int | None:
        return await remove(self, consumer)

    async def close(self) -> None:
        self._closed = True
        async with self._connecting:
            connection, self._connection = self._connection, None
            if connection is not None:
                await connection.close()

    def subject(self, topic: str) -> str:
        """Where events of a topic are published."""
        return f"{self.prefix}.{topic}"

    def trims(self, config: StreamConfig) -> bool:
        """Whether what is acknowledged may be purged from this stream, which an operator may have made anew."""
        return is_ours(config) if self._trim is None else self._trim

    def unavailable(self, reason: object) -> BrokerUnavailable:
        """The error that says so, without the password in the address."""
        return BrokerUnavailable(f"NATS at {', '.join(map(redact, self._servers))}: {reason or type(reason).__name__}")

    async def connect(self) -> NatsConnection:
        """The connection, a new one if the last one is gone."""
        async with self._connecting:
            if self._closed:
                raise self.unavailable("this broker is closed; call open()")
            if self._connection is None or not self._connection.alive:
                if self._connection is not None:
                    await self._connection.close()
                self._connection = None
                connection = NatsConnection()
                try:
                    async with asyncio.timeout(self.confirm_s):
                        await connection.connect(self._servers, self._options)
                except BaseException as error:
                    await connection.close()
                    if isinstance(error, TROUBLE):
                        raise self.unavailable(error) from error
                    raise
                self._connection = connection
            return self._connection

    async def _find_or_make(self, connection: NatsConnection) -> StreamConfig:
        try:
            async with asyncio.timeout(self.confirm_s):
                try:
                    return (await connection.jetstream.stream_info(self.stream)).config
                except nats.js.errors.NotFoundError:
                    return (await connection.jetstream.add_stream(self._wanted)).config
        except nats.js.errors.APIError as error:
            if error.code in (400, 500):
                raise ConfigurationError(f"the NATS stream {self.stream!r} cannot be made: {error}") from error
            raise self.unavailable(error) from error
        except TROUBLE as error:
            raise self.unavailable(error) from error

    async def _send(self, connection: NatsConnection, messages: Sequence[Message]) -> list[Confirm]:
        call = PublishCall(len(messages))
        inbox = connection.begin(call)
        reason: object = "the connection was lost"
        try:
            async with asyncio.timeout(self.confirm_s):
                await self._write(connection, call, inbox, messages)
                await call.wait(connection)
        except TROUBLE as error:
            reason = str(error) or f"no confirm within confirm_s={self.confirm_s}"
        finally:
            connection.end(inbox)
        answers = [self.unavailable(reason) if answer is OPEN else self._read(answer) for answer in call.answers]
        if any(answer is _UNROUTED for answer in answers):
            unrouted = await self._find_why_unrouted(connection)
            answers = [unrouted if answer is _UNROUTED else answer for answer in answers]
        return answers

    async def _write(
        self, connection: NatsConnection, call: PublishCall, inbox: str, messages: Sequence[Message]
    ) -> None:
        batch: list[EncodedMessage] = []
        size = 0
        for index, message in enumerate(messages):
            try:
                each = encode(message, index, self.prefix, f"{inbox}.{index}", connection.client.max_payload)
            except MessageRefused as refused:
                call.settle(index, refused)
                continue
            batch.append(each)
            size += len(each.head) + len(each.data)
            if len(batch) >= _TURN or size >= _TURN_BYTES:
                call.settle_all(await connection.send(batch))
                batch, size = [], 0
        call.settle_all(await connection.send(batch))

    def _read(self, answer: Any) -> Any:
        """The result of one message: None, an error, or _UNROUTED."""
        if not isinstance(answer, Msg):
            return answer
        if answer.headers and answer.headers.get("Status") == "503":
            return _UNROUTED
        if b'"error"' not in answer.data:
            return None
        error = json.loads(answer.data).get("error", {})
        text = f"the stream {self.stream!r} answered {error.get('err_code')}: {error.get('description')}"
        return MessageRefused(text) if error.get("err_code") == _TOO_LARGE else self.unavailable(text)

    async def _find_why_unrouted(self, connection: NatsConnection) -> MessageRefused | BrokerUnavailable:
        """No stream has the subject: ours is not there, or it has no leader at this moment."""
        try:
            async with asyncio.timeout(self.confirm_s):
                config = (await connection.jetstream.stream_info(self.stream)).config
        except nats.js.errors.NotFoundError:
            return MessageRefused(
                f"no NATS stream takes {self.prefix}.>: the stream {self.stream!r} is gone; open() makes it again"
            )
        except TROUBLE as error:
            return self.unavailable(error)
        if covers(config.subjects, self.prefix):
            return self.unavailable(f"the stream {self.stream!r} has no leader")
        return MessageRefused(f"the NATS stream {self.stream!r} takes {config.subjects}, not {self.prefix}.>")


def _is_subject(topic: str) -> bool:
    """Whether it can be subscribed to."""
    return find_fault(topic) is None if is_pattern(topic) else SUBJECT.fullmatch(topic) is not None
