"""Looking for a COMMIT whose answer was lost: again after each pause, and not for longer than a caller should wait."""

from __future__ import annotations

import pytest

from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.model import Answer, Ask, Record, Replay, Run
from onefold._kernel.effects import Acquire, Batch, Discard, Effect, Fetch, Now, Release, Sleep
from onefold._kernel.lost_commits import LOOKUP_PAUSES_S, LOOKUP_S_MAX
from onefold.errors import ConnectionLost, OutcomeUnknown, StoreUnavailable
from tests.support.scripts import Turn, play

ASK = Ask(b"d" * 16, b"f" * 16, "POST /payments", 60.0, 3600.0)
CREATED = Answer(201, b"\x00:run-1", b"\x00{}")
OTHER = Answer(201, b"\x00:run-2", b"\x00{}")

LOST: list[Turn] = [(Batch, ConnectionLost("gone")), (Discard, None)]
DOWN: list[Turn] = [(Acquire, StoreUnavailable("no server"))]


def look(pause_s: float, *, at: float) -> list[Turn]:
    def is_the_pause(effect: Effect[object]) -> bool:
        return effect == Sleep(pause_s)

    return [(is_the_pause, None), (Now, at)]


def settle(script: list[Turn]) -> object:
    return play(LockedStore().settle(ASK, Run(), CREATED, keep_rows=True), script)


def test_it_is_looked_for_after_every_pause_and_then_the_outcome_is_unknown() -> None:
    looks = [turn for pause_s in LOOKUP_PAUSES_S for turn in (*look(pause_s, at=1.0), *DOWN)]
    with pytest.raises(OutcomeUnknown):
        settle([*LOST, (Now, 0.0), *looks])


def test_a_server_that_makes_every_look_wait_is_given_up_on_in_time() -> None:
    first, second = LOOKUP_PAUSES_S[:2]
    with pytest.raises(OutcomeUnknown):
        settle([*LOST, (Now, 0.0), *look(first, at=0.0), *DOWN, *look(second, at=LOOKUP_S_MAX)])


def found(answer: Answer) -> list[Turn]:
    row = (False, "same", False, ASK.digest, ASK.fingerprint, ASK.operation, 2, *answer, 60_000)
    return [(Acquire, None), (Batch, 1), (Fetch, [row]), (Batch, 0), (Release, None)]


def test_its_own_answer_is_found_where_it_was_committed() -> None:
    assert settle([*LOST, (Now, 0.0), *look(0.0, at=0.0), *found(CREATED)]) is None


def test_another_record_that_is_found_is_the_answer() -> None:
    assert settle([*LOST, (Now, 0.0), *look(0.0, at=0.0), *found(OTHER)]) == Replay(
        Record(ASK.digest, ASK.fingerprint, ASK.operation, 2, *OTHER, 60_000)
    )
