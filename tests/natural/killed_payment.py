"""A payment that is killed before or after its n-th verb: `python -m tests.natural.killed_payment ADDRESS N EDGE`.

All natural writes in one transaction, after a look that locks the row, or its place. Without an N that is reached it
ends by itself, with 0.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from onefold import Onefold, Transaction
from onefold.db.psycopg import PsycopgDatabase
from onefold.db.sqlite import SqliteDatabase


class Counting:
    """A database whose verbs are counted, until one is the last."""

    def __init__(self, address: str, last: int, edge: str) -> None:
        self._inner: Any = PsycopgDatabase(address) if "://" in address else SqliteDatabase(address)
        self.dialect: str = self._inner.dialect
        self._last, self._edge = last, edge
        self.count = 0

    def acquire(self) -> Any:
        return CountedConnection(self, self._inner.acquire())

    def close(self) -> None:
        self._inner.close()

    def perform(self, verb: Callable[..., Any], *args: Any) -> Any:
        self.count += 1
        here = self.count == self._last
        if here and self._edge == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = verb(*args)
        if here:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer


class CountedConnection:
    def __init__(self, counting: Counting, inner: Any) -> None:
        self._counting = counting
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def query(self, statement: Any) -> Any:
        return self._counting.perform(self._inner.query, statement)

    def fetch(self, statement: Any) -> Any:
        return self._counting.perform(self._inner.fetch, statement)

    def batch(self, items: Any) -> Any:
        return self._counting.perform(self._inner.batch, items)


def pay(tx: Transaction[Any]) -> None:
    there = tx.lock_row("orders", where={"id": "o1"})
    assert there is None or there["status"] == "paid"
    with tx.exclusive("pay", "o1"):
        tx.insert_once("orders", {"id": "o1", "status": "new"}, on="id")
        moved = tx.transition(
            "orders", where={"id": "o1"}, state="status", come_from="new", to="paid", version="version"
        )
        assert moved.arrived
        entry = {"id": "payment-o1", "account": "a", "amount": 7}
        _ = tx.ledger_entry("entries", entry, on="id", balance="accounts", where={"id": "a"}, add={"balance": 7})


if __name__ == "__main__":
    place, number, edge = sys.argv[1:]
    counting = Counting(place, int(number), edge)
    once = Onefold(counting)
    with once.transaction() as tx:
        pay(tx)
    once.close()
