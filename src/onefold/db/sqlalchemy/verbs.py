"""What a batch means on a `sqlalchemy.Connection`: what is common, and Postgres."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, RootTransaction, TextClause, exc, text

from onefold._kernel.effects import Boundary, Row, Statement, Step
from onefold.db.postgres import BOUNDARIES
from onefold.db.sqlalchemy.errors import ENDED, mapped
from onefold.db.sqlalchemy.watching import let_go, take
from onefold.errors import ConnectionLost, TransactionEnded, TransactionMisused

_PLACEHOLDER = re.compile(r"[$?](\d+)")

#: What text() would take for a parameter of its own.
_COLON = re.compile(r"(?<![:\w\\]):(?=\w)")


class SqlalchemyConnection:
    """One connection of the engine: what is common, and Postgres. `OverSqlite` states its difference."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._begun: RootTransaction | None = None
        self._our_turn = False
        with self._turn():
            take(connection, self)
            self._set_up()

    @property
    def handle(self) -> Connection:
        return self._connection

    def batch(self, steps: Sequence[Step]) -> int:
        with self._turn():
            self._check(undone=steps[0] is Boundary.ROLLBACK)
            count = 0
            for step in steps:
                count = self._execute(step) if isinstance(step, Statement) else self._cross(step)
            self._rest(keep=True)
            return count

    def fetch(self, statement: Statement) -> list[Row]:
        with self._turn():
            self._check()
            result = self._connection.execute(_text(statement.sql), _named(statement))
            rows = [tuple(row) for row in result]
            self._rest(keep=False)
            return rows

    def release(self) -> None:
        try:
            with self._turn():
                self._rollback()
                self._restore()
        finally:
            self._close()

    def discard(self) -> None:
        if not self._connection.closed:
            self._connection.invalidate()
        self._close()

    def _close(self) -> None:
        let_go(self._connection)
        self._connection.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Our turn: as long as it lasts, transactions may end. What the vendors raise is mapped."""
        vendor_error = self._connection.dialect.loaded_dbapi.Error
        self._our_turn = True
        try:
            yield
        except (exc.SQLAlchemyError, vendor_error, OSError, OverflowError, UnicodeError) as error:
            with suppress(exc.SQLAlchemyError, vendor_error, OSError):
                self._rest(keep=False)
            raise mapped(self._connection, error) from error
        finally:
            self._our_turn = False

    def before_commit(self) -> None:
        if not self._our_turn:
            raise TransactionMisused(
                "the handler tried to commit the request's transaction; onefold commits it together with the key and "
                "the response: remove the call (begin_nested() and onefold's session are allowed)"
            )

    def _check(self, *, undone: bool = False) -> None:
        """What became of the transaction in the handler's hands? It does not matter if it is undone now."""
        if self._connection.invalidated or (undone and self._connection.closed):
            raise ConnectionLost("the connection was lost; what it had not committed is rolled back")
        if self._begun is None or undone:
            return
        if self._connection.get_transaction() is not self._begun or not self._begun.is_active:
            raise TransactionEnded(ENDED)

    def _execute(self, statement: Statement) -> int:
        result = self._connection.execute(_text(statement.sql), _named(statement))
        return len(result.fetchall()) if result.returns_rows else max(result.rowcount, 0)

    def _cross(self, boundary: Boundary) -> int:
        match boundary:
            case Boundary.BEGIN | Boundary.BEGIN_LIGHT:
                self._begin()
            case Boundary.COMMIT:
                self._commit()
            case Boundary.ROLLBACK:
                self._rollback()
            case Boundary.SAVEPOINT | Boundary.ROLLBACK_TO_SAVEPOINT | Boundary.RELEASE_SAVEPOINT:
                self._savepoint(boundary)
        return 0

    def _begin(self) -> None:
        if self._begun is None:
            self._connection.rollback()
            self._begun = self._connection.begin()

    def _commit(self) -> None:
        self._connection.commit()
        self._begun = None

    def _rollback(self) -> None:
        # After a failed commit SQLAlchemy holds its transaction for over and would send nothing: so ask the driver.
        self._connection.connection.rollback()
        self._connection.rollback()
        self._begun = None

    def _savepoint(self, boundary: Boundary) -> None:
        if self._begun is None:
            raise TransactionEnded(f"{boundary.value} outside a transaction")
        self._connection.exec_driver_sql(BOUNDARIES[boundary])

    def _set_up(self) -> None:
        # Whatever the engine's default, also AUTOCOMMIT: SQLAlchemy restores it when the connection goes back.
        self._connection.execution_options(isolation_level="READ COMMITTED")

    def _rest(self, *, keep: bool) -> None:
        """The end of our turn. What was done outside a transaction is over: nothing of ours stays open."""
        if self._begun is None and self._connection.in_transaction():
            if keep:
                self._connection.commit()
            else:
                self._connection.rollback()

    def before_statement(self, cursor: Any) -> None:
        pass

    def _restore(self) -> None:
        pass


@lru_cache(maxsize=1000)
def _text(sql: str) -> TextClause:
    # In brackets, because text() leaves `:p1::bigint` alone: no parameter, it thinks, where a colon follows.
    return text(_PLACEHOLDER.sub(r"(:p\1)", _COLON.sub(r"\\:", sql)))


def _named(statement: Statement) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(statement.values, start=1)}
