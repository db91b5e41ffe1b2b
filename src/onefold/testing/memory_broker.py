"""A broker in memory, for unit tests of consumers: what is published is handled right there, and what fails is raised.

    broker = AsyncMemoryBroker(once)
    await broker.publish("order.placed", {"order": 42})
    assert [event.topic for event in broker.published] == ["order.shipped"]

No server, no thread, no waiting: a call returns when every handler has run, and every handler of what those published.
The rest is as in production, over the test's own database (a SQLite file will do): the transaction, the ledger, the
outbox, order, dead letters. Only time does not pass: nothing is tried again, and no handler is cut off.
"""

from __future__ import annotations

import asyncio
import inspect
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, ClassVar, Final
from uuid import uuid4
from weakref import WeakKeyDictionary

from onefold._app import AsyncOnefold, Onefold
from onefold._inbox.handler_call import Invocation
from onefold._inbox.handling import Inbox
from onefold._kernel.clock import wall_ms
from onefold._kernel.messages import Confirm, Delivery, Message, write
from onefold._kernel.runners import run, run_async
from onefold._kernel.telemetry.consumer_events import DeadLettered, Failed, InboxEvent
from onefold._outbox.event_checks import check_headers, check_key, check_source, check_topic, serialise
from onefold.errors import ConfigurationError, MessageInvalid, OnefoldError
from onefold.testing._collecting import CollectingTaskExecutor, CollectingThreadExecutor, relay_all
from onefold.testing._given import require_once

__all__ = ["AsyncMemoryBroker", "MemoryBroker", "NotHandled"]

#: Handlers that publish to each other could go on for ever.
MESSAGES_MAX: Final = 10_000

_BYTES_MAX: Final = 64 * 1024 * 1024


class NotHandled(OnefoldError):
    """A message could not be handled, and it was not its handler that raised."""


class _VersionCounts:
    """The versions of keys that tests have sent to one application. In its own epoch: another application over the same
    database, of an earlier run, has counted for itself."""

    def __init__(self) -> None:
        self.epoch = wall_ms()
        self._versions: dict[tuple[str, str, str], int] = {}

    def next_version(self, source: str, topic: str, key: str) -> int:
        version = self._versions[source, topic, key] = self._versions.get((source, topic, key), 0) + 1
        return version


#: The brokers of several tests, one after the other, go on counting: consumers that keep an order know what was before.
_VERSION_COUNTS: Final[WeakKeyDictionary[Onefold | AsyncOnefold, _VersionCounts]] = WeakKeyDictionary()


class _SharedBroker:
    """What both colours share."""

    #: In spans.
    system = "memory"

    __test__ = False

    _app_type: ClassVar[type[Onefold | AsyncOnefold]]

    def __init__(self, once: Onefold | AsyncOnefold, *, source: str = "tests", raises: bool = True) -> None:
        """`once` is the application whose consumers it calls. `source` is that of what the test publishes. `raises`:
        what a handler raises is raised by the call; else it is only among the `events`, as in production."""
        require_once(once, self._app_type, instead="; MemoryBroker is for Onefold, AsyncMemoryBroker for AsyncOnefold")
        self._once: Any = once
        self._source = check_source(source)
        self._raises = raises
        steps = once._message_steps()
        self._inboxes = {
            consumer.name: Inbox(
                consumer,
                once._database.dialect,
                draw=random.random,
                perform=self._perform,
                steps=steps,
                tracer=once._outbox.tracer,
            )
            for consumer in once.consumers
        }
        if not self._inboxes:
            raise ConfigurationError(f"{once!r} has no consumer: import the module whose handlers are to be tested")
        self._versions = _VERSION_COUNTS.setdefault(once, _VersionCounts())
        self._waiting: list[Message] = []
        self._errors: list[Exception] = []
        #: The events that the application has published, in their order: its handlers, and what the test ran.
        self.published: list[Message] = []
        #: What became of each message, for each of its consumers: `onefold.telemetry`.
        self.events: list[InboxEvent] = []

    def _message(
        self, topic: str, data: object, key: str | int | None, headers: Mapping[str, str] | None, message_id: str | None
    ) -> Message:
        given: object = message_id
        if given is not None and not (isinstance(given, str) and given):
            raise MessageInvalid(f"message_id={message_id!r} of a message on {topic!r} must be a text, or None")
        named = check_key(topic, key)
        version = None if named is None else self._versions.next_version(self._source, topic, named)
        return Message(
            id=message_id or uuid4().hex,
            source=self._source,
            topic=check_topic(topic),
            data=serialise(topic, data, bytes_max=_BYTES_MAX),
            key=named,
            epoch=None if version is None else self._versions.epoch,
            version=version,
            headers={} if headers is None else check_headers(topic, headers),
        )

    def _collect(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        """As a broker takes what a relay publishes."""
        self.published += messages
        self._waiting += messages
        return [None] * len(messages)

    async def _settle(self, executor: Any, first: Sequence[Message]) -> list[InboxEvent]:
        """Handle these, and what comes of them, until nothing is left."""
        before = len(self.events)
        self._errors.clear()
        self._waiting += first
        await self._relay()
        for _ in range(MESSAGES_MAX):
            if not self._waiting:
                break
            await self._handle(self._waiting.pop(0), executor)
            if not self._waiting:
                await self._relay()
        else:
            raise NotHandled(f"handlers have published to each other {MESSAGES_MAX} times, and still go on")
        if self._raises and self._errors:
            raise self._errors[0] if len(self._errors) == 1 else ExceptionGroup("handlers failed", self._errors)
        return self.events[before:]

    async def _relay(self) -> None:
        await relay_all(self._once._database.dialect)

    async def _handle(self, message: Message, executor: Any) -> None:
        for inbox in self._inboxes.values():
            if not inbox.consumer.wants(message.topic):
                continue
            delivery = inbox.read(Delivery(data=message.data, headers=write(message), message=message))
            errors = len(self._errors)
            event = await inbox.handle(delivery, self._once._new_transaction(executor))
            self.events.append(event)
            if isinstance(event, Failed | DeadLettered) and len(self._errors) == errors:
                self._errors.append(NotHandled(f"consumer {event.consumer!r}, {event.topic!r}: {event.reason}"))

    def _perform(self, _: Invocation, work: Callable[[], Any]) -> Any:
        try:
            answer = work()
        except Exception as error:
            self._errors.append(error)
            raise
        return self._awaited(self._watch(answer)) if inspect.iscoroutine(answer) else answer

    async def _watch(self, answer: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await answer
        except Exception as error:
            self._errors.append(error)
            raise

    def _awaited(self, answer: Coroutine[Any, Any, Any]) -> Any:
        raise NotImplementedError


class MemoryBroker(_SharedBroker):
    """For `Onefold`. Its handlers run on the thread of the test."""

    _app_type = Onefold

    def publish(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> list[InboxEvent]:
        """A message from elsewhere, with this `key` and these `headers`: have it handled, by all its consumers, and
        then what waits in the outbox, as `deliver()` does. With a `message_id` it can come twice."""
        return self._run([self._message(topic, data, key, headers, message_id)])

    def deliver(self) -> list[InboxEvent]:
        """Have handled what the application has published and is due."""
        return self._run([])

    def _run(self, first: Sequence[Message]) -> list[InboxEvent]:
        executor = CollectingThreadExecutor(self._once._database, self._collect)
        return run(self._settle(executor, first), executor)

    def _awaited(self, answer: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run(answer)


class AsyncMemoryBroker(_SharedBroker):
    """For `AsyncOnefold`. Its handlers run in the task of the test."""

    _app_type = AsyncOnefold

    async def publish(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | None = None,
        headers: Mapping[str, str] | None = None,
        message_id: str | None = None,
    ) -> list[InboxEvent]:
        """A message from elsewhere, with this `key` and these `headers`: have it handled, by all its consumers, and
        then what waits in the outbox, as `deliver()` does. With a `message_id` it can come twice."""
        return await self._run([self._message(topic, data, key, headers, message_id)])

    async def deliver(self) -> list[InboxEvent]:
        """Have handled what the application has published and is due."""
        return await self._run([])

    async def _run(self, first: Sequence[Message]) -> list[InboxEvent]:
        executor = CollectingTaskExecutor(self._once._database, self._collect)
        return await run_async(self._settle(executor, first), executor)

    def _awaited(self, answer: Coroutine[Any, Any, Any]) -> Any:
        return answer
