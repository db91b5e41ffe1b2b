"""A process that is killed at any verb of its natural writes leaves all of them or nothing, and a retry completes."""

from __future__ import annotations

import os
import signal

import pytest

from onefold import Onefold
from tests.natural.killed_payment import pay
from tests.natural.stages import address_for, look
from tests.support.fork_server import ROOT, fork_server
from tests.support.patience import PATIENCE_S

WHOLE = ([("paid", 1)], [("payment-o1",)], [(107,)])
NOTHING: tuple[list[object], list[object], list[object]] = ([], [], [(100,)])


def pay_and_die(address: str, number: int, edge: str) -> int:
    words = ("-m", "tests.natural.killed_payment", address, str(number), edge)
    return fork_server().run(*words, cwd=ROOT, environment=dict(os.environ), within_s=PATIENCE_S).returncode


def committed(address: str) -> tuple[list[object], ...]:
    return (
        list(look(address, "SELECT status, version FROM orders")),
        list(look(address, "SELECT id FROM entries")),
        list(look(address, "SELECT balance FROM accounts WHERE id = 'a'")),
    )


@pytest.mark.parametrize("stride", [3, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("database", ["sqlite", "postgres"])
def test_a_kill_leaves_all_or_nothing_and_a_retry_completes(
    request: pytest.FixtureRequest, database: str, stride: int
) -> None:
    address = address_for(request, database)
    found = set()
    once = Onefold(address)
    for number in range(1, 40, stride):
        edge = "before" if number % 2 else "after"
        for statement in (
            "DELETE FROM orders",
            "DELETE FROM entries",
            "UPDATE accounts SET balance = 100 WHERE id = 'a'",
        ):
            look(address, statement)
        ended = pay_and_die(address, number, edge)
        left = committed(address)
        assert left in (WHOLE, NOTHING), f"{edge} verb {number}: {left}"
        found.add(left == WHOLE)
        if ended == 0:
            break
        assert ended == -signal.SIGKILL
        for _ in range(2):  # a retry, and one more: it changes nothing
            with once.transaction() as tx:
                pay(tx)
            assert committed(address) == WHOLE
    else:
        pytest.fail("it never came to its end")
    once.close()
    assert found == {True, False}
