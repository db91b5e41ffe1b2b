"""Literals say what was meant, to a real server; DSNs are checked without being repeated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import psycopg
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._kernel.effects import Statement, Value
from onefold.db._postgres_session import check_dsn
from onefold.db._postgres_text import inline_values, literals, script
from onefold.errors import ConfigurationError, StatementRefused
from onefold.testing.servers import PrivatePostgres

Session: TypeAlias = psycopg.Connection[tuple[Value, ...]]

#: Everything a str can hold that Postgres text can: no NUL, no half of a surrogate pair.
TEXTS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))
#: The characters that quoting is about, more often than chance would have them.
TRICKY = st.text(st.sampled_from("'\\\"$1;E-\n%xé🙂"))
INTEGERS = st.integers(-(2**63), 2**63 - 1)


@pytest.fixture(params=["on", "off"])
def connection(postgres: PrivatePostgres, request: pytest.FixtureRequest) -> Iterator[Session]:
    """A session in which a backslash in '' is plain, and one in which it escapes."""
    with psycopg.connect(postgres.dsn, autocommit=True) as opened:
        opened.execute(f"SET standard_conforming_strings = {request.param}".encode())
        yield opened


def test_a_literal_reads_back_as_the_value_it_was_made_from(
    connection: Session,
) -> None:
    @settings(max_examples=150, deadline=None, database=None)
    @given(text=TEXTS | TRICKY, blob=st.binary(), integer=INTEGERS)
    def reads_back(text: str, blob: bytes, integer: int) -> None:
        written = literals((text, blob, integer, None))
        query = "SELECT {}, {}::bytea, {}::bigint, {}".format(*written)
        assert connection.execute(query.encode()).fetchone() == (text, blob, integer, None)

    reads_back()


def test_a_statement_with_its_values_written_in_means_the_same(
    connection: Session,
) -> None:
    sql = "SELECT $2::text, $10::text, $1::bigint - $1::bigint, -$1::bigint, $3::bytea || $3::bytea"

    @settings(max_examples=100, deadline=None, database=None)
    @given(text=TRICKY, blob=st.binary(), integer=st.integers(-(2**62), 2**62))
    def means_the_same(text: str, blob: bytes, integer: int) -> None:
        values = (integer, text, blob, None, None, None, None, None, None, f"$1{text}")
        query = inline_values(Statement(sql, values)).encode()
        assert connection.execute(query).fetchone() == (text, f"$1{text}", 0, -integer, blob + blob)

    means_the_same()


def test_a_comment_at_the_end_of_a_statement_hides_nothing_that_follows(
    connection: Session,
) -> None:
    cursor = connection.execute(script(["SELECT 1 -- one", "SELECT 2 -- two", "SELECT 3"]).encode())
    while cursor.nextset():
        pass
    assert cursor.fetchone() == (3,)


@pytest.mark.parametrize("text", ["\0", "a\0b", "\ud800", "x\udfff"])
def test_text_that_postgres_cannot_hold_is_refused_before_it_is_sent(text: str) -> None:
    with pytest.raises(StatementRefused, match="as bytes"):
        literals([text])


@pytest.mark.parametrize(
    "dsn",
    [
        "postgresql://",
        "postgresql:///name",
        "postgres://host/name",
        "postgresql://me:secret@host:5432/name?sslmode=require&options=-c%20x%3Dy@z",
        "postgresql://me:s%40cret@one:1,two:2/name",
        "postgresql://me@[::1]:5432/name",
        "postgresql://me@[::1]/name",
        "postgresql://%2Fvar%2Frun/name",
    ],
)
def test_a_dsn_is_accepted(dsn: str) -> None:
    assert check_dsn(dsn) == dsn


@pytest.mark.parametrize(
    "dsn",
    [
        "mysql://me:hunter2@host/name",
        "postgresql://me:hunter2[@host/name",
        "postgresql://me:hunter2@[::1/name",
        "postgresql://me:hunter2@one:1,two:2:3/name",
        "postgresql:/me:hunter2@host/name",
        "host=db password=hunter2",
        "postgresql://me:hun@hunter2@host/name",
        "postgresql://me:hun/hunter2@host/name",
        "postgresql://me:#hunter2@host/name",
        "postgresql://me:pass@host:hunter2/name",
    ],
)
def test_a_dsn_that_is_none_is_refused_without_being_repeated(dsn: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        check_dsn(dsn)
    assert "hunter2" not in str(refusal.value)
