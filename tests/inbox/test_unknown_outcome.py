"""A COMMIT without an answer is looked up in the ledger. If it cannot be asked, nothing is claimed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from onefold._inbox.consumer import Consumer
from onefold._inbox.handler_call import perform_here
from onefold._inbox.handler_transaction import HandlerTookTooLong, HandlerTransaction
from onefold._inbox.message_identity import identity_of
from onefold._inbox.sql import STATEMENTS
from onefold._kernel.effects import Acquire, Batch, Call, Discard, Fetch, Now, Release
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.transaction import Transaction
from onefold.db.sqlite import SqliteDatabase
from onefold.errors import ConnectionLost, StoreUnavailable
from tests.inbox.backends import message
from tests.support.scripts import Really, Turn, play

LEASE_S = 10.0

#: The transaction began at 0.0, and the answer to its COMMIT is lost.
LOST: list[Turn] = [(Call, Really.CALL), (Batch, ConnectionLost("gone")), (Discard, None)]
HOOK: Turn = (Call, Really.CALL)


def ledger(*rows: tuple[str]) -> list[Turn]:
    return [(Acquire, None), (Fetch, list(rows)), (Release, None)]


def run(path: Path, heard: list[str], script: list[Turn]) -> Exception | None:
    def handler(given: Any, tx: Transaction[Any]) -> None:
        tx.after_commit(heard.append, "kept")
        tx.after_rollback(heard.append, "undone")

    consumer = Consumer(name="billing", topics=("order.placed",), handler=handler, lease_s=LEASE_S)
    tx = OwnedTransaction(ThreadExecutor(SqliteDatabase(path)))
    sql = STATEMENTS["postgres"]
    known = sql.handled("billing", identity_of("m1", "shop"))
    return play(HandlerTransaction(consumer, sql, perform_here).run(known, [message()], tx, (), 0.0), script)


def test_where_the_ledger_cannot_be_asked_neither_hook_is_called_and_the_message_comes_again(
    sqlite_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the handler took: how it ended is asked before that."""
    heard: list[str] = []
    unreachable: list[Turn] = [(Acquire, StoreUnavailable("no server"))]
    with pytest.raises(ConnectionLost):
        run(sqlite_path, heard, [*LOST, *unreachable])
    assert heard == []
    assert "consumer 'billing': it is not known whether its transaction was committed" in caplog.text


def test_a_ledger_row_is_a_commit(sqlite_path: Path) -> None:
    heard: list[str] = []
    assert run(sqlite_path, heard, [*LOST, *ledger(("m1",)), HOOK]) is None
    assert heard == ["kept"]


def test_no_ledger_row_after_the_lease_is_a_handler_that_was_cut_off(sqlite_path: Path) -> None:
    heard: list[str] = []
    failure = run(sqlite_path, heard, [*LOST, *ledger(), (Now, 2 * LEASE_S), HOOK])
    assert isinstance(failure, HandlerTookTooLong)
    assert isinstance(failure.__cause__, ConnectionLost)
    assert heard == ["undone"]


def test_no_ledger_row_within_the_lease_may_still_become_one(sqlite_path: Path) -> None:
    heard: list[str] = []
    with pytest.raises(ConnectionLost):
        run(sqlite_path, heard, [*LOST, *ledger(), (Now, 0.1)])
    assert heard == []
