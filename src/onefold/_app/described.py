"""The description of an application: its name in errors, and the messages that it sends and receives."""

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


def describe_database(database: object, source: str | None) -> str:
    """The database and source of a Onefold, without anything secret."""
    if isinstance(database, str | Path):
        text = repr(redact(str(database)))
    else:
        text = f"{type(database).__module__.partition('.')[0]}.{type(database).__qualname__}"
    return text if source is None else f"{text}, source={source!r}"


def name_of(handler: Callable[..., object]) -> str:
    """The name of a handler in errors."""
    return f"{handler.__module__}.{getattr(handler, '__qualname__', repr(handler))}"


def list_topics(topics: object) -> Any:
    """The topics, of one or several. Consumer refuses any other value."""
    return tuple(topics) if isinstance(topics, Collection) and not isinstance(topics, str | bytes) else (topics,)


class Described:
    """The part of an app that says what it sends and receives."""

    _outbox: Outbox
    _broker: BrokerGiven | None
    _consumers: list[Consumer]
    _published: list[Published]
    _recurring: list[Recurring]

    def publishes(self, topic: str, payload: object = None, *, description: str = "") -> None:
        """Say that this application publishes events on a topic, and of which type (`payload`) their data is: for
        `asyncapi`, which has the `description`, too. Published events are not checked against it."""
        from onefold._app.asyncapi_document import Published
        from onefold._worker.pydantic_payloads import PydanticPayload

        check_topic(topic)
        if any(each.topic == topic for each in self._published):
            raise ConfigurationError(f"once.publishes({topic!r}) is declared twice; one topic has one type of data")
        schema = None if payload is None else PydanticPayload(payload)
        self._published.append(Published(topic=topic, payload=schema, description=description))

    def asyncapi(self, *, title: str | None = None, version: str = "1.0.0") -> dict[str, Any]:
        """An AsyncAPI 3 document: what the consumers receive, what `publishes` says, recurring events, and the schemas
        of the data. `title` is the application's source unless it is given, `version` that of its interface."""
        from onefold._app.asyncapi_document import describe, list_published

        title = title or self._outbox.source or type(self).__name__
        return describe(self._consumers, list_published(self._published, self._recurring), self._broker, title, version)
