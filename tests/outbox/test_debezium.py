"""Debezium's outbox event router can read the outbox: what it makes of the rows is what our relay publishes.

The router is modelled after its documentation; the rows come through logical decoding by pgoutput, as Debezium's do.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

import psycopg
import pytest
from confluent_kafka import Producer

from onefold import AsyncOnefold
from onefold._app.base_app import run_flow
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.ports import Subscription
from onefold._outbox.debezium import connector, forget_captured
from onefold.brokers.kafka import KafkaBroker
from onefold.errors import ConfigurationError
from onefold.testing.servers import GivenKafka, PrivateKafka, PrivatePostgres
from tests.brokers.kafka_subject import settings
from tests.cli.commands import onefold, told
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import until

#: The types of columns that the router takes for each role: text, and for a payload without an envelope also bytes. It
#: takes its timestamp from integers only, so none is named.
TEXT = {"text", "character varying", "uuid"}
TYPES = {
    "table.field.event.id": TEXT,
    "table.field.event.key": TEXT,
    "table.field.event.payload": TEXT | {"bytea", "json", "jsonb"},
    "route.by.field": TEXT,
}
#: What StringConverter writes as consumers expect it.
PLAIN = TEXT | {"bigint", "integer"}


class Record(NamedTuple):
    """What reaches Kafka."""

    topic: str
    key: bytes | None
    headers: list[tuple[str, bytes | None]]
    value: bytes


@pytest.fixture(scope="module")
def logical() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(settings={"wal_level": "logical"}) as server:
        yield server


@pytest.fixture
def dsn(logical: PrivatePostgres) -> Iterator[str]:
    dsn = logical.fresh_database()
    yield dsn
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE database = current_database()"
        )
    logical.drop_database(dsn)


def config(**settings: Any) -> Mapping[str, str]:
    found = connector(**settings)["config"]
    assert isinstance(found, dict)
    return found


def options(of: Mapping[str, str], transform: str) -> dict[str, str]:
    begin = f"transforms.{transform}."
    return {name.removeprefix(begin): value for name, value in of.items() if name.startswith(begin)}


def router(of: Mapping[str, str]) -> dict[str, str]:
    return options(of, "outbox")


def inserted(payloads: Sequence[bytes]) -> list[dict[str, str | None]]:
    """The rows in messages of pgoutput's protocol, version 1: column names from Relation, values from Insert."""
    columns: list[str] = []
    rows: list[dict[str, str | None]] = []
    for payload in payloads:
        kind, rest = payload[:1], payload[1:]
        if kind == b"R":
            rest = rest[4:].split(b"\0", 2)[2]
            (count,) = struct.unpack_from(">h", rest, 1)
            rest, columns = rest[3:], []
            for _ in range(count):
                name, _, rest = rest[1:].partition(b"\0")
                columns.append(name.decode())
                rest = rest[8:]
        elif kind == b"I":
            assert rest[4:5] == b"N"
            rest = rest[7:]
            values: list[str | None] = []
            for _ in columns:
                if rest[:1] == b"n":
                    values.append(None)
                    rest = rest[1:]
                else:
                    (length,) = struct.unpack_from(">i", rest, 1)
                    values.append(rest[5 : 5 + length].decode())
                    rest = rest[5 + length :]
            rows.append(dict(zip(columns, values, strict=True)))
    return rows


def routed(row: Mapping[str, str | None], of: Mapping[str, str]) -> Record:
    """The chain of transforms, as they are documented and, where that is silent, as their code has it; then the
    converters. A row comes with its primary key as the record's key."""
    key: Any = {"position": row["position"]}
    headers: list[tuple[str, Any]] = []
    if of.get("extended.headers.enabled", "true") == "true":  # as Debezium has it since 3.1
        headers += [("__debezium.context.taskId", "0"), ("__debezium.context.connectorName", "postgresql")]
    topic = value = None
    for name in of["transforms"].split(","):
        smt = options(of, name)
        match smt["type"].rpartition(".")[2]:
            case "EventRouter":
                headers.append(("id", row[smt["table.field.event.id"]]))
                for trio in smt["table.fields.additional.placement"].split(","):
                    column, placement, alias = trio.split(":")
                    assert placement == "header"
                    headers.append((alias, row[column]))
                key, value = row[smt["table.field.event.key"]], row[smt["table.field.event.payload"]]
                topic = smt["route.topic.replacement"].replace("${routedByValue}", row[smt["route.by.field"]] or "")
            case "InsertField$Key":
                key = {**key, smt["static.field"]: smt["static.value"]}
            case "HeaderFrom$Key":
                assert smt["operation"] == "copy"
                taken = zip(smt["fields"].split(","), smt["headers"].split(","), strict=True)
                headers += [(header, key[field]) for field, header in taken]
            case "InsertHeader":
                headers.append((smt["header"], literal(smt["value.literal"])))
            case "DropHeaders":
                headers = [header for header in headers if header[0] not in smt["headers"].split(",")]
            case other:
                pytest.fail(f"no model of {other}")
    assert topic is not None
    assert value is not None
    assert not isinstance(key, dict)
    return Record(
        topic=topic,
        key=_bytes(key),
        headers=[(name, _bytes(found)) for name, found in headers],
        value=bytes.fromhex(value.removeprefix("\\x")),
    )


def literal(text: str) -> object:
    """As Kafka Connect reads the literal of InsertHeader: as a number where it can be one, and a whole one as such."""
    try:
        number = Decimal(text)
    except InvalidOperation:
        return text
    return int(number) if number == number.to_integral_value() else float(number)


def _bytes(value: object) -> bytes | None:
    """What StringConverter writes."""
    return None if value is None else str(value).encode()


class Collecting:
    """A broker that keeps what a relay publishes."""

    keep_every_s = redelivery_s = 3600.0

    def __init__(self) -> None:
        self.published: list[Message] = []

    async def open(self) -> None: ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        self.published += messages
        return [None] * len(messages)

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        raise NotImplementedError

    async def close(self) -> None: ...


async def publish(once: AsyncOnefold) -> None:
    async with once.transaction() as tx:
        for number in range(3):
            await tx.publish("order.placed", {"number": number, "name": "Zoë 注文"}, key="Zoë / 注文 1")
        await tx.publish("order.paid", b"\x00\xff\x01", content_type="application/x-bits")
        await tx.publish("order.paid", b"", content_type="text/plain", key="k")
        await tx.publish("order.paid", [], headers={"correlation-id": 'a "b", c', "x-odd": "%41"})
        await tx.publish("order.late", 1, not_before=datetime.now(UTC) + timedelta(seconds=-1))


def slot(dsn: str, of: Mapping[str, str]) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        table = of["table.include.list"]
        connection.execute(f"CREATE PUBLICATION {of['publication.name']} FOR TABLE {table}".encode())
        connection.execute("SELECT pg_create_logical_replication_slot(%s, %s)", (of["slot.name"], of["plugin.name"]))


def changes(dsn: str, of: Mapping[str, str]) -> list[bytes]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        found = connection.execute(
            "SELECT data FROM pg_logical_slot_get_binary_changes(%s, NULL, NULL, 'proto_version', '1', "
            "'publication_names', %s)",
            (of["slot.name"], of["publication.name"]),
        ).fetchall()
    return [bytes(data) for (data,) in found]


async def relayed(once: AsyncOnefold, to: Collecting, count: int) -> list[Message]:
    stop = asyncio.Event()
    task = asyncio.create_task(once.relay(stop))
    async with asyncio.timeout(PATIENCE_S):
        await until(lambda: len(to.published) >= count)
        stop.set()
        await task
    return to.published


def test_the_configuration_names_columns_that_are_there_and_of_types_the_router_takes(dsn: str) -> None:
    async def prepare() -> None:
        once = AsyncOnefold(dsn)
        await once.migrate()
        await once.close()

    asyncio.run(prepare())
    with psycopg.connect(dsn) as connection:
        found = connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = 'onefold_outbox'"
        ).fetchall()
    types = {str(name): str(kind) for name, kind in found}
    smt = router(config())
    for option, allowed in TYPES.items():
        assert types[smt[option]] in allowed, option
    for trio in smt["table.fields.additional.placement"].split(","):
        column, placement, _ = trio.split(":")
        assert placement == "header"
        assert types[column] in PLAIN, column
    assert "table.field.event.timestamp" not in smt


async def test_what_the_router_makes_of_the_rows_is_what_the_relay_publishes(
    dsn: str, kafka: PrivateKafka | GivenKafka
) -> None:
    prefix = f"test-{secrets.token_hex(6)}."
    of = config(topic_prefix=prefix)
    to = Collecting()
    once = AsyncOnefold(dsn, source="https://shop.example/orders", broker=lambda: to)
    await once.migrate()
    slot(dsn, of)
    await publish(once)
    records = [routed(row, of) for row in inserted(changes(dsn, of))]
    assert len(records) == 7
    assert [value for record in records for name, value in record.headers if name == "ce_specversion"] == [b"1.0"] * 7
    published = await relayed(once, to, len(records))
    await once.close()
    broker = KafkaBroker(kafka.bootstrap, topic_prefix=prefix, confirm_s=PATIENCE_S, settings=settings(kafka))
    await broker.open()
    try:
        topics = sorted({message.topic for message in published})
        subscription = await broker.subscribe(f"group-{prefix}", topics)
        await asyncio.to_thread(_produce, kafka.bootstrap, records)
        found: list[Message] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(found) < len(records):
                for delivery in await subscription.receive(10, 1.0):
                    assert delivery.message is not None, delivery.problem
                    found.append(delivery.message)
        assert sorted(found, key=_id) == sorted(published, key=_id)
    finally:
        await broker.close()


def _id(message: Message) -> str:
    return message.id


def _produce(bootstrap: str, records: Sequence[Record]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "log_level": 0})
    for record in records:
        headers: Any = record.headers
        producer.produce(record.topic, record.value, key=record.key, headers=headers)
    assert producer.flush(PATIENCE_S) == 0


async def test_a_row_that_was_removed_before_it_was_read_is_read_all_the_same(dsn: str) -> None:
    """Rows may be removed while a connector is away: it reads the log, which keeps them for its slot."""
    of = config()
    once = AsyncOnefold(dsn, source="shop")
    await once.migrate()
    slot(dsn, of)
    await publish(once)
    assert await run_flow(once, lambda dialect: forget_captured(dialect, keep_s=0.0)) == 7
    await once.close()
    assert len(inserted(changes(dsn, of))) == 7


async def test_old_rows_go_and_young_ones_stay(dsn: str) -> None:
    once = AsyncOnefold(dsn, source="shop")
    await once.migrate()
    await publish(once)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(
            "UPDATE onefold_outbox SET written_at = written_at - interval '2 hours' WHERE topic = 'order.placed'"
        )
    assert await run_flow(once, lambda dialect: forget_captured(dialect, keep_s=3600.0, limit=2)) == 3
    with psycopg.connect(dsn) as connection:
        left = connection.execute("SELECT DISTINCT topic FROM onefold_outbox ORDER BY 1").fetchall()
    assert left == [("order.late",), ("order.paid",)]
    await once.close()


async def test_nothing_is_removed_under_a_relay(dsn: str) -> None:
    once = AsyncOnefold(dsn, source="shop")
    await once.migrate()
    await publish(once)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("INSERT INTO onefold_relay VALUES ('r-1', clock_timestamp() + interval '1 minute')")
    with pytest.raises(ConfigurationError, match="relay r-1 is at work"):
        await run_flow(once, lambda dialect: forget_captured(dialect, keep_s=0.0))
    await once.close()


async def test_an_outbox_on_sqlite_is_not_captured(tmp_path: Any) -> None:
    once = AsyncOnefold(tmp_path / "shop.db")
    with pytest.raises(ConfigurationError, match="read by relays only"):
        await run_flow(once, lambda dialect: forget_captured(dialect, keep_s=0.0))
    await once.close()


def test_connectors_of_one_server_and_one_kafka_connect_have_names_of_their_own() -> None:
    """The names of replication slots are the server's, those of connectors and their prefixes Kafka Connect's."""
    long: Any = {"database": "Späti-" + 80 * "x"}
    places: Any = ({}, {"database": "shop"}, {"database": "shop", "schema": "tenant"}, long)
    found = [connector(**place) for place in places]
    for name in ("slot.name", "topic.prefix"):
        assert len({config(**place)[name] for place in places}) == len(places)
    assert len({str(each["name"]) for each in found}) == len(places)
    assert config()["slot.name"] == config()["publication.name"] == "onefold_outbox"
    for place in places:
        assert re.fullmatch(r"[a-z0-9_]{1,63}", config(**place)["slot.name"]), "what Postgres takes"
        assert re.fullmatch(r"[A-Za-z0-9._-]+", config(**place)["topic.prefix"]), "what Debezium takes"


def test_the_connector_is_json_without_a_password() -> None:
    text = json.dumps(connector(host="db", user="debezium", database="shop", schema="tenant"))
    assert json.loads(text)["config"]["table.include.list"] == "tenant.onefold_outbox"
    assert json.loads(text)["config"]["database.password"] == "<password>"


def test_the_command_prints_the_connector() -> None:
    bare = told(onefold("outbox", "--print-debezium"))
    assert bare == connector()
    address = "postgresql://debezium:s3cret@db.example:6432/shop"
    printed = onefold("outbox", "--print-debezium", "--schema", "tenant", "-d", address)
    assert told(printed) == connector(schema="tenant", host="db.example", port=6432, user="debezium", database="shop")
    assert "s3cret" not in printed.stdout
    assert "Debezium reads the log of Postgres" in onefold("outbox", "--print-debezium", "-d", "shop.db").stderr


def test_the_reaper_removes_what_was_captured(dsn: str) -> None:
    async def prepare() -> None:
        once = AsyncOnefold(dsn, source="shop")
        await once.migrate()
        await publish(once)
        await once.close()

    asyncio.run(prepare())
    assert told(onefold("reap", "-d", dsn, "--captured-outbox", "1h", "--json")) == {"records": 0, "events": 0}
    assert onefold("reap", "-d", dsn, "--captured-outbox", "0s").stdout == "forgotten: 0 records, 7 events\n"
    assert "is not an age" in onefold("reap", "-d", dsn, "--captured-outbox", "soon").stderr
