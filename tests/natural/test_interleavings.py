"""Two and three callers at every interleaving of their statements: one makes it, and each is told the truth."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from onefold import InsertOutcome, Transaction, TransitionOutcome
from onefold._kernel.effects import HandlerStatement
from tests.natural.gates import take_turns
from tests.natural.stages import address_for, look
from tests.support.schedules import Choices, every_schedule, some_schedules

Work = Callable[[Transaction[Any]], object]


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest) -> str:
    return address_for(request, request.param)


def empty(address: str) -> None:
    for statement in ("DELETE FROM orders", "DELETE FROM entries", "UPDATE accounts SET balance = 100 WHERE id = 'a'"):
        look(address, statement)
    look(address, "INSERT INTO orders (id, status) VALUES ('paid', 'paid')")


def insert(tx: Transaction[Any]) -> object:
    return tx.insert_once("orders", {"id": "o1", "note": "x"}, on="id", compare=True).outcome


def insert_and_fail(tx: Transaction[Any]) -> object:
    assert tx.insert_once("orders", {"id": "o1", "note": "x"}, on="id")
    raise ZeroDivisionError


def delete(tx: Transaction[Any]) -> object:
    """By the same verb, so that it has its turn."""
    connection: Any = tx._executor.connection
    tx._touched = True
    sql = "DELETE FROM orders WHERE id = 'o1' RETURNING id"
    return len(connection.query(HandlerStatement(sql)).rows)


def ship(tx: Transaction[Any]) -> object:
    moved = tx.transition(
        "orders", where={"id": "paid"}, state="status", come_from="paid", to="shipped", version="version"
    )
    return moved.outcome


def enter(tx: Transaction[Any]) -> object:
    entry = {"id": "e1", "account": "a", "amount": 7}
    return tx.ledger_entry("entries", entry, on="id", balance="accounts", where={"id": "a"}, add={"balance": 7}).created


def schedules(callers: int) -> Iterator[Choices]:
    """All of two callers; of three a sample, which `soak` makes larger."""
    return every_schedule(limit=300) if callers == 2 else some_schedules(range(8))


def judge_inserts(address: str, answers: list[object]) -> bool:
    made = [answer for answer in answers if answer is InsertOutcome.CREATED]
    told = all(isinstance(answer, InsertOutcome) for answer in answers)
    return told and len(made) == 1 and look(address, "SELECT count(*) FROM orders WHERE note = 'x'") == [(1,)]


def judge_moves(address: str, answers: list[object]) -> bool:
    moved = [answer for answer in answers if answer is TransitionOutcome.MOVED]
    rest = [answer for answer in answers if answer is TransitionOutcome.ALREADY_THERE]
    version = look(address, "SELECT version FROM orders WHERE id = 'paid'")
    return len(moved) == 1 and len(moved) + len(rest) == len(answers) and version == [(1,)]


def judge_entries(address: str, answers: list[object]) -> bool:
    balance = look(address, "SELECT balance FROM accounts WHERE id = 'a'")
    return sorted(map(str, answers)) == ["False"] * (len(answers) - 1) + ["True"] and balance == [(107,)]


@pytest.mark.parametrize("callers", [2, 3])
@pytest.mark.parametrize(
    ("work", "judge"),
    [(insert, judge_inserts), (ship, judge_moves), (enter, judge_entries)],
    ids=["insert", "move", "enter"],
)
def test_one_of_several_does_it_and_each_is_told_so(
    address: str, work: Work, judge: Callable[[str, list[object]], bool], callers: int
) -> None:
    ran = 0
    for choices in schedules(callers):
        empty(address)
        answers, went = take_turns(address, [work] * callers, choices)
        assert judge(address, answers), f"{went}: {answers}"
        ran += 1
    assert ran >= 2


def test_a_rollback_lets_the_next_one_create(address: str) -> None:
    for choices in every_schedule(limit=300):
        empty(address)
        (failed, made), went = take_turns(address, [insert_and_fail, insert], choices)
        # The row of the one that failed is never found: it is rolled back, and waited for until then.
        assert made in (InsertOutcome.CREATED,), went
        assert isinstance(failed, ZeroDivisionError | AssertionError), went
        assert look(address, "SELECT count(*) FROM orders WHERE note = 'x'") == [(1,)]


def test_a_row_that_is_deleted_meanwhile_is_inserted_again(address: str) -> None:
    outcomes = set()
    for choices in every_schedule(limit=300):
        empty(address)
        look(address, "INSERT INTO orders (id, note) VALUES ('o1', 'x')")
        (told, deleted), went = take_turns(address, [insert, delete], choices)
        left = look(address, "SELECT count(*) FROM orders WHERE id = 'o1'")
        assert (told, left) in ((InsertOutcome.CREATED, [(1,)]), (InsertOutcome.SAME, [(0,)])), f"{went}: {told} {left}"
        assert deleted == 1
        outcomes.add(told)
    assert outcomes == {InsertOutcome.CREATED, InsertOutcome.SAME}


# --- controls: what the harness must find ---------------------------------------------------------------------


def _query(tx: Transaction[Any], sql: str) -> list[Any]:
    connection: Any = tx._executor.connection
    tx._touched = True
    rows: list[Any] = connection.query(HandlerStatement(sql)).rows
    return rows


def check_then_insert(tx: Transaction[Any]) -> object:
    """On a key that no index keeps single."""
    if _query(tx, "SELECT 1 FROM orders WHERE note = 'x'"):
        return InsertOutcome.SAME
    _query(
        tx,
        "INSERT INTO orders (id, note) SELECT 'c' || count(*) || '-' || pg_backend_pid(), 'x' FROM orders RETURNING 1",
    )
    return InsertOutcome.CREATED


def believe_the_count(tx: Transaction[Any]) -> object:
    """An UPDATE that finds its row has a count of one, whether it changes anything or not."""
    moved = _query(tx, "UPDATE orders SET status = 'shipped', version = version + 1 WHERE id = 'paid' RETURNING 1")
    return TransitionOutcome.MOVED if moved else TransitionOutcome.ALREADY_THERE


def check_then_add(tx: Transaction[Any]) -> object:
    if _query(tx, "SELECT 1 FROM entries WHERE account = 'a'"):
        return False
    _query(tx, "INSERT INTO entries VALUES (pg_backend_pid()::text, 'a', 7) RETURNING 1")
    _query(tx, "UPDATE accounts SET balance = balance + 7 WHERE id = 'a' RETURNING 1")
    return True


@pytest.mark.parametrize(
    ("planted", "judge"),
    [(check_then_insert, judge_inserts), (believe_the_count, judge_moves), (check_then_add, judge_entries)],
)
def test_a_planted_race_is_found(
    request: pytest.FixtureRequest, planted: Work, judge: Callable[[str, list[object]], bool]
) -> None:
    address = address_for(request, "postgres")
    for choices in every_schedule(limit=300):
        empty(address)
        answers, _ = take_turns(address, [planted] * 2, choices)
        if not judge(address, answers):
            return
    pytest.fail("no schedule has shown the planted race")
