"""A key, items and events in one TransactWriteItems: who runs, who replays, and what is told. On moto, which proves
plumbing, not atomicity."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from itertools import permutations
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.config import Config
from botocore.exceptions import ClientError, ReadTimeoutError
from botocore.httpsession import URLLib3Session

from onefold import Keyring
from onefold.dynamodb import DynamoEvent, DynamoTable, ItemRefused, OnceResult
from onefold.errors import (
    ConfigurationError,
    KeyReused,
    OutcomeUnknown,
    ProgrammerError,
    RowDiffers,
    SchemaMissing,
    StatementRefused,
    StoreBusy,
)
from tests.dynamodb.requests import ASKED, count, place
from tests.support.fork_server import ROOT, fork_server
from tests.support.moto_server import PrivateMoto
from tests.support.patience import PATIENCE_S

LOOK = {"principal": "acme", "operation": "place order"}


def test_the_first_runs_the_second_replays_and_another_request_is_refused(
    table: DynamoTable, orders: str, client: Any
) -> None:
    assert table.look("k1", ASKED, **LOOK) is None
    first = place(table, orders)
    assert (first.outcome, first.answer) == ("run", {"order": "ord-42"})
    again = place(table, orders, asked=b'{"total": 5000.0, "order": "ord-42"}')
    assert (again.outcome, again.answer, again.replayed) == ("replay", {"order": "ord-42"}, True)
    assert table.look("k1", ASKED, **LOOK) == again
    with pytest.raises(KeyReused, match="'k1'"):
        place(table, orders, asked={"order": "ord-43"}, id="ord-43")
    assert (count(client, orders), count(client, table.name)) == (1, 2), "the record and one event"
    others = table.once("k1", ASKED, principal="other", operation="place order")
    assert others.outcome == "run", "keys of two principals never meet"


def test_a_condition_of_the_application_is_its_own_error_and_leaves_the_key_free(
    table: DynamoTable, orders: str, client: Any
) -> None:
    client.put_item(TableName=orders, Item={"id": {"S": "ord-42"}, "amount": {"N": "1"}})

    def reserve() -> OnceResult:
        return table.once(
            "k1",
            ASKED,
            principal="acme",
            operation="place order",
            items=[
                {
                    "ConditionCheck": {
                        "TableName": orders,
                        "Key": {"id": "no"},
                        "ConditionExpression": "attribute_not_exists(id)",
                    }
                },
                {
                    "Put": {
                        "TableName": orders,
                        "Item": {"id": "ord-42"},
                        "ConditionExpression": "attribute_not_exists(id) OR amount > :least",
                        "ExpressionAttributeValues": {":least": 100},
                    }
                },
            ],
            events=[DynamoEvent("order.placed", {})],
        )

    with pytest.raises(ItemRefused, match=r"items\[1\]") as told:
        reserve()
    assert told.value.index == 1
    assert count(client, table.name) == 0
    client.delete_item(TableName=orders, Key={"id": {"S": "ord-42"}})
    assert reserve().outcome == "run"


def test_a_caller_that_is_killed_before_it_has_its_answer_replays(
    table: DynamoTable, orders: str, client: Any, moto: PrivateMoto
) -> None:
    words = ("-m", "tests.dynamodb.requests", moto.url, table.name, orders)
    ran = fork_server().run(*words, cwd=ROOT, environment=dict(os.environ), within_s=PATIENCE_S)
    assert ran.returncode == -9, ran.stderr
    assert place(table, orders).outcome == "replay"
    assert (count(client, orders), count(client, table.name)) == (1, 2)


@contextmanager
def losing_answers(client: Any, times: int) -> Iterator[list[str]]:
    """DynamoDB gets the request, and the client no answer; the tokens that were sent."""
    tokens: list[str] = []

    def lose(request: Any, **_: Any) -> None:
        tokens.append(json.loads(request.body)["ClientRequestToken"])
        if len(tokens) <= times:
            URLLib3Session().send(request)
            raise ReadTimeoutError(endpoint_url=request.url)

    client.meta.events.register("before-send.dynamodb.TransactWriteItems", lose)
    try:
        yield tokens
    finally:
        client.meta.events.unregister("before-send.dynamodb.TransactWriteItems", lose)


def test_a_call_that_is_sent_again_under_its_token_has_run(table: DynamoTable, orders: str, client: Any) -> None:
    with losing_answers(client, 1) as tokens:
        assert place(table, orders).outcome == "run"
    assert len(tokens) == 2
    assert len(set(tokens)) == 1
    assert (count(client, orders), count(client, table.name)) == (1, 2)


def test_an_answer_that_stays_lost_is_unknown_and_the_key_decides(table: DynamoTable, orders: str, client: Any) -> None:
    with losing_answers(client, 1000), pytest.raises(OutcomeUnknown, match="did not answer"):
        place(table, orders)
    assert place(table, orders).outcome == "replay"
    assert count(client, orders) == 1


@contextmanager
def answering(client: Any, code: str, status: int, *, written: bool) -> Iterator[None]:
    """The first send arrives, where `written`, and its answer is lost; those after it have this error."""
    sends = 0

    def answer(request: Any, **_: Any) -> Any:
        nonlocal sends
        sends += 1
        if sends == 1:
            if written:
                URLLib3Session().send(request)
            raise ReadTimeoutError(endpoint_url=request.url)
        body = json.dumps({"__type": f"x#{code}", "message": "m"}).encode()
        headers: Any = {"content-type": "application/x-amz-json-1.0"}
        found: Any = AWSResponse(request.url, status, headers, None)
        found._content = body
        return found

    client.meta.events.register("before-send.dynamodb.TransactWriteItems", answer)
    try:
        yield
    finally:
        client.meta.events.unregister("before-send.dynamodb.TransactWriteItems", answer)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("ThrottlingException", 400),
        ("TransactionInProgressException", 400),
        ("ServiceUnavailable", 503),
        ("InternalFailure", 500),
        ("ExpiredTokenException", 400),
    ],
)
def test_an_error_of_a_second_send_says_nothing_of_the_first_and_the_record_does(
    table: DynamoTable, orders: str, moto: PrivateMoto, code: str, status: int
) -> None:
    config = Config(retries={"total_max_attempts": 2, "mode": "standard"})
    client = moto.session.client("dynamodb", endpoint_url=moto.url, config=config)
    twice = DynamoTable(table.name, client=client, source="shop")
    with answering(client, code, status, written=True):
        assert place(twice, orders).outcome == "run"
    with answering(client, code, status, written=False), pytest.raises(OutcomeUnknown, match=code):
        place(twice, orders, key="k2")
    assert place(twice, orders, key="k2").outcome == "run"


def test_a_throttle_of_the_only_send_is_busy(table: DynamoTable, orders: str, client: Any) -> None:
    class Once(Throttled):
        def transact_write_items(self, **_: Any) -> Any:
            answer: Any = {
                "Error": {"Code": "ThrottlingException", "Message": "m"},
                "ResponseMetadata": {"RetryAttempts": 0, "HTTPStatusCode": 400},
            }
            raise ClientError(answer, "TransactWriteItems")

    with pytest.raises(StoreBusy):
        place(DynamoTable(table.name, client=Once(client, ()), source="shop"), orders)


def test_a_conflict_at_the_key_is_busy_whatever_the_items_met(table: DynamoTable, orders: str, client: Any) -> None:
    met = Throttled(client, ("TransactionConflict", "ConditionalCheckFailed", "None"))
    with pytest.raises(StoreBusy, match="TransactionConflict"):
        place(DynamoTable(table.name, client=met, source="shop"), orders)


class Throttled:
    """A client that is cancelled so often, for these reasons."""

    def __init__(self, client: Any, codes: tuple[str, ...], times: int = 1) -> None:
        self.client, self.codes, self.times = client, codes, times

    def __getattr__(self, name: str) -> Any:
        return getattr(self.client, name)

    def transact_write_items(self, **request: Any) -> Any:
        self.times -= 1
        if self.times < 0:
            return self.client.transact_write_items(**request)
        reasons = [{"Code": code, "Message": code} for code in self.codes]
        raise self.client.exceptions.TransactionCanceledException(
            {"Error": {"Code": "TransactionCanceledException", "Message": ""}, "CancellationReasons": reasons},
            "TransactWriteItems",
        )


@pytest.mark.parametrize("code", ["TransactionConflict", "ThrottlingError", "ProvisionedThroughputExceeded"])
def test_what_is_throttled_or_in_conflict_is_busy_and_then_fine(
    table: DynamoTable, orders: str, client: Any, code: str
) -> None:
    throttled = DynamoTable(table.name, client=Throttled(client, ("None", code, "None")), source="shop")
    with pytest.raises(StoreBusy, match=code) as told:
        place(throttled, orders)
    assert told.value.retryable
    assert place(throttled, orders).outcome == "run"


def test_a_reason_that_does_not_pass_is_refused(table: DynamoTable, orders: str, client: Any) -> None:
    wrong = DynamoTable(
        table.name, client=Throttled(client, ("None", "ThrottlingError", "ValidationError")), source="shop"
    )
    with pytest.raises(StatementRefused, match="ValidationError"):
        place(wrong, orders)


def test_what_does_not_fit_into_a_transaction_is_told_before_it_is_sent(table: DynamoTable, orders: str) -> None:
    def once(**given: Any) -> OnceResult:
        return table.once("k1", ASKED, principal="acme", operation="place order", **given)

    def put(**values: Any) -> dict[str, Any]:
        return {"Put": {"TableName": orders, "Item": {"id": "1", **values}}}

    with pytest.raises(ProgrammerError, match=r"writes 101 items.*takes 100"):
        once(items=[put()] * 60, events=[DynamoEvent("order.placed", {})] * 40)
    with pytest.raises(ProgrammerError, match=r"item of 4\d{5} bytes \(number 1.*409600"):
        once(items=[put(text="x" * 409_600)])
    with pytest.raises(ProgrammerError, match=r"4\d{6} bytes; DynamoDB takes 4194304"):
        once(items=[put(text="x" * 400_000)] * 11)
    with pytest.raises(ProgrammerError, match=r"items\[0\] has total=1.5.*Decimal"):
        once(items=[put(total=1.5)])
    with pytest.raises(ProgrammerError, match=r"items\[0\].*must be one of Put"):
        once(items=[{"id": "1"}])
    with pytest.raises(ConfigurationError, match="source"):
        DynamoTable("t", client=table.client).once("k", 1, principal="a", operation="b", events=[DynamoEvent("t", 1)])
    assert table.look("k1", ASKED, **LOOK) is None


def test_a_record_whose_time_is_over_counts_as_none_while_it_is_still_there(
    orders: str, client: Any, table: DynamoTable
) -> None:
    now = [1_000_000.0]
    timed = DynamoTable(table.name, client=client, source="shop", retention_s=60, now_s=lambda: now[0])
    assert place(timed, orders).outcome == "run"
    now[0] += 59
    assert place(timed, orders).outcome == "replay"
    now[0] += 1
    assert timed.look("k1", ASKED, **LOOK) is None
    assert place(timed, orders).outcome == "run"
    ttl = client.describe_time_to_live(TableName=table.name)["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "expires")
    table.create()  # a second time: nothing happens


def test_a_sealed_answer_is_read_with_the_ring_and_after_its_rotation(
    orders: str, client: Any, table: DynamoTable
) -> None:
    old, new = Keyring({"a": b"a" * 32}, write="a"), Keyring({"a": b"a" * 32, "b": b"b" * 32}, write="b")
    assert place(DynamoTable(table.name, client=client, source="shop", sealer=old), orders).outcome == "run"
    [record] = [item for item in client.scan(TableName=table.name)["Items"] if item["pk"]["S"].startswith("key#")]
    assert b"ord-42" not in record["answer"]["B"]
    rotated = DynamoTable(table.name, client=client, source="shop", sealer=new)
    assert place(rotated, orders) == OnceResult("replay", {"order": "ord-42"})
    with pytest.raises(KeyReused):
        place(rotated, orders, asked={"order": 1})
    with pytest.raises(ConfigurationError, match="sealed"):
        place(table, orders)


def test_a_table_with_a_sealer_refuses_an_answer_that_is_not_sealed(
    orders: str, client: Any, table: DynamoTable
) -> None:
    ring = Keyring({"a": b"a" * 32}, write="a")
    place(table, orders)
    with pytest.raises(ConfigurationError, match=r"'k1' is not sealed.*unsealed_answers=True"):
        place(DynamoTable(table.name, client=client, source="shop", sealer=ring), orders)
    moving = DynamoTable(table.name, client=client, source="shop", sealer=ring, unsealed_answers=True)
    assert place(moving, orders).outcome == "replay"


@pytest.mark.parametrize("wrong", ["key", "principal", "operation"])
@pytest.mark.parametrize("value", ["", 5, None])
def test_who_asks_for_what_under_which_key_is_text(table: DynamoTable, wrong: str, value: Any) -> None:
    given: dict[str, Any] = {"key": "k", "principal": "acme", "operation": "o", wrong: value}
    with pytest.raises(ProgrammerError, match=f"{wrong}={value!r} must be a str"):
        table.once(request={}, **given)


def test_decimals_of_a_request_are_compared_by_their_value(table: DynamoTable) -> None:
    def outcome(key: str, total: Any) -> str:
        return table.once(key, {"lines": [{"total": total}]}, principal="acme", operation="o").outcome

    long = "0." + "1" * 37
    for key, first, *others in (
        ("k1", 5000, Decimal(5000), Decimal("5E+3"), 5000.0),
        ("k2", Decimal("1.50"), Decimal("1.5"), 1.5),
        ("k3", Decimal(long), Decimal(long + "0")),
    ):
        assert outcome(key, first) == "run"
        assert [outcome(key, other) for other in others] == ["replay"] * len(others), key
    for key, other in (("k1", Decimal("5000.1")), ("k2", "1.5"), ("k3", Decimal(long[:-1] + "2"))):
        with pytest.raises(KeyReused):
            outcome(key, other)
    circle: dict[str, Any] = {}
    circle["circle"] = circle
    with pytest.raises(ProgrammerError, match="cannot be written as JSON"):
        table.once("k4", circle, principal="acme", operation="o")


def test_numbers_that_are_too_long_are_told_and_nested_bytes_are_bytes(table: DynamoTable, orders: str) -> None:
    with pytest.raises(ProgrammerError, match=r"has total=.*38 digits"):
        table.insert_once(orders, {"id": "1", "total": Decimal("0." + "1" * 40)}, on="id")
    item = {"id": "1", "map": {"b": b"x", "list": [b"y"]}, "set": {b"z"}}
    row, _ = table.insert_once(orders, item, on="id")
    assert repr(row["map"]) == repr(item["map"])
    assert repr(row["set"]) == repr(item["set"])


def test_a_missing_table_is_told_with_the_way_out(client: Any, orders: str) -> None:
    with pytest.raises(SchemaMissing, match=r"create\(\)"):
        place(DynamoTable("not-there", client=client, source="shop"), orders)


def test_insert_once_tells_created_from_same_and_different(table: DynamoTable, orders: str) -> None:
    order = {"id": "ord-1", "total": Decimal("50.5"), "blob": b"\x00"}
    row, created = table.insert_once(orders, order, on="id")
    assert (row, created) == (order, True)
    again = table.insert_once(orders, order, on="id")
    assert (again.row, again.outcome.value) == (order, "same")
    other = {**order, "total": 7}
    with pytest.raises(RowDiffers, match="total") as told:
        table.insert_once(orders, other, on="id")
    assert told.value.columns == ("total",)
    told_of = table.insert_once(orders, other, on="id", compare="tell")
    assert (told_of.outcome.value, told_of.differing, told_of.row) == ("different", ("total",), order)
    assert table.insert_once(orders, other, on="id", compare=False).outcome.value == "existing"
    with pytest.raises(ProgrammerError, match="no 'key'"):
        table.insert_once(orders, order, on="key")


def test_insert_once_on_what_is_not_the_partition_key_overwrites_nothing(
    table: DynamoTable, orders: str, client: Any
) -> None:
    table.insert_once(orders, {"id": "ord-1", "total": 1}, on="id")
    with pytest.raises(ProgrammerError, match=r"partition key of the table is 'id'.*on='id'"):
        table.insert_once(orders, {"id": "ord-1", "number": 2}, on="number")
    found = client.get_item(TableName=orders, Key={"id": {"S": "ord-1"}})["Item"]
    assert found == {"id": {"S": "ord-1"}, "total": {"N": "1"}}
    with pytest.raises(SchemaMissing):
        table.insert_once("not-there", {"id": "1"}, on="id")


class Turns:
    """A client whose calls are made in this order of their callers; one that has no more calls is passed over."""

    def __init__(self, client: Any, order: tuple[str, ...]) -> None:
        self.client, self.order, self.changed = client, list(order), threading.Condition()

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.client, name)
        if name not in ("transact_write_items", "get_item", "put_item"):
            return found

        def call(**request: Any) -> Any:
            me = threading.current_thread().name
            with self.changed:
                assert self.changed.wait_for(lambda: not self.order or self.order[0] == me, PATIENCE_S)
                try:
                    return found(**request)
                finally:
                    del self.order[:1]
                    self.changed.notify_all()

        return call

    def leave(self, name: str) -> None:
        with self.changed:
            self.order = [each for each in self.order if each != name]
            self.changed.notify_all()


def run_both(client: Any, order: tuple[str, ...], caller: Callable[[Any], str]) -> list[str]:
    """What two callers say that they did, their calls in this order."""
    turns, said = Turns(client, order), []

    def act(name: str) -> None:
        try:
            said.append(caller(turns))
        finally:
            turns.leave(name)

    threads = [threading.Thread(target=act, args=(name,), name=name) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    return sorted(said)


def test_of_two_callers_one_runs_at_every_interleaving_and_check_then_put_is_found_out(
    table: DynamoTable, orders: str, client: Any
) -> None:
    for number, order in enumerate(sorted(set(permutations("aabb")))):

        def once(turns: Any, key: str = f"k{number}") -> str:
            return place(DynamoTable(table.name, client=turns, source="shop"), orders, key=key).outcome

        assert run_both(client, order, once) == ["replay", "run"], order

    def check_then_put(turns: Any) -> str:
        """The control."""
        if "Item" in turns.get_item(TableName=orders, Key={"id": {"S": f"c{number}"}}, ConsistentRead=True):
            return "replay"
        turns.put_item(TableName=orders, Item={"id": {"S": f"c{number}"}})
        return "run"

    doubles = []
    for number, order in enumerate(sorted(set(permutations("aabb")))):  # noqa: B007
        if run_both(client, order, check_then_put) == ["run", "run"]:
            doubles.append("".join(order))
    assert doubles == ["abab", "abba", "baab", "baba"]


def test_an_error_that_has_no_meaning_of_its_own_is_unavailable(table: DynamoTable, orders: str, client: Any) -> None:
    class Away(Throttled):
        def transact_write_items(self, **_: Any) -> Any:
            raise ClientError({"Error": {"Code": "InternalServerError", "Message": "m"}}, "TransactWriteItems")

    with pytest.raises(OutcomeUnknown):
        place(DynamoTable(table.name, client=Away(client, ()), source="shop"), orders)
