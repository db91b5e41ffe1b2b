"""What becomes of a message whose handler failed, row by row."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from onefold._inbox.consumer import Consumer
from onefold._inbox.failure_decision import AttemptsSoFar, FailureDecision, decide_failure
from onefold._kernel.messages import Message
from onefold.errors import TransactionMisused


def ship(message: Message) -> None: ...


class Case(NamedTuple):
    error: Exception
    before: AttemptsSoFar
    is_handled: bool
    decision: FailureDecision | None


CASES = {
    "the first failure": Case(OSError(), AttemptsSoFar(), False, FailureDecision(1, 1, 1_000)),
    "the second waits longer": Case(OSError(), AttemptsSoFar("waiting", 2, 1), False, FailureDecision(2, 2, 2_000)),
    "a start that did not fail stays counted": Case(
        OSError(), AttemptsSoFar("waiting", 5, 1), False, FailureDecision(2, 5, 2_000)
    ),
    "the last attempt": Case(OSError(), AttemptsSoFar("waiting", 3, 2), False, FailureDecision(3, 3, None)),
    "dead before, and run by a person": Case(
        OSError(), AttemptsSoFar("dead", 1, 0), False, FailureDecision(1, 1, None)
    ),
    "not worth another attempt": Case(KeyError("a"), AttemptsSoFar(), False, FailureDecision(1, 1, None)),
    "handled by another delivery": Case(OSError(), AttemptsSoFar(), True, None),
    "committed by its own handler": Case(TransactionMisused(""), AttemptsSoFar(), True, FailureDecision(1, 1, None)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_failure_is_decided_by_what_was_written_down_before(name: str) -> None:
    error, before, is_handled, decision = CASES[name]
    consumer = Consumer(name="shipping", topics=("order.placed",), handler=ship, attempts=3, dead_letter_on=(KeyError,))
    assert decide_failure(consumer, error, before, is_handled=is_handled, draw=lambda: 1.0) == decision
