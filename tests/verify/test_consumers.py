"""A consumer of onefold handles each message once in the eyes of the prober; one that keeps no ledger does not."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from onefold import Message, Onefold, Transaction
from onefold.testing.memory_broker import MemoryBroker
from tests.verify.model_api import ModelApi
from tests.verify.probes import probe


class Shipping(ModelApi):
    """What is counted are the rows of a table."""

    path: Path

    def count(self) -> int:
        with closing(sqlite3.connect(self.path)) as connection:
            [(number,)] = connection.execute("SELECT count(*) FROM shipped").fetchall()
            return int(number)


@pytest.mark.parametrize("forgetful", [False, True])
def test_a_consumer_is_judged_by_what_it_did(forgetful: bool, tmp_path: Path) -> None:
    shipping = Shipping()
    shipping.path = tmp_path / "shop.db"
    once = Onefold(shipping.path, source="shop")
    with once.transaction() as tx:
        tx.connection.execute("CREATE TABLE shipped (message TEXT)")

    @once.consumer("shipping", topic="order.placed")
    def ship(message: Message, tx: Transaction[Any]) -> None:
        tx.connection.execute("INSERT INTO shipped VALUES (?)", (message.id,))

    broker = MemoryBroker(once)

    def publish(name: str) -> None:
        broker.publish("order.placed", {}, message_id=name)
        if forgetful:
            with closing(sqlite3.connect(shipping.path)) as connection:
                connection.execute("DELETE FROM onefold_inbox")
                connection.commit()

    try:
        report = probe(shipping, only=("redelivery",), publish=publish)
    finally:
        once.close()
    assert report.verdict == ("failed" if forgetful else "passed"), report.findings
