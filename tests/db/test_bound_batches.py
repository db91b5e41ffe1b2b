"""Batches whose values travel beside the text, as they are written."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Sequence

import pytest

from onefold._kernel.effects import BatchItem, Boundary, Statement
from onefold.db import _postgres_session, _postgres_text
from onefold.db._bound_batches import Binder
from onefold.db._prepared_batches import Preparer

INSERT = Statement("INSERT INTO onefold_record VALUES ($1::bytea)", (b"x",))


def test_tables_are_placed_in_their_schema_and_savepoints_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its name is random: in one process of 2,560 it has failed messages only, and looks like a table of ours.
    monkeypatch.setitem(_postgres_text.BOUNDARIES, Boundary.SAVEPOINT, "SAVEPOINT onefold_abcdefab")
    messages, _, _ = Binder("mark").bind((Boundary.SAVEPOINT, INSERT, Boundary.COMMIT), (), set(), "shop")
    assert b"SAVEPOINT onefold_abcdefab\0" in messages
    assert b'INSERT INTO "shop".onefold_record' in messages


def test_a_session_that_knows_the_statements_is_sent_none_of_them() -> None:
    binder, items = Binder("mark"), (INSERT, Boundary.COMMIT)
    messages, new, end = binder.bind(items, (), set(), None)
    messages_again, new_again, end_again = binder.bind(items, (), set(new), None)
    assert b"INSERT" in messages
    assert b"INSERT" not in messages_again
    assert (list(new_again), end_again.name, end_again.sql) == ([], end.name, "COMMIT")


def test_batches_of_one_shape_are_written_with_their_own_values_whatever_was_kept_of_the_first() -> None:
    binder = Binder("mark")
    for handed_out in (False, True):
        for schema in ("shop", "bank"):
            known = set(binder.bind((INSERT, Boundary.COMMIT), ("RESET ALL",), set(), schema, handed_out=handed_out)[1])
            for values in ((b"a",), (b"bb",), (None,)):
                items = (Boundary.SAVEPOINT, INSERT._replace(values=values), Boundary.COMMIT)
                afresh = Binder("mark")
                new = set(afresh.bind(items, ("RESET ALL",), set(), schema, handed_out=handed_out)[1])
                plain = afresh._write((*_wrapped(items, handed_out), "RESET ALL"), known | new, schema)
                for _ in range(2):
                    bound = binder.bind(items, ("RESET ALL",), known | new, schema, handed_out=handed_out)
                    assert (bound[0], set(bound[1]), bound[2]) == (plain[0], set(), plain[2])


def _wrapped(items: tuple[BatchItem, ...], handed_out: bool) -> Sequence[BatchItem]:
    return _postgres_session.as_ourselves(items) if handed_out else items


def test_a_statement_that_stands_in_a_batch_many_times_is_parsed_once() -> None:
    messages, new, _ = Binder("mark").bind((*[INSERT] * 50, Boundary.COMMIT), (), set(), None)
    assert (messages.count(b"INSERT INTO"), len(new)) == (1, 2)
    query, named = Preparer().query((Boundary.BEGIN, *[INSERT] * 50), set())
    assert (query.count("INSERT INTO"), query.count("EXECUTE"), len(named)) == (1, 50, 1)


BINDER, PREPARER = Binder("mark"), Preparer()


@pytest.mark.parametrize(
    "write",
    [
        pytest.param(lambda items: BINDER.bind(items, (), set(), None), id="bound"),
        pytest.param(lambda items: PREPARER.query(items, set()), id="prepared"),
    ],
)
def test_batches_of_any_number_of_events_leave_nothing_behind(write: Callable[[tuple[BatchItem, ...]], object]) -> None:
    """What is kept of them depends on how many statements there are, not on how many a batch may have."""
    write((INSERT, Boundary.COMMIT))
    tracemalloc.start()
    for events in range(2, 100):
        write((*[INSERT] * events, Boundary.COMMIT))
    kept_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept_bytes < 50_000
