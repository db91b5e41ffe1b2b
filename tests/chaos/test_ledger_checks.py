"""The checker itself: what it must find, and what it must leave alone."""

from __future__ import annotations

import pytest

from tests.chaos.ledger_checks import Event, Written, inversions, violations

WRITTEN = Written({"a1", "a2", "b1"}, {"x"})
A1, A2, B1 = Event("a1", "a", 1), Event("a2", "a", 2), Event("b1", "b", 1)


@pytest.mark.parametrize("arrived", [[A1, A2, B1], [A1, B1, A2], [B1, A1, A2]])
def test_each_once_and_in_the_order_of_its_key_is_right(arrived: list[Event]) -> None:
    assert violations(WRITTEN, arrived) == []
    assert inversions(arrived) == 0


@pytest.mark.parametrize(
    ("arrived", "said"),
    [
        ([A1, A2], "event b1 was committed and never arrived"),
        ([A1, A2, B1, B1], "event b1 arrived 2 times"),
        ([A1, A2, B1, Event("x", "c", 1)], "event x was rolled back and arrived"),
        ([A1, A2, B1, Event("y", "c", 1)], "event y arrived, and nobody committed it"),
        ([A2, A1, B1], "key 'a' was handled in the order [2, 1]"),
        ([A1, Event("a2", "a", 3), B1], "key 'a' was handled in the order [1, 3]"),
    ],
)
def test_what_is_wrong_is_said(arrived: list[Event], said: str) -> None:
    assert said in violations(WRITTEN, arrived)


def test_an_order_that_nobody_asked_for_is_not_missed_but_counted() -> None:
    assert violations(WRITTEN, [A2, A1, B1], strict=False) == []
    assert inversions([A2, A1, B1]) == 1
