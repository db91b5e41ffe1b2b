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
from onefold._outbox.schedules import Recurring
from onefold._worker.pydantic_payloads import PydanticPayload, schemas_of
from onefold.brokers._adapters import BrokerGiven

VERSION: Final = "3.0.0"

#: Components may have dots in their names; other identifiers, for some readers of documents, may not.
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")


#: Members of a schema that have schemas by name, and those that have values, which are as they are.
_NAMED_SCHEMAS: Final = frozenset({"properties", "patternProperties", "$defs"})
_VALUES: Final = frozenset({"const", "default", "enum", "examples"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A topic that the application says it publishes."""

    topic: str
    payload: PydanticPayload | None
    description: str


def list_published(published: Sequence[Published], recurring: Sequence[Recurring]) -> list[Published]:
    """All topics the application sends: those of `once.publishes`, and recurring events that are not among them."""
    by_topic = {each.topic: each for each in published}
    for each in recurring:
        topic = each.make_event("", 0).topic
        by_topic.setdefault(topic, Published(topic=topic, payload=None, description=f"Recurring: {each.rule}."))
    return list(by_topic.values())


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
    """Unique identifiers for a document: different names never get the same identifier."""

    def __init__(self) -> None:
        self._issued: dict[str, str] = {}

    def of(self, *parts: str) -> str:
        text = ".".join(parts)
        name = _NOT_IN_NAMES.sub("_", text)
        while self._issued.setdefault(name, text) != text:
            name += "_"
        return name

    def operation(
        self,
        action: Literal["receive", "send"],
        party: str,
        topic: str,
        payload: PydanticPayload | None,
        description: str,
    ) -> _Operation:
        return _Operation(
            name=self.of(action, party, topic) if party else self.of(action, topic),
            action=action,
            topic=topic,
            channel=self.of(topic),
            message=self.of(topic) if payload is None else self.of(topic, payload.name),
            payload=payload,
            description=description,
        )


def describe(
    consumers: Sequence[Consumer], published: Sequence[Published], broker: BrokerGiven | None, title: str, version: str
) -> dict[str, Any]:
    """The document, as JSON has it."""
    names = _Names()
    operations = [names.operation("send", "", each.topic, each.payload, each.description) for each in published]
    for consumer in consumers:
        payload, text = _payload(consumer), _describe(consumer)
        operations += [names.operation("receive", consumer.name, topic, payload, text) for topic in consumer.topics]
    messages = {each.message: each for each in operations}
    typed = [(name, each.payload) for name, each in messages.items() if each.payload is not None]
    by_payload, definitions = schemas_of([payload for _, payload in typed])
    schemas = {name: _schema(schema) for (name, _), schema in zip(typed, by_payload, strict=True) if schema is not None}
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
        "schemas": {name: _schema(definition) for name, definition in definitions.items()},
    }
    return document


def _schema(schema: Any) -> Any:
    """A schema as AsyncAPI has it: `discriminator` is the name of a property there, and an object with that name in
    OpenAPI, which pydantic writes."""
    if isinstance(schema, list):
        return [_schema(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    converted = {}
    for name, value in schema.items():
        if name in _NAMED_SCHEMAS and isinstance(value, dict):
            converted[name] = {each: _schema(inner) for each, inner in value.items()}
        elif name == "discriminator" and isinstance(value, dict):
            converted[name] = value["propertyName"]
        else:
            converted[name] = value if name in _VALUES else _schema(value)
    return converted


def _payload(consumer: Consumer) -> PydanticPayload | None:
    return next((value for value in consumer.signature.values() if isinstance(value, PydanticPayload)), None)


def _describe(consumer: Consumer) -> str:
    """The docstring of its handler. Not of a callable object: that has its class's, which may be about anything."""
    return inspect.getdoc(consumer.handler) or "" if inspect.isroutine(consumer.handler) else ""


def _operation(each: _Operation) -> dict[str, Any]:
    channel = f"#/channels/{each.channel}"
    document: dict[str, Any] = {
        "action": each.action,
        "channel": {"$ref": channel},
        "messages": [{"$ref": f"{channel}/messages/{each.message}"}],
    }
    return document | ({"description": each.description} if each.description else {})


def _address(topic: str) -> dict[str, Any]:
    """Where a channel is. A pattern is an address with a parameter for each of its wildcards."""
    if not is_pattern(topic):
        return {"address": topic}
    tokens = topic.split(".")
    parameters: dict[str, Any] = {}
    for index, token in enumerate(tokens):
        if token in (ONE, MORE):
            name = f"token{index + 1}" if token == ONE else "rest"
            range_text = "one token" if token == ONE else "one or more tokens, divided by dots"
            parameters[name] = {"description": f"Any {range_text}: {token} in the pattern {topic}."}
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
    document: dict[str, Any] = {
        "name": each.topic,
        "contentType": "application/json",
        "description": f"A CloudEvent (1.0) of {'a type that matches' if is_pattern(each.topic) else 'the type'} "
        f"{each.topic}.",
    }
    return document | ({"payload": schema} if schema is not None else {})


def _server(broker: BrokerGiven | None) -> dict[str, str] | None:
    """Where its address says so. Not who may connect: that is secret."""
    if not isinstance(broker, str) or "://" not in broker:
        return None
    address = urlsplit(broker)
    host = address.netloc.rpartition("@")[2]
    return {"host": host, "protocol": address.scheme} if host else None
