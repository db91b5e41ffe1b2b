"""An outbox that a change-data-capture connector reads instead of a relay: the configuration of Debezium's outbox event
router, and the removal of rows that it has read long ago.

The names here are a contract: columns of `onefold_outbox` that others read are not renamed, nor given another meaning.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final

from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Batch, Fetch, Statement
from onefold._kernel.pg_catalog import qualified
from onefold.errors import ConfigurationError

#: By column, the header of the record that the router puts it into: the CloudEvents binding for Kafka. What a binding
#: has no name for, the application's own headers, travel as one JSON object, which
#: KafkaBroker's consumers take apart.
HEADERS: Final = {
    "id": "ce_id",
    "source": "ce_source",
    "topic": "ce_type",
    "time": "ce_time",
    "key": "ce_partitionkey",
    "version": "ce_sequence",
    "epoch": "ce_sequenceepoch",
    "content_type": "content-type",
    "headers": "onefold-headers",
}

_UNKNOWN: Final = "<database>"

#: Of the 63 that a name has in Postgres, those that "onefold_outbox_" leaves.
_NAME_CHARS: Final = 48

_TEXT: Final = "org.apache.kafka.connect.storage.StringConverter"
_ROUTER: Final = {
    "type": "io.debezium.transforms.outbox.EventRouter",
    "table.field.event.id": "id",
    "table.field.event.key": "key",
    "table.field.event.payload": "data",
    "table.fields.additional.placement": ",".join(f"{column}:header:{name}" for column, name in HEADERS.items()),
    "route.by.field": "topic",
    "route.topic.replacement": "${routedByValue}",
    "table.expand.json.payload": "false",
    "route.tombstone.on.empty.payload": "false",
}


def connector(
    *,
    schema: str = "public",
    topic_prefix: str = "",
    host: str = "<host>",
    port: int = 5432,
    user: str = "<user>",
    database: str = _UNKNOWN,
) -> dict[str, object]:
    """A connector for Kafka Connect that publishes what a relay to Kafka would, under KafkaBroker's `topic_prefix`."""
    own = _name_of(schema, database)
    return {
        "name": f"onefold-outbox{own}",
        "config": {
            "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
            "plugin.name": "pgoutput",
            "database.hostname": host,
            "database.port": str(port),
            "database.user": user,
            "database.password": "<password>",
            "database.dbname": database,
            "topic.prefix": f"onefold{own}",
            "slot.name": f"onefold_outbox{own}",
            "publication.name": "onefold_outbox",
            "publication.autocreate.mode": "filtered",
            "table.include.list": f"{schema}.onefold_outbox",
            "skipped.operations": "u,d,t",
            "tombstones.on.delete": "false",
            "binary.handling.mode": "bytes",
            # Else every record has headers about the connector, which a consumer would take for the application's.
            "extended.headers.enabled": "false",
            "key.converter": _TEXT,
            "header.converter": _TEXT,
            "value.converter": "io.debezium.converters.BinaryDataConverter",
            "value.converter.delegate.converter.type": "org.apache.kafka.connect.json.JsonConverter",
            "value.converter.delegate.converter.type.schemas.enable": "false",
            "transforms": "constant,specversion,outbox,plain",
            # A text, by way of the row's key, which the router replaces. Kafka's InsertHeader reads its literal as a
            # number where it can, and 1.0 would arrive as 1: no version of CloudEvents.
            "transforms.constant.type": "org.apache.kafka.connect.transforms.InsertField$Key",
            "transforms.constant.static.field": "specversion",
            "transforms.constant.static.value": "1.0",
            "transforms.specversion.type": "org.apache.kafka.connect.transforms.HeaderFrom$Key",
            "transforms.specversion.fields": "specversion",
            "transforms.specversion.headers": "ce_specversion",
            "transforms.specversion.operation": "copy",
            **{f"transforms.outbox.{name}": value for name, value in _ROUTER.items()},
            "transforms.outbox.route.topic.replacement": topic_prefix + _ROUTER["route.topic.replacement"],
            # The router's own header, which repeats ce_id.
            "transforms.plain.type": "org.apache.kafka.connect.transforms.DropHeaders",
            "transforms.plain.headers": "id",
        },
    }


def _name_of(schema: str, database: str) -> str:
    """What distinguishes connectors: slots have one name per server, and what reads several of its databases needs one
    each. In the letters that a slot may have, and no longer than its name may be."""
    if database == _UNKNOWN:
        return ""
    name = database if schema == "public" else f"{database}_{schema}"
    plain = re.sub(r"[^a-z0-9_]", "_", name.lower())
    if plain == name and len(plain) <= _NAME_CHARS:
        return f"_{plain}"
    return f"_{plain[: _NAME_CHARS - 9]}_{blake2b(name.encode(), digest_size=4).hexdigest()}"


_RELAY = Statement(qualified("SELECT relay FROM onefold_relay WHERE leased_until > clock_timestamp() LIMIT 1"))
#: The write-ahead log has what a connector has not read yet, so that a row that is gone is still published.
_FORGET = qualified("""
DELETE FROM onefold_outbox WHERE position IN (
    SELECT position FROM onefold_outbox WHERE written_at < (now() - ($1::bigint * interval '1 millisecond'))
    ORDER BY position LIMIT $2::integer)
""")


async def forget_captured(dialect: str, *, keep_s: float, limit: int = 1000, batches_max: int = 1000) -> int:
    """Delete events that were written longer ago than `keep_s`, published or not; how many. For an outbox without a
    relay: refused while one is at work, which would never publish what is deleted here."""
    if dialect != "postgres":
        raise ConfigurationError(f"an outbox on {dialect} is read by relays only: nothing captures its changes")

    async def work() -> int:
        if at_work := await Fetch(_RELAY):
            raise ConfigurationError(
                f"relay {at_work[0][0]} is at work on this outbox: events that it has not published would be deleted. "
                "Stop the relays where a connector reads the outbox, or leave this out where relays do"
            )
        total = 0
        for _ in range(batches_max):
            deleted = await Batch((Statement(_FORGET, (milliseconds(keep_s), limit)),))
            total += deleted
            if deleted < limit:
                break
        return total

    return await with_connection(work)
