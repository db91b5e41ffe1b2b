"""A consumer's end: a durable pull consumer, explicit acknowledgements, and the trimming of what all are done with."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import nats.js.errors
from nats.aio.msg import Msg

from onefold._kernel.messages import Delivery, Origin, read_delivery
from onefold._kernel.topics import overlap, widest
from onefold.brokers.nats._connection import LOOK_S, TROUBLE, NatsConnection
from onefold.brokers.nats._durables import Source, durable_name, filters_of, widen
from onefold.errors import BrokerUnavailable, ConfigurationError

_ACK: Final = b"+ACK"
_GIVE_BACK: Final = b"-NAK"
_KEEP: Final = b"+WPI"
#: The server's error code for an existing consumer whose settings cannot be changed to ours.
_NOT_MADE: Final = 10012


class NatsSubscription:
    """A durable pull consumer. No request for messages outlives the `receive` that made it, unless that is cancelled:
    what comes then is kept for the next one."""

    def __init__(self, broker: Source, consumer: str, subjects: list[str]) -> None:
        self._broker = broker
        self._subjects = subjects
        self._consumer = consumer
        self._name = durable_name(consumer)
        self._connection: NatsConnection | None = None
        self._inbox: Any = None
        self._replies = ""
        self._came = asyncio.Event()
        self._buffer: deque[tuple[float, Msg]] = deque()
        self._requests: dict[str, Msg | None] = {}
        self._unsettled: set[str] = set()
        self._numbers = itertools.count()
        self._seen = 0
        self._floors: tuple[float, dict[str, int]] | None = None

    async def prepare(self) -> NatsConnection:
        """The connection, with our inbox on it, and the consumer there."""
        connection = await self._broker.connect()
        if self._connection is not connection:
            self._buffer.clear()  # they come again, and by then to us or to another
            try:
                async with asyncio.timeout(self._broker.confirm_s):
                    await widen(self._broker, connection, self._consumer, self._subjects)
                    self._replies = connection.client.new_inbox()
                    self._inbox = await connection.client.subscribe(f"{self._replies}.*", cb=self._arrive)
            except nats.js.errors.APIError as error:
                if error.code == 400 or error.err_code == _NOT_MADE:
                    raise ConfigurationError(
                        f"the NATS consumer {self._name!r} of {self._broker.stream!r} has other settings: {error}; "
                        "delete it, or subscribe under another name"
                    ) from error
                raise self._broker.unavailable(error) from error
            except TROUBLE as error:
                raise self._broker.unavailable(error) from error
            self._connection = connection
        return connection

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        deadline = time.monotonic() + wait_s
        connection = await self.prepare()
        fresh_since = time.monotonic() - self._broker.ack_wait_s / 2
        while self._buffer and self._buffer[0][0] < fresh_since:
            self._buffer.popleft()  # its lease is running out: it comes again
        if not self._buffer:
            await self._pull(connection, limit, 0.0)
        left = deadline - time.monotonic()
        if not self._buffer and left > 0:
            await self._pull(connection, 1, left)
            if self._buffer and limit > 1:
                await self._pull(connection, limit - 1, 0.0)
        found = [self._buffer.popleft()[1] for _ in range(min(limit, len(self._buffer)))]
        self._unsettled.update(msg.reply for msg in found)
        return [self._delivery(msg) for msg in found]

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        await self._settle(deliveries, _ACK)
        await self._trim()

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        await self._settle(deliveries, _GIVE_BACK)

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        await self._send_verdict([delivery.receipt for delivery in deliveries], _KEEP)

    async def close(self) -> None:
        if self._connection is None or not self._connection.alive:
            return
        await self._detach()
        with suppress(BrokerUnavailable, *TROUBLE):
            await self._send_verdict([*self._unsettled, *(msg.reply for _, msg in self._buffer)], _GIVE_BACK)
        self._unsettled.clear()
        self._buffer.clear()

    async def _detach(self) -> None:
        """Leave the connection; the next `receive` prepares anew."""
        self._connection = None
        with suppress(*TROUBLE):
            await self._inbox.unsubscribe()

    async def _pull(self, connection: NatsConnection, batch: int, wait_s: float) -> None:
        """Request so many messages, and wait until they are here or the server has no more."""
        reply = f"{self._replies}.{next(self._numbers)}"
        request: dict[str, object] = (
            {"batch": batch, "expires": int(wait_s * 1e9)} if wait_s else {"batch": batch, "no_wait": True}
        )
        stream, wanted = self._broker.stream, len(self._buffer) + batch
        deadline = time.monotonic() + wait_s + self._broker.confirm_s
        self._requests[reply] = None
        try:
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{self._name}"
            await connection.client.publish(subject, json.dumps(request).encode(), reply=reply)
            while len(self._buffer) < wanted and self._requests[reply] is None:
                if not connection.alive or time.monotonic() > deadline:
                    raise self._broker.unavailable("the connection was lost" if not connection.alive else "no answer")
                self._came.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_S):
                        await self._came.wait()
        except TROUBLE as error:
            raise self._broker.unavailable(error) from error
        finally:
            status = self._requests.pop(reply, None)
        headers = (status.headers if status else None) or {}
        if headers.get("Status", "408") not in ("404", "408"):
            await self._detach()  # the consumer may be gone: make it again
            raise self._broker.unavailable(f"the consumer {self._name!r} of {stream!r} answered {dict(headers)}")

    async def _arrive(self, msg: Msg) -> None:
        if msg.reply:
            self._buffer.append((time.monotonic(), msg))
        elif msg.subject in self._requests:  # one that was cancelled is not waited for
            self._requests[msg.subject] = msg
        self._came.set()

    def _delivery(self, msg: Msg) -> Delivery:
        headers = {name.lower(): str(value) for name, value in (msg.headers or {}).items()}
        # $JS.ACK.<stream>.<consumer>.<times delivered>.<stream's sequence>...; some servers put two parts before these.
        parts = msg.reply.split(".")
        times, sequence = map(int, parts[4:6] if len(parts) == 9 else parts[6:8])
        # A server that was killed may have forgotten a delivery, but what is new comes in the stream's order.
        redelivered = times > 1 or sequence <= self._seen
        self._seen = max(self._seen, sequence)
        origin = Origin(
            broker="nats",
            subject=msg.subject,
            topic=msg.subject.removeprefix(f"{self._broker.prefix}."),
            id=headers.get("nats-msg-id") or f"{self._broker.stream}/{sequence}",
        )
        own = {name: value for name, value in headers.items() if not name.startswith("nats-")}
        delivery = read_delivery(own, msg.data, redelivered=redelivered, receipt=msg.reply, origin=origin)
        # The server's own headers are no part of the message, but a failed message shows them.
        return delivery if delivery.message is not None else replace(delivery, headers=headers)

    async def _settle(self, deliveries: Sequence[Delivery], verdict: bytes) -> None:
        receipts = [delivery.receipt for delivery in deliveries]
        self._unsettled.difference_update(receipts)  # what does not arrive comes again, and is no longer ours
        await self._send_verdict(receipts, verdict)

    async def _send_verdict(self, receipts: Sequence[str], verdict: bytes) -> None:
        """Send a verdict on deliveries, and wait until the server has it. Should it forget, the message comes again."""
        if not receipts:
            return
        connection = await self._broker.connect()
        try:
            async with asyncio.timeout(self._broker.confirm_s):
                for receipt in receipts:
                    await connection.client.publish(receipt, verdict)
                await connection.client.flush()
        except TROUBLE as error:
            raise self._broker.unavailable(error) from error

    async def _trim(self) -> None:
        """Purge from our subjects what every consumer of them had acknowledged a duplicate window ago: what is purged
        younger than that would no longer be known as a duplicate after the server's restart. The floors are read again
        right before: a consumer that has subscribed since waits for all that is there."""
        now = time.monotonic()
        if self._floors is not None and now < self._floors[0] + self._broker.duplicate_window_s:
            return
        connection = await self._broker.connect()
        due, self._floors = self._floors, (now, {})
        with suppress(*TROUBLE):
            async with asyncio.timeout(self._broker.confirm_s):
                floors = await self._fetch_floors(connection)
                for subject, floor in due[1].items() if due else ():
                    if (acknowledged := min(floor, floors.get(subject, 0))) > 0:
                        await connection.jetstream.purge_stream(
                            self._broker.stream, seq=acknowledged + 1, subject=subject
                        )
                self._floors = (now, floors)

    async def _fetch_floors(self, connection: NatsConnection) -> dict[str, int]:
        """Per subject of ours, the stream's sequence up to which every consumer is done with it. None where the stream
        is not to be trimmed, or where a consumer came or went while they were listed: one may have been left out."""
        stream = await connection.jetstream.stream_info(self._broker.stream)
        if not self._broker.trims(stream.config):
            return {}
        floors: dict[str, int] = {}
        offset = 0
        while some := await connection.jetstream.consumers_info(self._broker.stream, offset):
            offset += len(some)
            for info in some:
                filters = filters_of(info.config)
                floor = info.ack_floor.stream_seq if info.ack_floor else 0
                for subject in widest(self._subjects):
                    if any(overlap(subject, each) for each in filters):
                        floors[subject] = min(floors.get(subject, floor), floor)
        return floors if offset == stream.state.consumer_count else {}
