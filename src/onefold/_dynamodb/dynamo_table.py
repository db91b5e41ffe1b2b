"""onefold's table of DynamoDB, and the one call that writes a key, the application's items and its events.

Invariant: a key's record, the items and the events of its request are in ONE TransactWriteItems, whose first action is
a put of the record on the condition that there is none. So the loser of a race has written nothing, and is given the
winner's record by the very answer that turns it away.

The table has a partition key `pk`; the records of keys and events are items of it. `expires` is its time to live, which
DynamoDB takes its time with: a record that is over counts as none, whether or not it is still there. Events are found
by the index `outbox`, which has only those that wait (see `dynamo_relay.py`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any, Final, Literal

from onefold._dynamodb.cancellations import KeyTaken, call_dynamodb, judge_cancelled, was_answered
from onefold._dynamodb.item_values import check_sizes, compare_by_value, read_item, write_action, write_item
from onefold._idempotency.encryption import Sealer, peppers_of
from onefold._idempotency.fingerprint import RequestContent, canonical_json, fingerprint
from onefold._idempotency.model import SCHEMA_VERSION, Record, Scope
from onefold._idempotency.record_matching import Compared, is_same_request
from onefold._kernel.messages import Message, write_structured
from onefold._kernel.results import decode_result, encode_result
from onefold._kernel.write_results import Inserted, InsertOutcome
from onefold._outbox.event_checks import serialise
from onefold._outbox.write import Outbox
from onefold._policy.ranges import require
from onefold.errors import (
    ConfigurationError,
    KeyReused,
    OnefoldError,
    OutcomeUnknown,
    ProgrammerError,
    RowDiffers,
    StoreError,
)

INDEX: Final = "outbox"
#: Of the requests that keys are compared by.
_REQUEST_BYTES_MAX: Final = 1_048_576
_ANSWER_BYTES_MAX: Final = 300_000


@dataclass(frozen=True, slots=True)
class DynamoEvent:
    """What is published when the transaction is committed: the parameters are those of `tx.publish`.

    `topic` is what happened, `data` what is known of it: JSON, or bytes with a `content_type`. Events of one `key` stay
    in their order. `headers` are sent along."""

    topic: str
    data: object
    key: str | int | uuid.UUID | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None


@dataclass(frozen=True, slots=True)
class OnceResult:
    """What became of a request."""

    outcome: Literal["run", "replay"]
    """run: this call has written it. replay: a call before has, and nothing was written now."""
    answer: Any
    """The answer that is stored with the key."""

    @property
    def replayed(self) -> bool:
        """Whether a call before has written it."""
        return self.outcome == "replay"


class DynamoTable:
    """`DynamoTable("onefold", client=boto3.client("dynamodb"), source="shop")`: onefold's own table. Its calls block:
    on asyncio write `await asyncio.to_thread(table.once, ...)`; one table, and its client, serve all threads."""

    def __init__(
        self,
        name: str,
        *,
        client: Any,
        source: str | None = None,
        retention_s: float = 86_400.0,
        shards: int = 8,
        sealer: Sealer | None = None,
        unsealed_answers: bool = False,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        """`name` is that of the table, `client` is boto3's for DynamoDB. `source` names the service in its events.
        `retention_s` is for how long a key is remembered, by this host's clock. Answers are sealed with `sealer`, a
        `Keyring`; `unsealed_answers=True` reads those that were stored before there was one, too: for one retention, no
        longer. `shards` is into how many parts the index of events is divided: it may grow, and must not shrink while
        events wait. `now_s` is the clock."""
        require("retention_s", retention_s, least=60, most=10 * 366 * 86_400)
        require("shards", shards, least=1, most=256, whole=True)
        if not name or not hasattr(client, "transact_write_items"):
            raise ConfigurationError(
                f"DynamoTable({name!r}, client={client!r}): give the name of a table and boto3.client('dynamodb')"
            )
        self.name = name
        self.client = client
        self.shards = shards
        self._outbox = Outbox(dialect="sqlite", source=source)
        self._retention_s = retention_s
        self._sealer = sealer
        self._unsealed_answers = unsealed_answers
        self._now_s = now_s
        #: The partition keys of the tables of `insert_once`, which do not change while a table lives.
        self._partition_keys = {name: "pk"}

    def create(self) -> None:
        """Make the table, its index and its time to live, where it is missing, and wait for it."""
        from botocore.exceptions import ClientError

        try:
            self.client.create_table(
                TableName=self.name,
                BillingMode="PAY_PER_REQUEST",
                KeySchema=[{"AttributeName": "pk", "KeyType": "HASH"}],
                AttributeDefinitions=[
                    {"AttributeName": name, "AttributeType": "S"} for name in ("pk", "shard", "place")
                ],
                GlobalSecondaryIndexes=[
                    {
                        "IndexName": INDEX,
                        "KeySchema": [
                            {"AttributeName": "shard", "KeyType": "HASH"},
                            {"AttributeName": "place", "KeyType": "RANGE"},
                        ],
                        "Projection": {"ProjectionType": "ALL"},
                    }
                ],
            )
        except ClientError as error:
            if error.response["Error"]["Code"] != "ResourceInUseException":
                raise
        self.client.get_waiter("table_exists").wait(TableName=self.name)
        described = self.client.describe_time_to_live(TableName=self.name)["TimeToLiveDescription"]
        if described.get("TimeToLiveStatus") not in ("ENABLED", "ENABLING"):
            self.client.update_time_to_live(
                TableName=self.name, TimeToLiveSpecification={"Enabled": True, "AttributeName": "expires"}
            )

    def once(
        self,
        key: str,
        request: object,
        *,
        principal: str,
        operation: str,
        items: Sequence[Mapping[str, Any]] = (),
        events: Sequence[DynamoEvent] = (),
        answer: object = None,
    ) -> OnceResult:
        """Write the key, the items and the events, in one transaction, unless the key has its record.

        The key belongs to the `principal`, for this `operation`: the same key of another is another one.

        `request` is what is asked for (JSON, or bytes): the same key with another one is KeyReused. `items` are actions
        of TransactWriteItems, with plain values: {"Put": {"TableName": ..., "Item": {...}}}. A condition of theirs that
        does not hold is ItemRefused. Throttles and conflicts are StoreBusy: nothing was written, call again. A lost
        answer, and a throttle of what boto3 has sent more than once, are OutcomeUnknown where the record is not found:
        call again with the same key, and the record decides."""
        intent = self._intent(key, request, principal, operation)
        what = f"once({key!r}) on table {self.name!r}"
        # Names this call, for DynamoDB and for us: when the client sends it again because the answer was lost, DynamoDB
        # does not write it again, and what is found then is this call's own.
        call = str(uuid.uuid4())
        now = int(self._now_s())
        body = encode_result(answer, what=f"the answer of {what}", bytes_max=_ANSWER_BYTES_MAX)
        record = {
            "pk": intent.pk,
            "version": SCHEMA_VERSION,
            "fingerprint": intent.fingerprint,
            "operation": operation,
            "answer": body if self._sealer is None else self._sealer.seal(body, intent.digest),
            "sealed": self._sealer is not None,
            "call": call,
            "expires": now + int(self._retention_s),
        }
        actions = [
            self._claim(write_item(record, what), now),
            *(write_action(index, item) for index, item in enumerate(items)),
            *(
                {"Put": {"TableName": self.name, "Item": write_item(self._event_item(index, event), what)}}
                for index, event in enumerate(events)
            ),
        ]
        check_sizes(actions, what)
        try:
            call_dynamodb(lambda: self._transact(actions, call, what), what, writes=True)
        except KeyTaken as taken:
            return self._judge(intent, read_item(taken.item), call)
        except OutcomeUnknown as unknown:
            item = self._find_after(unknown, intent, what)
            if item is None:
                raise
            return self._judge(intent, item, call)
        return OnceResult("run", decode_result(body))

    def look(self, key: str, request: object, *, principal: str, operation: str) -> OnceResult | None:
        """What is stored for the key of the `principal` and the `operation`, by a consistent read; None: nothing.
        Raises KeyReused."""
        intent = self._intent(key, request, principal, operation)
        item = self._find(intent, f"look({key!r}) on table {self.name!r}")
        return None if item is None else self._judge(intent, item, "")

    def _claim(self, record: Mapping[str, Any], now: int) -> dict[str, Any]:
        return {
            "Put": {
                "TableName": self.name,
                "Item": record,
                "ConditionExpression": "attribute_not_exists(#pk) OR #expires <= :now",
                "ExpressionAttributeNames": {"#pk": "pk", "#expires": "expires"},
                "ExpressionAttributeValues": {":now": {"N": str(now)}},
                "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
            }
        }

    def _find(self, intent: _Intent, what: str) -> dict[str, Any] | None:
        found = call_dynamodb(
            lambda: self.client.get_item(TableName=self.name, Key={"pk": {"S": intent.pk}}, ConsistentRead=True),
            what,
            writes=False,
        )
        item = read_item(found.get("Item", {}))
        return item if item and item["expires"] > self._now_s() else None

    def _find_after(self, unknown: OutcomeUnknown, intent: _Intent, what: str) -> dict[str, Any] | None:
        """The record, where DynamoDB answers but the outcome of the call is unknown. None decides nothing: the first
        send may still be under way."""
        try:
            return self._find(intent, what) if was_answered(unknown) else None
        except OnefoldError:
            return None

    def insert_once(
        self, table: str, item: Mapping[str, Any], *, on: str, compare: bool | Literal["tell"] = True
    ) -> Inserted[dict[str, Any]]:
        """Put an item unless there is one with its key; `on` is the attribute that is the table's partition key
        (compared with DescribeTable, once for a table): another one is a ProgrammerError. The item that is there is
        compared by the values that were given: other ones are RowDiffers, or told with compare="tell". A put whose
        answer was lost is found as its own item: `same`, not `created`."""
        if on not in item:
            raise ProgrammerError(f"insert_once({table!r}, on={on!r}): the item has no {on!r}, it has {sorted(item)}")
        what = f"insert_once into table {table!r}"
        partition_key = self._partition_key(table, what)
        if on != partition_key:
            # A condition on another attribute holds for an item that is there without it, and the put replaces it.
            raise ProgrammerError(
                f"insert_once({table!r}, on={on!r}): the partition key of the table is {partition_key!r}, and DynamoDB "
                f"keeps items apart by it: write on={partition_key!r}"
            )
        written = write_item(item, what)
        check_sizes([{"Put": {"Item": written}}], what)
        try:
            call_dynamodb(lambda: self._put_new(table, written, on), what, writes=True)
        except KeyTaken as taken:
            there = read_item(taken.item)
            given = read_item(written)
            differing = tuple(name for name in given if there.get(name, _MISSING) != given[name]) if compare else ()
            if differing and compare is True:
                error = RowDiffers(
                    f"table {table!r} has an item with {on}={item[on]!r} and other values of {', '.join(differing)}"
                )
                error.columns = differing
                raise error from None
            if not compare:
                return Inserted(there, InsertOutcome.EXISTING)
            return Inserted(there, InsertOutcome.DIFFERENT if differing else InsertOutcome.SAME, differing)
        return Inserted(read_item(written), InsertOutcome.CREATED)

    def _partition_key(self, table: str, what: str) -> str:
        if table not in self._partition_keys:
            described = call_dynamodb(lambda: self.client.describe_table(TableName=table), what, writes=False)
            [name] = [key["AttributeName"] for key in described["Table"]["KeySchema"] if key["KeyType"] == "HASH"]
            self._partition_keys[table] = name
        return self._partition_keys[table]

    def _put_new(self, table: str, written: Mapping[str, Any], on: str) -> None:
        try:
            self.client.put_item(
                TableName=table,
                Item=written,
                ConditionExpression="attribute_not_exists(#on)",
                ExpressionAttributeNames={"#on": on},
                ReturnValuesOnConditionCheckFailure="ALL_OLD",
            )
        except self.client.exceptions.ConditionalCheckFailedException as error:
            raise KeyTaken(error.response["Item"]) from None

    def _transact(self, actions: Sequence[Mapping[str, Any]], call: str, what: str) -> None:
        try:
            self.client.transact_write_items(TransactItems=actions, ClientRequestToken=call)
        except self.client.exceptions.TransactionCanceledException as error:
            raise judge_cancelled(error.response.get("CancellationReasons", ()), what) from error

    def _intent(self, key: str, request: object, principal: str, operation: str) -> _Intent:
        texts: dict[str, object] = {"key": key, "principal": principal, "operation": operation}
        for name, given in texts.items():
            if not isinstance(given, str) or not given:
                raise ProgrammerError(f"{name}={given!r} must be a str that is not empty")
        if len(key) > 255 or not key.isprintable():
            raise ProgrammerError(f"key={key!r} must be 1 to 255 printable characters")
        try:
            by_value = compare_by_value(request)
        except RecursionError:
            by_value = request  # which has no JSON either: that is refused below
        body = serialise(operation, by_value, bytes_max=_REQUEST_BYTES_MAX)
        content = RequestContent(path="", query=b"", media_type="application/json", body=body, parameters=())
        scope = Scope(principal, operation)
        peppers = peppers_of(self._sealer)
        printed = fingerprint(content, canonical_json, key=scope.fingerprint_key(key, peppers[0] if peppers else b""))
        digest = scope.digest(key)
        return _Intent(
            key, digest, printed, Compared(content, printed, key, {digest: scope}, (canonical_json,), peppers)
        )

    def _judge(self, intent: _Intent, item: Mapping[str, Any], call: str) -> OnceResult:
        """What the record of a key means for a request with that key."""
        if item["version"] > SCHEMA_VERSION:
            raise StoreError(
                f"the record of key {intent.key!r} has version {item['version']}, and this release of onefold reads "
                f"{SCHEMA_VERSION}: run the newer release"
            )
        stored = item["answer"]
        if item["sealed"]:
            if self._sealer is None:
                raise ConfigurationError(f"the answer of key {intent.key!r} is sealed: give DynamoTable its sealer")
            stored = self._sealer.unseal(stored, intent.digest)
        elif self._sealer is not None and not self._unsealed_answers:
            raise ConfigurationError(
                f"the answer of key {intent.key!r} is not sealed, and this table seals its answers: it was stored "
                "before (read those with unsealed_answers=True for one retention), or not by onefold"
            )
        record = Record(intent.digest, item["fingerprint"], item["operation"], int(item["version"]), 200, b"", stored)
        if not is_same_request(intent.compared, record):
            raise KeyReused(f"the key {intent.key!r} was used for another request of {item['operation']!r}")
        return OnceResult("run" if item["call"] == call else "replay", decode_result(stored))

    def shard_of(self, message: Message) -> str:
        """Where an event waits. All of one key are in one shard, and one relay has it at a time."""
        spread = message.stream or message.id.encode()
        return f"{int.from_bytes(blake2b(spread, digest_size=2).digest()) % self.shards:03}"

    def _event_item(self, index: int, event: DynamoEvent) -> dict[str, Any]:
        """`shard` and `place` are what the index has it by; what is published is deleted."""
        message = self._outbox.make_event(
            event.topic, event.data, key=event.key, headers=event.headers, content_type=event.content_type
        )
        _, document = write_structured(replace(message, headers={}))
        return {
            "pk": f"event#{message.id}",
            "shard": self.shard_of(message),
            "place": f"{int(self._now_s() * 1000):015}#{index:03}#{message.id}",
            "event": document,
            "headers": dict(message.headers),
            "refused": 0,
        }


_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class _Intent:
    key: str
    digest: bytes
    fingerprint: bytes
    compared: Compared

    @property
    def pk(self) -> str:
        return f"key#{self.digest.hex()}"
