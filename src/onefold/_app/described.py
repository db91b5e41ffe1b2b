"""What an application says of itself: its name in errors, and the messages that it sends and receives."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onefold._kernel.redaction import redact
from onefold._outbox.event_checks import check_topic
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._app.asyncapi_document import Published
    from onefold._inbox.consumer import Consumer
    from onefold._outbox.schedules import Recurring
    from onefold._outbox.write import Outbox
    from onefold.brokers._adapters import BrokerGiven


def show_given(database: object, source: str | None) -> str:
    """What a Onefold was made with, without anything secret."""
    if isinstance(database, str | Path):
        given = repr(redact(str(database)))
    else:
        given = f"{type(database).__module__.partition('.')[0]}.{type(database).__qualname__}"
    return given if source is None else f"{given}, source={source!r}"


def name_of(handler: Callable[..., object]) -> str:
    """As errors call it."""
    return f"{handler.__module__}.{getattr(handler, '__qualname__', repr(handler))}"


def list_topics(given: object) -> Any:
    """One topic, or several. What is neither is refused by Consumer."""
    return tuple(given) if isinstance(given, Collection) and not isinstance(given, str | bytes) else (given,)


class Described:
    """The part of an app that says what it sends and receives."""

    _outbox: Outbox
    _broker: BrokerGiven | None
    _consumers: list[Consumer]
    _published: list[Published]
    _recurring: list[Recurring]

    def publishes(self, topic: str, payload: object = None, *, description: str = "") -> None:
        """Say that this application publishes events on a topic, and of which type (`payload`) their data is: for
        `asyncapi`, which has the `description`, too. What is published is not held against it."""
        from onefold._app.asyncapi_document import Published
        from onefold._worker.pydantic_payloads import PydanticPayload

        check_topic(topic)
        if any(each.topic == topic for each in self._published):
            raise ConfigurationError(f"once.publishes({topic!r}) is declared twice; one topic has one type of data")
        read = None if payload is None else PydanticPayload(payload)
        self._published.append(Published(topic=topic, payload=read, description=description))

    def asyncapi(self, *, title: str | None = None, version: str = "1.0.0") -> dict[str, Any]:
        """An AsyncAPI 3 document: what the consumers receive, what `publishes` says, recurring events, and the schemas
        of the data. `title` is the application's source unless it is given, `version` that of its interface."""
        from onefold._app.asyncapi_document import describe, sent

        named = title or self._outbox.source or type(self).__name__
        return describe(self._consumers, sent(self._published, self._recurring), self._broker, named, version)
