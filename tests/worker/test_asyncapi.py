"""The AsyncAPI document: what consumers receive and the application publishes, as other implementations read it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import pytest
from pydantic import BaseModel, Field, ValidationError

from onefold import AsyncOnefold, Depends, Message, Onefold, Transaction
from onefold.errors import ConfigurationError, MessageInvalid
from tests.worker.documents import read


class Line(BaseModel):
    sku: str


class Order(BaseModel):
    """An order, as the shop sends it."""

    order: int = Field(gt=0)
    lines: list[Line] = []


def another_order() -> type[BaseModel]:
    class Order(BaseModel):
        elsewhere: str

    return Order


@dataclass
class Shipped:
    order: int


class Opaque:
    """Pydantic can carry it, but has no schema of it."""


def shipped_of(shipped: Shipped) -> int:
    return shipped.order


@pytest.fixture
def once(sqlite_path: Path) -> AsyncOnefold:
    once = AsyncOnefold(sqlite_path, source="shop", broker="nats://ada:secret@nats.example:4222")
    once.publishes("order.placed", Order, description="A customer has ordered.")
    once.publishes("order.counted")

    @once.consumer("shipping", topic="order.placed")
    async def ship(order: Order, tx: Transaction[Any]) -> None:
        """Ship what was ordered."""

    @once.consumer("mail", topic=("order.shipped", "order.lost"), batch=10)
    async def write(messages: list[Message], orders: list[Shipped]) -> None: ...

    @once.consumer("audit", topic="order.placed")
    def audit(message: Message) -> None: ...

    @once.consumer("count", topic="order.shipped")
    def count(message: Message, number: Annotated[int, Depends(shipped_of)]) -> None: ...

    return once


def resolved(document: dict[str, Any], reference: dict[str, str]) -> Any:
    found: Any = document
    for step in reference["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return found


def references(part: Any) -> list[dict[str, str]]:
    if isinstance(part, dict):
        own = [part] if "$ref" in part else []
        return own + [each for inner in part.values() for each in references(inner)]
    return [each for inner in part for each in references(inner)] if isinstance(part, list) else []


def test_it_is_a_document_that_another_implementation_reads(once: AsyncOnefold) -> None:
    document = once.asyncapi()
    read(json.loads(json.dumps(document)))
    assert document["asyncapi"] == "3.0.0"
    found = references(document)
    assert len(found) > 20
    assert all(resolved(document, each) for each in found), "each reference leads somewhere"


def test_a_document_with_a_mistake_is_found_out(once: AsyncOnefold) -> None:
    """The control: the other implementation does not take just anything."""
    spoils: list[Callable[[dict[str, Any]], object]] = [
        lambda document: document["operations"]["send_order_placed"].update(action="publish"),
        lambda document: document["channels"]["order_placed"].update(topic="order.placed"),
        lambda document: document.pop("info"),
    ]
    for spoil in spoils:
        document = once.asyncapi()
        spoil(document)
        with pytest.raises(ValidationError):
            read(document)


def test_consumers_receive_and_the_application_sends_with_the_schemas_of_their_data(once: AsyncOnefold) -> None:
    document = once.asyncapi(title="The shop", version="2.1.0")
    assert document["info"] == {"title": "The shop", "version": "2.1.0"}
    assert {name: each["action"] for name, each in document["operations"].items()} == {
        "send_order_placed": "send",
        "send_order_counted": "send",
        "receive_shipping_order_placed": "receive",
        "receive_mail_order_shipped": "receive",
        "receive_mail_order_lost": "receive",
        "receive_audit_order_placed": "receive",
        "receive_count_order_shipped": "receive",
    }
    assert document["operations"]["receive_shipping_order_placed"]["description"] == "Ship what was ordered."
    assert document["operations"]["send_order_placed"]["description"] == "A customer has ordered."
    channel = document["channels"]["order_placed"]
    assert (channel["address"], list(channel["messages"])) == ("order.placed", ["order_placed_Order", "order_placed"])

    def schema_of(operation: str) -> Any:
        [message] = document["operations"][operation]["messages"]
        payload = resolved(document, resolved(document, message)).get("payload")
        return None if payload is None else resolved(document, payload)

    for operation in ("send_order_placed", "receive_shipping_order_placed"):
        schema = schema_of(operation)
        assert schema["properties"]["order"] == {"exclusiveMinimum": 0, "title": "Order", "type": "integer"}
        assert resolved(document, schema["properties"]["lines"]["items"])["required"] == ["sku"]
    for operation in ("receive_mail_order_shipped", "receive_mail_order_lost", "receive_count_order_shipped"):
        assert schema_of(operation)["required"] == ["order"]
    assert schema_of("receive_audit_order_placed") is None
    assert schema_of("send_order_counted") is None


def test_the_brokers_address_is_there_and_its_password_is_not(once: AsyncOnefold) -> None:
    document = once.asyncapi()
    assert document["servers"] == {"broker": {"host": "nats.example:4222", "protocol": "nats"}}
    assert "secret" not in json.dumps(document)
    assert "ada" not in json.dumps(document)


class Placed(BaseModel):
    kind: Literal["placed"]
    discriminator: str


class Paid(BaseModel):
    kind: Literal["paid"]


Happened: TypeAlias = Annotated[Placed | Paid, Field(discriminator="kind")]


class Wrapped(BaseModel):
    inner: Happened


def test_a_union_is_told_apart_by_the_name_of_a_property(sqlite_path: Path) -> None:
    """OpenAPI has an object there, and AsyncAPI the name alone."""
    once = AsyncOnefold(sqlite_path, source="shop", broker="local")
    once.publishes("order.happened", Happened)
    once.publishes("order.wrapped", Wrapped)
    document = once.asyncapi()
    read(document)
    [payload] = [each["payload"] for each in document["components"]["messages"].values() if "oneOf" in each["payload"]]
    assert payload["discriminator"] == "kind"
    schemas = document["components"]["schemas"]
    assert schemas["Wrapped"]["properties"]["inner"]["discriminator"] == "kind"
    assert schemas["Placed"]["properties"]["discriminator"] == {"title": "Discriminator", "type": "string"}
    assert "order_happened_Placed___Paid" in document["components"]["messages"]


def test_two_types_of_one_name_have_two_schemas(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, source="shop")
    once.publishes("a", Order)
    once.publishes("b", another_order())
    document = once.asyncapi()
    read(document)
    schemas = [document["components"]["messages"][f"{topic}_Order"]["payload"] for topic in "ab"]
    assert [sorted(resolved(document, each)["properties"]) for each in schemas] == [["lines", "order"], ["elsewhere"]]
    assert "servers" not in document
    once.close()


def test_topics_whose_names_differ_in_a_dot_only_are_two_channels(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, source="shop")
    for topic in ("order.placed", "order_placed", "order-placed"):
        once.publishes(topic)
    document = once.asyncapi()
    read(document)
    addresses = {name: each["address"] for name, each in document["channels"].items()}
    assert addresses == {
        "order_placed": "order.placed",
        "order_placed_": "order_placed",
        "order-placed": "order-placed",
    }
    assert len(document["operations"]) == len(document["components"]["messages"]) == 3
    once.close()


def test_a_pattern_is_an_address_with_parameters(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path, source="shop")

    @once.consumer("audit", topic=("order.*.paid", "refund.>", ">"))
    def audit(order: Order) -> None: ...

    document = once.asyncapi()
    read(document)
    channels = {each["address"]: each for each in document["channels"].values()}
    assert list(channels) == ["order.{token2}.paid", "refund.{rest}", "{rest}"]
    assert channels["order.{token2}.paid"]["description"] == "All topics that match the pattern order.*.paid."
    assert channels["order.{token2}.paid"]["parameters"] == {
        "token2": {"description": "Any one token: * in the pattern order.*.paid."}
    }
    assert list(channels["refund.{rest}"]["parameters"]) == ["rest"]
    assert [each["name"] for each in document["components"]["messages"].values()] == ["order.*.paid", "refund.>", ">"]
    assert all(resolved(document, each) for each in references(document))
    with pytest.raises(MessageInvalid, match=r"'order\.\*' is a pattern, with which consumers subscribe"):
        once.publishes("order.*")
    once.close()


def test_what_cannot_be_declared_is_refused(sqlite_path: Path) -> None:
    once = Onefold(sqlite_path)
    once.publishes("order.placed")
    with pytest.raises(ConfigurationError, match="declared twice"):
        once.publishes("order.placed", Order)
    with pytest.raises(ConfigurationError, match="pydantic cannot read a message's data as Opaque"):
        once.publishes("order.shipped", Opaque)
    with pytest.raises(MessageInvalid, match="topic 'order placed'"):
        once.publishes("order placed")
    assert once.asyncapi()["info"]["title"] == "Onefold"
    once.close()


def test_recurring_events_are_sent_and_what_is_said_of_their_topic_stays(once: AsyncOnefold) -> None:
    once.recurring("report", cron="0 6 * * *", topic="report.due")
    once.recurring("again", cron="0 7 * * *", topic="report.due")
    once.recurring("count", cron="0 6 * * *", topic="order.counted")
    document = once.asyncapi()
    read(json.loads(json.dumps(document)))
    assert document["operations"]["send_report_due"]["description"] == "Recurring: 0 6 * * * UTC."
    assert "description" not in document["operations"]["send_order_counted"]
