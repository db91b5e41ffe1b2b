"""An AsyncAPI 3 document of an application: what its consumers receive, what it says that it publishes, and the data.

Invariant: everything in the document is read from the application as it runs; nothing secret (of the broker's address,
host and port) is in it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from onefold._inbox.consumer import Consumer
from onefold._kernel.topics import MORE, ONE, is_pattern
from onefold._outbox.event_checks import check_topic
from onefold._outbox.schedules import Recurring
from onefold._outbox.write import Outbox
from onefold._worker.payloads import PydanticPayload, schemas_of
from onefold.brokers._connect import BrokerGiven
from onefold.errors import ConfigurationError

VERSION: Final = "3.0.0"

#: Components may have dots in their names; other identifiers, for some readers of documents, may not.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A topic that the application says it publishes."""

    topic: str
    payload: PydanticPayload | None
    description: str


class Described:
    """The part of an app that says what it sends and receives."""

    _outbox: Outbox
    _broker: BrokerGiven | None
    _consumers: list[Consumer]
    _published: list[Published]
    _recurring: list[Recurring]

    def publishes(self, topic: str, payload: object = None, *, description: str = "") -> None:
        """Say that this application publishes events on a topic, and of which type their data is: for `asyncapi`, and
        for who reads the code. What is published is not held against it."""
        check_topic(topic)
        if any(each.topic == topic for each in self._published):
            raise ConfigurationError(f"once.publishes({topic!r}) is said twice; one topic has one type of data")
        read = None if payload is None else PydanticPayload(payload)
        self._published.append(Published(topic=topic, payload=read, description=description))

    def asyncapi(self, *, title: str | None = None, version: str = "1.0.0") -> dict[str, Any]:
        """An AsyncAPI 3 document: what the consumers receive, what `publishes` says, recurring events, and the schemas
        of the data."""
        named = title or self._outbox.source or type(self).__name__
        return describe(self._consumers, self._sent(), self._broker, named, version)

    def _sent(self) -> list[Published]:
        """What was said, and the recurring events of which nothing was."""
        sent = {each.topic: each for each in self._published}
        for each in self._recurring:
            topic = each.make_event("", 0).topic
            sent.setdefault(topic, Published(topic=topic, payload=None, description=f"Recurring: {each.rule}."))
        return list(sent.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class _Operation:
    """One operation of the document: a consumer or the application receives or sends messages of one topic."""

    name: str
    action: Literal["receive", "send"]
    topic: str
    channel: str
    message: str
    payload: PydanticPayload | None
    description: str


class _Names:
    """Identifiers for a document, another one for everything that is called something else."""

    def __init__(self) -> None:
        self._given: dict[str, str] = {}

    def of(self, *parts: str) -> str:
        text = ".".join(parts)
        name = _NOT_IN_NAMES.sub("_", text)
        while self._given.setdefault(name, text) != text:
            name += "_"
        return name

    def operation(
        self, action: Literal["receive", "send"], who: str, topic: str, payload: PydanticPayload | None, told: str
    ) -> _Operation:
        return _Operation(
            name=self.of(action, who, topic) if who else self.of(action, topic),
            action=action,
            topic=topic,
            channel=self.of(topic),
            message=self.of(topic) if payload is None else self.of(topic, payload.name),
            payload=payload,
            description=told,
        )


def describe(
    consumers: Sequence[Consumer], published: Sequence[Published], broker: BrokerGiven | None, title: str, version: str
) -> dict[str, Any]:
    """The document, as JSON has it."""
    names = _Names()
    operations = [names.operation("send", "", each.topic, each.payload, each.description) for each in published]
    for consumer in consumers:
        payload, told = _payload(consumer), _describe(consumer)
        operations += [names.operation("receive", consumer.name, topic, payload, told) for topic in consumer.topics]
    messages = {each.message: each for each in operations}
    typed = [(name, each.payload) for name, each in messages.items() if each.payload is not None]
    found, definitions = schemas_of([payload for _, payload in typed])
    schemas = {name: schema for (name, _), schema in zip(typed, found, strict=True) if schema is not None}
    document: dict[str, Any] = {"asyncapi": VERSION, "info": {"title": title, "version": version}}
    if (server := _server(broker)) is not None:
        document["servers"] = {"broker": server}
    document["defaultContentType"] = "application/json"
    document["channels"] = {
        each.channel: {**_address(each.topic), "messages": _messages_of(each.channel, operations)}
        for each in operations
    }
    document["operations"] = {each.name: _operation(each) for each in operations}
    document["components"] = {
        "messages": {name: _message(each, schemas.get(name)) for name, each in messages.items()},
        "schemas": definitions,
    }
    return document


def _payload(consumer: Consumer) -> PydanticPayload | None:
    return next((value for value in consumer.signature.values() if isinstance(value, PydanticPayload)), None)


def _describe(consumer: Consumer) -> str:
    """What its handler says of itself. An object's docstring is its class's, which may be anything."""
    return inspect.getdoc(consumer.handler) or "" if inspect.isroutine(consumer.handler) else ""


def _operation(each: _Operation) -> dict[str, Any]:
    channel = f"#/channels/{each.channel}"
    written: dict[str, Any] = {
        "action": each.action,
        "channel": {"$ref": channel},
        "messages": [{"$ref": f"{channel}/messages/{each.message}"}],
    }
    return written | ({"description": each.description} if each.description else {})


def _address(topic: str) -> dict[str, Any]:
    """Where a channel is. A pattern is an address with a parameter for each of its wildcards."""
    if not is_pattern(topic):
        return {"address": topic}
    tokens = topic.split(".")
    parameters: dict[str, Any] = {}
    for index, token in enumerate(tokens):
        if token in (ONE, MORE):
            name = f"token{index + 1}" if token == ONE else "rest"
            means = "one token" if token == ONE else "one or more tokens, divided by dots"
            parameters[name] = {"description": f"Any {means}: {token} in the pattern {topic}."}
            tokens[index] = f"{{{name}}}"
    return {
        "address": ".".join(tokens),
        "description": f"All topics that match the pattern {topic}.",
        "parameters": parameters,
    }


def _messages_of(channel: str, operations: Sequence[_Operation]) -> dict[str, Any]:
    names = {each.message: None for each in operations if each.channel == channel}
    return {name: {"$ref": f"#/components/messages/{name}"} for name in names}


def _message(each: _Operation, schema: dict[str, Any] | None) -> dict[str, Any]:
    written: dict[str, Any] = {
        "name": each.topic,
        "contentType": "application/json",
        "description": f"A CloudEvent (1.0) of {'a type that matches' if is_pattern(each.topic) else 'the type'} "
        f"{each.topic}.",
    }
    return written | ({"payload": schema} if schema is not None else {})


def _server(broker: BrokerGiven | None) -> dict[str, str] | None:
    """Where its address says so. Not who may connect: that is secret."""
    if not isinstance(broker, str) or "://" not in broker:
        return None
    address = urlsplit(broker)
    host = address.netloc.rpartition("@")[2]
    return {"host": host, "protocol": address.scheme} if host else None
