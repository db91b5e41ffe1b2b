"""A statement that psycopg has prepared is sent without a cursor, and answers what the cursor has answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from psycopg.types.string import TextLoader

from onefold._kernel.effects import Boundary, HandlerStatement
from onefold.db import _psycopg_statements
from onefold.db._psycopg_fast import FastConnection
from onefold.db.psycopg import PsycopgDatabase
from onefold.errors import StatementRefused, TransactionMisused

ASKED = "SELECT $1::int AS number, $2::text AS word, NULL::date AS day"
VALUES = (5, "five")
ANSWER = (("number", "word", "day"), [(5, "five", None)])

#: psycopg prepares what it has executed so often.
TIMES = 7


@pytest.fixture
def connection(postgres_dsn: str) -> Iterator[Any]:
    database = PsycopgDatabase(postgres_dsn)
    connection = database.acquire()
    assert isinstance(connection, FastConnection)
    connection.batch((Boundary.BEGIN_AS_CHOSEN,))
    yield connection
    connection.discard()
    database.close()


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The names of what was sent without a cursor."""
    names: list[bytes] = []
    execute = _psycopg_statements._execute

    def noted(handle: Any, name: bytes, *rest: Any) -> Any:
        names.append(name)
        return execute(handle, name, *rest)

    monkeypatch.setattr(_psycopg_statements, "_execute", noted)
    return names


def ask(connection: Any, values: tuple[Any, ...] = VALUES) -> Any:
    return tuple(connection.query(HandlerStatement(ASKED, values)))


def test_what_is_prepared_answers_the_same_without_a_cursor(connection: Any, sent: list[bytes]) -> None:
    assert [ask(connection) for _ in range(TIMES)] == [ANSWER] * TIMES
    assert 0 < len(sent) < TIMES
    assert ask(connection, (6, "six"))[1] == [(6, "six", None)]
    nothing = HandlerStatement("SELECT 1 AS one WHERE $1", (False,))
    assert [connection.query(nothing).rows for _ in range(TIMES)] == [[]] * TIMES


def test_values_go_through_the_adapters_of_the_handle(connection: Any, sent: list[bytes]) -> None:
    for _ in range(TIMES):
        ask(connection)
    connection.handle.adapters.register_loader("int4", TextLoader)
    before = len(sent)
    assert ask(connection)[1] == [("5", "five", None)]
    assert len(sent) == before + 1
    assert ask(connection, ("7", "seven"))[1] == [("7", "seven", None)]
    assert len(sent) == before + 1  # of other types it is another statement


def test_an_error_is_translated_and_the_next_statement_is_refused_by_the_server(connection: Any) -> None:
    divided = HandlerStatement("SELECT 1 / $1::int", (1,))
    for _ in range(TIMES):
        connection.query(divided)
    with pytest.raises(StatementRefused, match="division by zero"):
        connection.query(HandlerStatement(divided.sql, (0,)))
    with pytest.raises(Exception, match="aborted"):
        ask(connection)


def test_a_handle_in_pipeline_mode_is_given_to_a_cursor(connection: Any, sent: list[bytes]) -> None:
    for _ in range(TIMES):
        ask(connection)
    before = len(sent)
    with connection.handle.pipeline():
        assert ask(connection) == ANSWER
    assert len(sent) == before


def test_nothing_is_prepared_where_the_application_says_so(connection: Any, sent: list[bytes]) -> None:
    connection.handle.prepare_threshold = None
    assert [ask(connection) for _ in range(TIMES)] == [ANSWER] * TIMES
    assert sent == []


def test_a_handle_that_is_over_sends_nothing(connection: Any) -> None:
    for _ in range(TIMES):
        ask(connection)
    connection._handed_out.void()
    with pytest.raises(TransactionMisused, match="is over"):
        ask(connection)
