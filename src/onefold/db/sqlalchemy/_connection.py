"""What a batch means on a `sqlalchemy.Connection`: what is common, and Postgres."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, CursorResult, RootTransaction, TextClause, exc, text

from onefold._kernel.checkout import log_release_error
from onefold._kernel.effects import WHOLE, BatchItem, Boundary, HandlerStatement, NamedRows, Nested, Row, Statement
from onefold._kernel.handler_errors import is_serialization_failure
from onefold.db._left_running import close_when_left, hang_up, is_end
from onefold.db._postgres_session import as_ourselves
from onefold.db._postgres_text import LEVELS, qualify_tables, render_boundary
from onefold.db.sqlalchemy._engine_events import let_go, take
from onefold.db.sqlalchemy._errors import ENDED, translate_error
from onefold.db.sqlalchemy._handle import LentConnection
from onefold.db.sqlalchemy._isolation import ConnectionIsolation
from onefold.db.sqlalchemy._pools import fate_of, never_handed_on
from onefold.errors import ConnectionLost, TransactionAborted, TransactionEnded, TransactionMisused

_PLACEHOLDER = re.compile(r"[$?](\d+)")

#: What text() would take for a parameter of its own.
_COLON = re.compile(r"(?<![:\w\\]):(?=\w)")


class SqlalchemyConnection:
    """One connection of the engine: what is common, and Postgres. `OverSqlite` states its difference."""

    def __init__(self, connection: Connection, schema: str | None = None) -> None:
        self._connection = connection
        #: Where our tables are, on Postgres.
        self.schema = schema
        #: Whether a handler has had the connection.
        self.handed = False
        #: How many writing statements were sent, the handler's and our own.
        self.writes = 0
        #: Whether the handler got the error that its transaction cannot be serialised. A session's end makes an aborted
        #: transaction whole again, as far as the server reports.
        self._unserialized = False
        self._begun: RootTransaction | None = None
        #: Whether a statement of ours is under way that commits by itself.
        self._alone = False
        self.handed_out = LentConnection(connection)
        with self._turn():
            take(connection, self)
            self._set_up()

    @property
    def handle(self) -> Connection:
        self.hand_out()
        return self._connection

    def hand_out(self) -> None:
        """A handler is given the connection."""
        self.handed = True
        self.handed_out.begin()

    def batch(self, items: Sequence[BatchItem]) -> int:
        if self.handed and is_end(items):
            self._end_handler(items)
        with self._turn():
            self._check(undone=items[0] is Boundary.ROLLBACK)
            if len(items) == 1 and isinstance(items[0], Statement):
                self._begin_alone()
            count = 0
            for item in self._as_ourselves(items):
                count = self._execute(item) if isinstance(item, Statement) else self._cross(item)
            self._end_turn(keep=True)
            return count

    def fetch(self, statement: Statement) -> list[Row]:
        with self._turn():
            self._check()
            self._begin_alone()
            if self._is_ours_alone:
                with self._sending(statement) as cursor:
                    rows = [tuple(row) for row in cursor.fetchall()]
            else:
                rows = [tuple(row) for row in self._send(statement)]
            self._end_turn(keep=True)  # it may have written: UPDATE ... RETURNING
            return rows

    def query(self, statement: HandlerStatement) -> NamedRows:
        """On the handle, in the words of the driver below: its values have the types that the driver gives them."""
        try:
            result = self.handle.exec_driver_sql(*_in_driver_words(statement, self._connection.dialect.paramstyle))
            if not result.returns_rows:
                return NamedRows((), [])
            return NamedRows(tuple(result.keys()), [tuple(row) for row in result])
        except (exc.SQLAlchemyError, OSError, OverflowError, UnicodeError) as error:
            raise translate_error(self._connection, error) from error

    def release(self) -> None:
        self.handed_out.end()
        if not self.handed_out.wait(0.0):
            self.discard()
            return
        try:
            with self._turn():
                self._rollback()
                self._restore()
        except BaseException:
            self.throw_away()
            raise
        try:
            self._close()
        except Exception as error:
            if never_handed_on(pool := self._connection.engine.pool):
                with suppress(Exception):  # the hook of the application's that has raised already
                    self._connection.invalidate()
            log_release_error(error, fate_of(pool))

    def discard(self) -> None:
        """Threads of the handler's are made to leave first: see `leaving`."""
        self.handed_out.end()
        close_when_left(self.handed_out.wait, self.wake, self.throw_away, driver="SQLAlchemy")

    def throw_away(self) -> None:
        self.handed_out.shut()
        try:
            if not self._connection.closed:
                self._connection.invalidate()
            self._close()
        except Exception as error:
            self._let_go()
            log_release_error(error, fate_of(self._connection.engine.pool))

    def wake(self) -> None:
        """Have the threads that are inside the driver leave it."""
        hang_up(self._connection.connection.driver_connection)

    def _close(self) -> None:
        self._let_go()
        self._connection.close()

    def _let_go(self) -> None:
        let_go(self._connection)
        self.handed_out.let_go()

    def _end_handler(self, items: Sequence[BatchItem]) -> None:
        self.handed_out.end()
        self.handed_out.check_left(self.handed_out.wait(self.handed_out.patience_s), items)

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Our turn: as long as it lasts, transactions may end. What the vendors raise is mapped."""
        vendor_error = self._connection.dialect.loaded_dbapi.Error
        try:
            with self.handed_out.our_turn():
                yield
        except (exc.SQLAlchemyError, vendor_error, OSError, OverflowError, UnicodeError) as error:
            with suppress(exc.SQLAlchemyError, vendor_error, OSError), self.handed_out.our_turn():
                self._end_turn(keep=False)
            raise translate_error(self._connection, error) from error
        except BaseException:  # a time limit, a signal: the application may get this connection next
            with suppress(Exception):
                self._end_alone()
            raise

    @property
    def _our_turn(self) -> bool:
        return self.handed_out.is_our_turn

    def before_commit(self) -> None:
        if not self._our_turn:
            raise TransactionMisused(
                "the handler tried to commit the request's transaction; onefold commits it together with the key and "
                "the response: remove the call (begin_nested() and onefold's session are allowed)"
            )

    def _check(self, *, undone: bool = False) -> None:
        """Raises where the transaction was lost, or ended by the handler. It does not matter if it is undone now."""
        if self._connection.invalidated or (undone and self._connection.closed):
            raise ConnectionLost("the connection was lost; what it had not committed is rolled back")
        if self._begun is None or undone:
            if self.handed and self._begun is None and self._connection.in_transaction():
                self._connection.rollback()  # begun by what a handler left running: our own are over with our turns
            return
        if self._connection.get_transaction() is not self._begun or not self._begun.is_active:
            raise TransactionEnded(ENDED)

    def _execute(self, statement: Statement) -> int:
        if self._is_ours_alone:
            with self._sending(statement) as cursor:
                return max(int(cursor.rowcount), 0)
        result = self._send(statement)
        return len(result.fetchall()) if result.returns_rows else max(result.rowcount, 0)

    def _send(self, statement: Statement) -> CursorResult[Any]:
        return self._connection.execute(_text(qualify_tables(statement.sql, self.schema)), _name_values(statement))

    @property
    def _is_ours_alone(self) -> bool:
        """Whether no handler has had the connection, and what is sent now is committed by us."""
        return not self.handed and (self._alone or self._begun is not None)

    @contextmanager
    def _sending(self, statement: Statement) -> Iterator[Any]:
        """The driver's cursor after the statement. What SQLAlchemy does for each statement of its own costs several
        times as much as the driver's, and a worker's statements are many and small."""
        cursor = self._connection.connection.cursor()
        try:
            sql = qualify_tables(statement.sql, self.schema)
            cursor.execute(*_in_driver_words(statement, self._connection.dialect.paramstyle, sql))
            yield cursor
        except self._connection.dialect.loaded_dbapi.Error as error:
            self._find_lost(error)
            raise
        finally:
            cursor.close()

    def _find_lost(self, error: Any) -> None:
        """A connection that is lost is shown to SQLAlchemy, which replaces those that its pool had opened before."""
        if self._connection.dialect.is_disconnect(error, self._connection.connection.dbapi_connection, None):
            self._connection.exec_driver_sql("SELECT 1")

    def _cross(self, item: Boundary | Nested) -> int:
        match item:
            case Boundary.COMMIT:
                self._commit()
            case Boundary.ROLLBACK:
                self._rollback()
            case Boundary.SAVEPOINT | Boundary.ROLLBACK_TO_SAVEPOINT | Boundary.RELEASE_SAVEPOINT | Nested():
                self._savepoint(item)
            case _:
                self._begin(LEVELS.get(item))
        return 0

    def _begin_alone(self) -> None:
        """A statement outside a transaction, while no handler has the connection."""
        if self._begun is None and not self.handed:
            self._alone = True  # first: what follows may be interrupted when it is done
            self._alone = self._level.commit_each()

    def _end_alone(self) -> None:
        if self._alone:
            self._level.commit_together()
            self._alone = False

    def _begin(self, level: str | None) -> None:
        """None: at the level that the application chose."""
        if self._begun is None:
            self._connection.rollback()
            self._level.use(level)
            self._begun = self._connection.begin()

    def _commit(self) -> None:
        self._connection.commit()
        self._begun = None

    def _rollback(self) -> None:
        # After a failed commit SQLAlchemy holds its transaction for over and would send nothing: so call the driver.
        self._connection.connection.rollback()
        self._connection.rollback()
        self._begun = None

    def _savepoint(self, item: Boundary | Nested) -> None:
        if self._begun is None:
            raise TransactionEnded(f"{render_boundary(item)} outside a transaction")
        if item == WHOLE and self._unserialized:
            raise TransactionAborted("the transaction could not be serialised, and the handler went on")
        self._connection.exec_driver_sql(render_boundary(item))

    def _as_ourselves(self, items: Sequence[BatchItem]) -> Sequence[BatchItem]:
        return as_ourselves(items) if self.handed else items

    def _set_up(self) -> None:
        self._level = ConnectionIsolation(self._connection)

    def _end_turn(self, *, keep: bool) -> None:
        """The end of our turn. What was done outside a transaction is over: nothing of ours stays open."""
        self._end_alone()
        if self._begun is None and self._connection.in_transaction():
            if keep:
                self._connection.commit()
            else:
                self._connection.rollback()

    def before_statement(self, cursor: Any) -> None:
        pass

    def note_error(self, error: BaseException) -> None:
        if not self._our_turn and is_serialization_failure(error):
            self._unserialized = True

    def _restore(self) -> None:
        self._level.restore()


@lru_cache(maxsize=1000)
def _text(sql: str) -> TextClause:
    # In brackets, because text() leaves `:p1::bigint` alone: no parameter, it thinks, where a colon follows.
    return text(_PLACEHOLDER.sub(r"(:p\1)", _COLON.sub(r"\\:", sql)))


def _in_driver_words(
    statement: HandlerStatement | Statement, paramstyle: str, sql: str | None = None
) -> tuple[str, Any]:
    """The statement, and its values, for a driver with placeholders of this kind."""
    words, places = _place_values(statement.sql if sql is None else sql, paramstyle)
    match paramstyle:
        case "pyformat":
            return words, _name_values(statement)
        case "format":
            return words, tuple(statement.values[place] for place in places)
        case _:  # by number: ?1 of SQLite, $1 of asyncpg
            return words, statement.values


@lru_cache(maxsize=1000)
def _place_values(sql: str, paramstyle: str) -> tuple[str, tuple[int, ...]]:
    """The text with placeholders of this kind, and which value each of them stands for."""
    places = tuple(int(number) - 1 for number in _PLACEHOLDER.findall(sql))
    match paramstyle:
        case "pyformat":
            return _PLACEHOLDER.sub(r"%(p\1)s", sql.replace("%", "%%")), places
        case "format":
            return _PLACEHOLDER.sub("%s", sql.replace("%", "%%")), places
        case _:
            return sql, places


def _name_values(statement: Statement | HandlerStatement) -> dict[str, object]:
    return {f"p{number}": value for number, value in enumerate(statement.values, start=1)}
