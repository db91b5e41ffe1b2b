"""The journal's flows against scripts: what they do in which order, and when a database will not have it."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._client.journal.flow import BUSY_S_MAX, CLAIM_S_MAX, Journal
from onefold._client.journal.records import ClaimedKey
from onefold._client.journal.sql import STATEMENTS
from onefold._kernel.effects import Acquire, Batch, Boundary, Discard, Effect, Fetch, Now, Release
from onefold.errors import ConnectionLost, IntentReused, StoreBusy
from tests.client.journal.backends import HASH, PAY, TARGET
from tests.support.scripts import ScriptDiffers, Turn, play

SQL = STATEMENTS["sqlite"]
BEGIN = Batch((Boundary.BEGIN,))
INSERT = Batch((SQL.insert(PAY, "k", HASH, TARGET),))
FORGET = Batch((SQL.forget_old(PAY, 86_400_000),))
LOOK = Fetch(SQL.look(PAY))
#: The intent is there, and not old.
FOUND: list[Turn] = [(INSERT, 0), (FORGET, 0)]


def journal() -> Journal:
    return Journal("sqlite", new_key=lambda: "k")


def claim() -> Any:
    return journal().claim(PAY, HASH, TARGET)


def commits(effect: Effect[Any]) -> bool:
    return isinstance(effect, Batch) and effect.argument[-1] is Boundary.COMMIT


def test_a_key_is_known_to_nobody_before_commit_was_answered() -> None:
    turns: list[Turn] = [(Acquire(), None), (BEGIN, 0), (INSERT, 1), (commits, 0), (Release(), None)]
    assert play(claim(), turns) == ClaimedKey("k", known=False)
    with pytest.raises(ScriptDiffers):
        play(claim(), [*turns[:3], turns[4]])


def test_an_old_intent_that_was_answered_is_forgotten_and_written_anew() -> None:
    turns: list[Turn] = [(Acquire(), None), (BEGIN, 0), (INSERT, 0), (FORGET, 1), (INSERT, 1), (commits, 0)]
    assert play(claim(), [*turns, (Release(), None)]) == ClaimedKey("k", known=False)


def test_a_commit_whose_answer_is_lost_lets_nothing_be_sent() -> None:
    with pytest.raises(ConnectionLost):
        play(
            claim(),
            [(Acquire(), None), (BEGIN, 0), (INSERT, 1), (commits, ConnectionLost("gone")), (Discard(), None)],
        )


def test_a_row_that_vanishes_while_it_is_looked_at_is_written_anew() -> None:
    turns: list[Turn] = [
        (Acquire(), None),
        (BEGIN, 0),
        *FOUND,
        (LOOK, []),
        (INSERT, 1),
        (commits, 0),
        (Release(), None),
    ]
    assert play(claim(), turns) == ClaimedKey("k", known=False)


def test_a_row_that_vanishes_again_and_again_is_not_looked_for_for_ever() -> None:
    again: list[Turn] = [*FOUND, (LOOK, [])]
    end: list[Turn] = [(Batch((Boundary.ROLLBACK,)), 0), (Release(), None)]
    with pytest.raises(StoreBusy, match=PAY):
        play(claim(), [(Acquire(), None), (BEGIN, 0), *again, *again, *again, *end])


BUSY: list[Turn] = [(Acquire(), None), (BEGIN, StoreBusy("busy")), (Discard(), None)]


def test_a_claim_that_finds_the_journal_busy_insists() -> None:
    turns: list[Turn] = [(Acquire(), None), (BEGIN, 0), (INSERT, 1), (commits, 0), (Release(), None)]
    busy: list[Turn] = [*BUSY, (Now(), 5.0), *BUSY, (Now(), 5.0 + CLAIM_S_MAX - 0.1)]
    assert play(claim(), [*busy, *turns]) == ClaimedKey("k", known=False)


def test_a_claim_does_not_insist_for_ever() -> None:
    with pytest.raises(StoreBusy):
        play(claim(), [*BUSY, (Now(), 5.0), *BUSY, (Now(), 5.0 + CLAIM_S_MAX)])


def test_a_claim_insists_no_longer_than_its_call_has_time() -> None:
    with pytest.raises(StoreBusy):
        play(journal().claim(PAY, HASH, TARGET, until=6.0), [*BUSY, (Now(), 5.9), *BUSY, (Now(), 6.0)])
    with pytest.raises(StoreBusy):
        play(journal().claim(PAY, HASH, TARGET, until=6.0), [*BUSY, (Now(), 6.0)])


@pytest.mark.parametrize("now", [6.0, 99.0])
def test_what_became_of_a_call_is_noted_no_longer_than_it_has_time(now: float) -> None:
    *busy, _, _ = noting(1, now)
    with pytest.raises(StoreBusy):
        play(journal().resolve(PAY, 201, until=6.0), [*busy, (Discard(), None)])


def test_a_refused_call_costs_no_connection() -> None:
    row = ("k0", b"o" * 16, TARGET, 5000, None)
    refused: list[Turn] = [(LOOK, [row]), (Batch((Boundary.ROLLBACK,)), 0), (Release(), None)]
    with pytest.raises(IntentReused):
        play(claim(), [(Acquire(), None), (BEGIN, 0), *FOUND, *refused])


def noting(busy: int, *times: float) -> list[Turn]:
    """A light transaction that finds the database busy so many times, and is told these times."""
    note = Batch((Boundary.BEGIN_LIGHT, SQL.resolve(PAY, 201), Boundary.COMMIT))
    turns: list[Turn] = [(Acquire(), None)]
    for now in times[:busy]:
        turns += [(note, StoreBusy("busy")), (Batch((Boundary.ROLLBACK,)), 0), (Now(), now)]
    return [*turns, (note, 0), (Release(), None)]


def test_an_answer_is_noted_also_where_the_database_is_busy_for_a_while() -> None:
    play(journal().resolve(PAY, 201), noting(3, 7.0, 7.0 + BUSY_S_MAX / 2, 6.9 + BUSY_S_MAX))


def test_an_answer_that_cannot_be_noted_in_time_is_given_up() -> None:
    *turns, _, _ = noting(2, 7.0, 7.0 + BUSY_S_MAX)
    with pytest.raises(StoreBusy):
        play(journal().resolve(PAY, 201), [*turns, (Discard(), None)])
