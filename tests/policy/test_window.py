"""What is old is forgotten, a slice at a time."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.window import Window
from tests.policy.properties import planted, properties

WINDOW_S, SLICES = 10.0, 10
EVENTS = st.lists(st.tuples(st.floats(0, 12), st.booleans()), max_size=60)


def check_counts(make: Callable[[float, int], Window], how: settings = properties) -> None:
    """All that is younger than the window less a slice is counted, and nothing that is older than the window."""

    @how
    @given(st.floats(0, 1e6), EVENTS)
    def check(now: float, events: list[tuple[float, bool]]) -> None:
        window = make(WINDOW_S, SLICES)
        seen: list[tuple[float, bool]] = []
        for after_s, succeeds in events:
            now += after_s
            seen.append((now, succeeds))
            if succeeds:
                window.succeed(now)
                continue
            failures, calls = window.fail(now)
            young = [ok for at, ok in seen if now - at < WINDOW_S - 1]
            recent = [ok for at, ok in seen if now - at <= WINDOW_S]
            assert len(young) <= calls <= len(recent)
            assert young.count(False) <= failures <= recent.count(False)

    check()


def test_the_young_are_counted_and_the_old_are_not() -> None:
    check_counts(Window)


class Unforgetting(Window):
    """A planted bug: slices are dropped when new ones need the room, however old they are."""

    def __init__(self, window_s: float, slices: int) -> None:
        super().__init__(window_s, slices)
        self._slices = 10**9


def test_the_check_of_counts_finds_a_window_that_remembers_a_quiet_past() -> None:
    with pytest.raises(AssertionError):
        check_counts(Unforgetting, planted)


def test_time_that_steps_back_is_counted_now() -> None:
    window = Window(WINDOW_S, SLICES)
    window.succeed(100.0)
    window.succeed(98.0)
    assert window.fail(99.0) == (1, 3)


def test_a_moment_that_rounds_to_the_end_of_its_own_slice_stays_in_it() -> None:
    assert 0.5 // 0.1 == 4.0  # where the fourth slice ends at (4 + 1) * 0.1 == 0.5
    window = Window(1.0, 10)
    counts = [window.fail(0.5) for _ in range(30)]
    assert counts[-1] == (30, 30)


def test_a_cleared_window_counts_anew() -> None:
    window = Window(WINDOW_S, SLICES)
    window.succeed(1.0)
    window.succeed(2.0)
    window.clear()
    assert window.fail(2.0) == (1, 1)
