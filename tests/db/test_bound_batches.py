"""Batches whose values travel beside the text, as they are written."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any

import pytest

from onefold._kernel.effects import BatchItem, Boundary, Statement, Value
from onefold.db import _postgres_session, _postgres_text
from onefold.db._postgres_batches import Binder, Preparer, encode_values
from onefold.db._postgres_text import literals
from onefold.errors import StatementRefused

INSERT = Statement("INSERT INTO onefold_record VALUES ($1::bytea)", (b"x",))


def test_tables_are_placed_in_their_schema_and_savepoints_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its name is random: in one process of 2,560 it has failed messages only, and looks like a table of ours.
    monkeypatch.setitem(_postgres_text.BOUNDARIES, Boundary.SAVEPOINT, "SAVEPOINT onefold_abcdefab")
    messages, _, _ = Binder("mark").write((Boundary.SAVEPOINT, INSERT, Boundary.COMMIT), set(), "shop")
    assert b"SAVEPOINT onefold_abcdefab\0" in messages
    assert b'INSERT INTO "shop".onefold_record' in messages


def test_a_session_that_knows_the_statements_is_sent_none_of_them() -> None:
    binder, items = Binder("mark"), (INSERT, Boundary.COMMIT)
    messages, new, end = binder.write(items, set(), None)
    messages_again, new_again, end_again = binder.write(items, set(new), None)
    assert b"INSERT" in messages
    assert b"INSERT" not in messages_again
    assert (list(new_again), end_again.name, end_again.sql) == ([], end.name, "COMMIT")


def test_batches_of_one_shape_are_written_with_their_own_values_whatever_was_kept_of_the_first() -> None:
    binder = Binder("mark")
    for handed_out in (False, True):
        for schema in ("shop", "bank"):
            first = (Boundary.SAVEPOINT, INSERT, Boundary.COMMIT)
            plan = binder.plan(first, (*_wrapped(first, handed_out), "RESET ALL"), schema)
            for values in ((b"a",), (b"bb",), (None,), ("",)):
                items = (Boundary.SAVEPOINT, INSERT._replace(values=values), Boundary.COMMIT)
                sent = (*_wrapped(items, handed_out), "RESET ALL")
                _, new, _ = binder.write(sent, set(), schema)
                messages, none_new, last = binder.write(sent, set(new), schema)
                assert (plan.write(items), set(none_new), last.sql) == (messages, set(), "RESET ALL")


def _wrapped(items: tuple[BatchItem, ...], handed_out: bool) -> Sequence[BatchItem]:
    return _postgres_session.as_ourselves(items) if handed_out else items


def test_prepared_batches_of_one_shape_are_written_with_their_own_values_whatever_was_kept_of_the_first() -> None:
    preparer = Preparer()
    for schema in ("shop", "bank"):
        first = (Boundary.BEGIN, INSERT, Boundary.SAVEPOINT, INSERT)
        _, new = preparer.write(first, set(), schema)
        plan = preparer.plan(first, first, ';SHOW "100 %s"', schema)
        assert plan is not None
        for values in ((b"a",), (b"bb",), (None,), ("100 %s",)):
            items = (Boundary.BEGIN, INSERT._replace(values=values), Boundary.SAVEPOINT, INSERT)
            text, unknown = preparer.write(items, set(new), schema)
            assert (plan.write(items), list(unknown)) == (f'{text};SHOW "100 %s"', [])
            assert (text.count("EXECUTE"), literals(values)[0] in text) == (2, True)
        again, new_again = preparer.write(first, set(), schema)  # another session
        assert (again.count("PREPARE"), set(new_again)) == (1, set(new))


def test_a_statement_that_stands_in_a_batch_many_times_is_parsed_once() -> None:
    messages, new, _ = Binder("mark").write((*[INSERT] * 50, Boundary.COMMIT), set(), None)
    assert (messages.count(b"INSERT INTO"), len(new)) == (1, 2)
    query, named = Preparer().write((Boundary.BEGIN, *[INSERT] * 50), set())
    assert (query.count("INSERT INTO"), query.count("EXECUTE"), len(named)) == (1, 50, 1)


class _Color(StrEnum):
    RED = "red"


@pytest.mark.parametrize(
    ("value", "literal", "encoded", "form"),
    [
        (b"\x01'", "E'\\\\x0127'", b"\x01'", 1),
        (-7, "'-7'", b"-7", 0),
        (True, "'1'", b"1", 0),
        ("it's", "E'it''s'", b"it's", 0),
        (_Color.RED, "E'red'", b"red", 0),
        ("x" * 1000, f"E'{'x' * 1000}'", b"x" * 1000, 0),
        (None, "NULL", None, 0),
    ],
)
def test_a_value_is_written_by_its_kind(value: Value, literal: str, encoded: bytes | None, form: int) -> None:
    assert literals((value,)) == (literal,)
    assert encode_values((value,)) == ([encoded], (form,))
    size = (-1 if encoded is None else len(encoded)).to_bytes(4, "big", signed=True)
    items = (INSERT._replace(values=(value,)), Boundary.COMMIT)
    binder = Binder("mark")
    for known in (set[str](), set(binder.write(items, set(), None)[1])):
        messages, _, _ = binder.write(items, known, None)
        assert b"\0\1\0" + bytes([form]) + b"\0\1" + size + (encoded or b"") in messages


@pytest.mark.parametrize(
    "write",
    [
        literals,
        encode_values,
        lambda values: Binder("mark").write((INSERT._replace(values=values), Boundary.COMMIT), set(), None),
    ],
)
def test_a_value_of_no_kind_that_every_database_has_is_refused(write: Callable[[tuple[Any, ...]], object]) -> None:
    with pytest.raises(StatementRefused, match="it was given float"):
        write((b"x", 1.0))


BINDER, PREPARER = Binder("mark"), Preparer()


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda items: BINDER.write(items, set(), None), id="bound"),
        pytest.param(lambda items: PREPARER.write(items, set()), id="prepared"),
    ],
)
def test_batches_of_any_number_of_events_leave_nothing_behind(write: Callable[[tuple[BatchItem, ...]], object]) -> None:
    """What is kept of them depends on how many statements there are, not on how many a batch may have."""
    for _ in range(3000):  # of the tuples that are freed Python itself keeps the first 2,000
        write((INSERT, Boundary.COMMIT))
    tracemalloc.start()
    for events in range(2, 100):
        write((*[INSERT] * events, Boundary.COMMIT))
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 50_000
