"""Calls of a handler inside of its transaction."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._kernel.effects import Flow, HandlerStatement, NamedRows, Query
from onefold._kernel.inside_calls import InsideCall, InsideCalls
from onefold.errors import ProgrammerError


class Connection:
    """Ends the transaction while it executes a statement."""

    def __init__(self, tx: Tx) -> None:
        self._tx = tx
        self.executed: list[str] = []

    async def query(self, statement: HandlerStatement) -> NamedRows:
        self.executed.append(statement.sql)
        self._tx._over = "the transaction has ended"
        return NamedRows((), [])


class Tx:
    """A transaction as far as a call sees it, which is its own executor."""

    _begun = _touched = False
    _over: Any = None

    def __init__(self) -> None:
        self._executor: Any = self
        self.connection = Connection(self)
        self.query = self.connection.query

    def _check(self) -> None:
        if self._over is not None:
            raise ProgrammerError(self._over)

    def _note_failure(self, error: Exception, begins: bool) -> None: ...


async def test_a_call_that_a_handler_has_left_behind_executes_nothing_after_its_transaction() -> None:
    """Between COMMIT and the return of its connection, the next statement would be a transaction by itself."""
    tx = Tx()

    async def find_and_write() -> Any:
        await Query(HandlerStatement("SELECT"))
        await Query(HandlerStatement("INSERT"))

    def make() -> Flow[Any]:
        return find_and_write()

    with pytest.raises(ProgrammerError, match="has ended"):
        await InsideCall("tx.transition(...)", make, tx, InsideCalls(), False)
    assert tx.connection.executed == ["SELECT"]
