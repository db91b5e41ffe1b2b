"""One deadline for waits and attempts."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.deadline import Deadline
from onefold.errors import ConfigurationError
from tests.policy.properties import planted, properties

MOMENTS = st.floats(0, 1e9)


@pytest.mark.parametrize(
    ("now", "expired"),
    [
        pytest.param(100.0, False, id="at the start"),
        pytest.param(104.0, False, id="shortly before"),
        pytest.param(105.0, True, id="at the deadline"),
        pytest.param(900.0, True, id="long after"),
    ],
)
def test_a_deadline_expires_when_nothing_is_left(now: float, expired: bool) -> None:
    assert Deadline.after(5.0, 100.0).expired(now) is expired


@pytest.mark.parametrize(
    ("wait_s", "fits"),
    [
        pytest.param(0.0, True, id="no wait"),
        pytest.param(4.9, True, id="a wait that leaves a moment for the attempt"),
        pytest.param(5.0, False, id="a wait that leaves nothing"),
        pytest.param(math.inf, False, id="an endless wait"),
    ],
)
def test_a_wait_fits_when_something_is_left_after_it(wait_s: float, fits: bool) -> None:
    assert Deadline.after(5.0, 100.0).fits(wait_s, 100.0) is fits


def test_without_a_deadline_every_finite_wait_fits() -> None:
    assert Deadline.NEVER.fits(1e9, 0.0)
    assert not Deadline.NEVER.expired(1e9)


@pytest.mark.parametrize("total_s", [-1.0, math.nan])
def test_a_deadline_in_the_past_is_refused(total_s: float) -> None:
    with pytest.raises(ConfigurationError, match="total_s"):
        Deadline.after(total_s, 100.0)


def check_fitting_waits(kind: type[Deadline], how: settings = properties) -> None:
    @how
    @given(MOMENTS, MOMENTS, MOMENTS)
    def check(at: float, now: float, wait_s: float) -> None:
        deadline = kind(at)
        assert deadline.expired(now) == (now >= at)
        if deadline.fits(wait_s, now):
            assert now + wait_s < at
            assert deadline.fits(wait_s / 2, now)

    check()


def test_after_a_wait_that_fits_the_attempt_has_time() -> None:
    check_fitting_waits(Deadline)


class WaitForgotten(Deadline):
    """A planted bug, and a common one: the deadline is looked at before the wait, and overshot by it."""

    __slots__ = ()

    def fits(self, wait_s: float, now: float) -> bool:
        return not self.expired(now)


def test_the_check_of_waits_finds_a_deadline_that_forgets_the_wait() -> None:
    with pytest.raises(AssertionError):
        check_fitting_waits(WaitForgotten, planted)
