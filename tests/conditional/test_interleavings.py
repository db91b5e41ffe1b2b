"""Two conditional writes at every interleaving of their statements: one does it, and the other is told 412."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from onefold import Transaction
from onefold._http.condition_errors import ConditionFailed
from onefold._http.conditional import Conditional, RequestCondition
from onefold._http.request import Request
from onefold._kernel.effects import HandlerStatement
from onefold._kernel.owned_transaction import OwnedTransaction
from tests.natural.gates import take_turns
from tests.natural.stages import address_for, look
from tests.support.schedules import every_schedule

Work = Callable[[Transaction[Any]], object]

RULES = Conditional(etag="version")


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    return address_for(request, request.param)


def condition(tx: Transaction[Any], method: str, header: str, value: bytes) -> RequestCondition:
    assert isinstance(tx, OwnedTransaction)
    return RequestCondition(Request(method, "/orders/o1", headers=((header.encode(), value),)), RULES, "a test", tx)


def query(tx: Transaction[Any], sql: str) -> list[Any]:
    """By the verb that has its turn."""
    connection: Any = tx._executor.connection
    tx._touched = True
    rows: list[Any] = connection.query(HandlerStatement(sql)).rows
    return rows


_UPDATE = "UPDATE orders SET version = version + 1 WHERE id = 'o1' RETURNING 1"


def replace(tx: Transaction[Any]) -> object:
    condition(tx, "PUT", "if-match", b'"1"').lock("orders", where={"id": "o1"})
    query(tx, _UPDATE)
    return 200


def create(tx: Transaction[Any]) -> object:
    condition(tx, "PUT", "if-none-match", b"*").lock("orders", where={"id": "o1"})
    query(tx, "INSERT INTO orders (id, version) VALUES ('o1', 2) RETURNING 1")
    return 200


def delete(tx: Transaction[Any]) -> object:
    condition(tx, "DELETE", "if-match", b'"1"').lock("orders", where={"id": "o1"})
    query(tx, "DELETE FROM orders WHERE id = 'o1' RETURNING 1")
    return 200


def prepare(address: str, *, there: bool) -> None:
    look(address, "DELETE FROM orders")
    if there:
        look(address, "INSERT INTO orders (id, version) VALUES ('o1', 1)")


def is_single(address: str, answers: list[object], left: list[tuple[int]]) -> bool:
    refused = [answer for answer in answers if isinstance(answer, ConditionFailed)]
    versions = look(address, "SELECT version FROM orders WHERE id = 'o1'")
    return answers.count(200) == 1 and len(refused) == 1 and versions == left


@pytest.mark.parametrize(
    ("works", "there", "left"),
    [
        ([replace, replace], True, [(2,)]),
        ([create, create], False, [(2,)]),
        ([delete, delete], True, []),
    ],
    ids=["replace", "create", "delete"],
)
def test_one_of_two_does_it_and_the_other_is_refused(
    address: str, works: list[Work], there: bool, left: list[tuple[int]]
) -> None:
    ran = 0
    for choices in every_schedule(limit=300):
        prepare(address, there=there)
        answers, went = take_turns(address, works, choices)
        assert is_single(address, answers, left), f"{went}: {answers}"
        ran += 1
    assert ran >= 2


def test_a_replacement_and_a_removal_exclude_each_other(address: str) -> None:
    ends = set()
    for choices in every_schedule(limit=300):
        prepare(address, there=True)
        (replaced, deleted), went = take_turns(address, [replace, delete], choices)
        left = look(address, "SELECT version FROM orders WHERE id = 'o1'")
        refused = replaced if deleted == 200 else deleted
        assert isinstance(refused, ConditionFailed), f"{went}: {replaced} {deleted}"
        assert refused.etag == (None if deleted == 200 else '"2"')
        assert left == ([] if deleted == 200 else [(2,)])
        ends.add(deleted == 200)
    assert ends == {True, False}


# --- controls: what the harness must find ---------------------------------------------------------------------


def check_without_lock(tx: Transaction[Any]) -> object:
    [(version,)] = query(tx, "SELECT version FROM orders WHERE id = 'o1'")
    condition(tx, "PUT", "if-match", b'"1"').check({"version": version})
    query(tx, _UPDATE)
    return 200


def check_outside(address: str) -> Work:
    """As a layer in front of the handler would, on a connection of its own."""

    def replace_unlocked(tx: Transaction[Any]) -> object:
        query(tx, "SELECT 1")
        [(version,)] = look(address, "SELECT version FROM orders WHERE id = 'o1'")
        condition(tx, "PUT", "if-match", b'"1"').check({"version": version})
        query(tx, _UPDATE)
        return 200

    return replace_unlocked


@pytest.mark.parametrize("planted", ["without a lock", "outside"])
def test_a_planted_race_is_found(request: pytest.FixtureRequest, planted: str) -> None:
    address = address_for(request, "postgres")
    work = check_without_lock if planted == "without a lock" else check_outside(address)
    for choices in every_schedule(limit=300):
        prepare(address, there=True)
        answers, _ = take_turns(address, [work] * 2, choices)
        if not is_single(address, answers, [(2,)]):
            return
    pytest.fail("no schedule has shown the planted race")
