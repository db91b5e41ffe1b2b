"""Having a connection for the length of a flow: whatever fails, the connection is given back or thrown away."""

from __future__ import annotations

import pytest

from onefold._kernel.checkout import checkout, discard_on_error, rollback_and_release, with_connection
from onefold._kernel.effects import Acquire, Batch, Boundary, Discard, Fetch, Flow, Release, Row, Statement
from onefold.errors import ConnectionLost, OnefoldError, StatementRefused, StoreUnavailable, TransactionMisused
from tests.support.scripts import play

ROLLBACK = Batch((Boundary.ROLLBACK,))


async def look() -> list[Row]:
    return await Fetch(Statement("SELECT 1"))


def broken() -> Flow[list[Row]]:
    raise ValueError("not even a flow")


def test_borrowing_acquires_works_and_gives_back() -> None:
    assert play(with_connection(look), [(Acquire, None), (Fetch, [(1,)]), (Release, None)]) == [(1,)]


def test_holding_keeps_the_connection() -> None:
    assert play(checkout(look), [(Acquire, None), (Fetch, [(1,)])]) == [(1,)]


def test_without_a_connection_there_is_nothing_to_throw_away() -> None:
    with pytest.raises(StoreUnavailable):
        play(checkout(look), [(Acquire, StoreUnavailable("no connection"))])


@pytest.mark.parametrize("flow", [with_connection, checkout])
def test_work_that_fails_has_its_connection_thrown_away(flow: type) -> None:
    with pytest.raises(ConnectionLost):
        play(flow(look), [(Acquire, None), (Fetch, ConnectionLost("gone")), (Discard, None)])


def test_work_that_cannot_even_start_has_its_connection_thrown_away() -> None:
    with pytest.raises(ValueError, match="not even a flow"):
        play(discard_on_error(broken), [(Discard, None)])


def test_undoing_rolls_back_and_gives_back() -> None:
    play(rollback_and_release(), [(ROLLBACK, 0), (Release, None)])


def test_undoing_does_what_must_follow_in_the_same_batch() -> None:
    follow = (Boundary.BEGIN, Statement("DELETE FROM claim"), Boundary.COMMIT)
    play(rollback_and_release(*follow), [(Batch((Boundary.ROLLBACK, *follow)), 1), (Release, None)])


@pytest.mark.parametrize("error", [ConnectionLost, StatementRefused, TransactionMisused])
def test_a_rollback_that_is_refused_for_any_reason_costs_the_connection_and_nothing_else(
    error: type[OnefoldError],
) -> None:
    """A driver refuses for instance while a statement that the handler left behind is still running."""
    play(rollback_and_release(), [(ROLLBACK, error("refused")), (Discard, None)])
