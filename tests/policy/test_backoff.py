"""Full jitter: spread over the whole ceiling, which doubles up to the cap."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.backoff import Backoff
from onefold.errors import ConfigurationError
from tests.policy.properties import planted, properties

ATTEMPTS = st.integers(1, 10**30)
CHANCES = st.floats(0, 1, exclude_max=True)


@pytest.mark.parametrize(
    ("attempt", "throttled", "ceiling_s"),
    [
        pytest.param(1, False, 0.25, id="a first stumble"),
        pytest.param(2, False, 0.5, id="a second stumble"),
        pytest.param(7, False, 16.0, id="the last one below the cap"),
        pytest.param(8, False, 20.0, id="the first one at the cap"),
        pytest.param(1, True, 1.0, id="a first throttling"),
        pytest.param(5, True, 16.0, id="a fifth throttling"),
        pytest.param(6, True, 20.0, id="throttled at the cap"),
        pytest.param(10**30, True, 20.0, id="more attempts than there is time for"),
    ],
)
def test_the_ceiling_doubles_up_to_the_cap(attempt: int, throttled: bool, ceiling_s: float) -> None:
    assert Backoff().ceiling_s(attempt, throttled=throttled) == pytest.approx(ceiling_s)


def test_the_jitter_covers_everything_from_nothing_to_the_ceiling() -> None:
    chances = iter([0.0, 0.25, 0.5])
    waits = [Backoff().wait_s(3, throttled=True, draw=chances.__next__) for _ in range(3)]
    assert waits == [0.0, 1.0, 2.0]


def check_waits(backoff: Backoff, how: settings = properties) -> None:
    @how
    @given(ATTEMPTS, CHANCES, st.booleans())
    def check(attempt: int, chance: float, throttled: bool) -> None:
        assert 0 <= backoff.wait_s(attempt, throttled=throttled, draw=lambda: chance) <= backoff.cap_s
        assert backoff.ceiling_s(attempt, throttled=throttled) <= backoff.ceiling_s(attempt + 1, throttled=throttled)

    check()


@pytest.mark.parametrize(
    "backoff",
    [
        Backoff(),
        Backoff(transient_base_s=0.0, throttled_base_s=0.0, cap_s=0.0),
        Backoff(transient_base_s=5e-324),
        Backoff(cap_s=86_400),
    ],
    ids=["standard", "none at all", "the smallest base", "a day"],
)
def test_no_wait_is_negative_or_above_the_cap_and_no_ceiling_falls(backoff: Backoff) -> None:
    check_waits(backoff)


class CapForgotten(Backoff):
    """A planted bug: the cap is forgotten for throttled waits."""

    __slots__ = ()

    def ceiling_s(self, attempt: int, *, throttled: bool) -> float:
        return self.throttled_base_s * 2.0 ** min(attempt, 100) if throttled else self.cap_s


def test_the_check_of_waits_finds_a_forgotten_cap() -> None:
    with pytest.raises(AssertionError):
        check_waits(CapForgotten(), planted)


@pytest.mark.parametrize("attempt", [0, -1])
def test_an_attempt_that_was_never_made_is_refused(attempt: int) -> None:
    with pytest.raises(ValueError, match="the first attempt is number 1"):
        Backoff().ceiling_s(attempt, throttled=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cap_s": float("nan")}, "cap_s=nan is out of range: choose 0 to 86400"),
        ({"cap_s": -1.0}, "cap_s=-1.0"),
        ({"transient_base_s": -0.1}, "transient_base_s=-0.1"),
        ({"throttled_base_s": 30.0}, "throttled_base_s=30.0 is out of range: choose 0 to 20"),
    ],
    ids=["no number", "a negative cap", "a negative base", "a base above the cap"],
)
def test_settings_out_of_range_are_refused_by_name_value_and_range(settings: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Backoff(**settings)
