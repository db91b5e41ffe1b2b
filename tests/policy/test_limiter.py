"""The limit follows the latency, stays within its bounds, and is kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.limiter import Aimd, Gradient2, Law, Limiter, LimiterConfig, Sample
from onefold.errors import ConfigurationError, ProgrammerError
from tests.policy.properties import planted, properties

AT_ONCE = LimiterConfig(initial=10, least=2, most=50, gather_s=0.001, calls_least=1)


def sample(*, latency_s: float = 0.1, in_flight: int = 1000, dropped: float = 0.0) -> Sample:
    return Sample(mean_s=latency_s, slowest_s=latency_s, in_flight=in_flight, dropped=dropped)


def warm(law: Gradient2, latency_s: float = 0.1) -> Gradient2:
    for _ in range(20):
        law.next_limit(100.0, sample(latency_s=latency_s))
    return law


@pytest.mark.parametrize(
    ("seen", "limit"),
    [
        pytest.param(sample(in_flight=50), 101.0, id="half of it is used: one more"),
        pytest.param(sample(in_flight=49), 100.0, id="less is used: as it is"),
        pytest.param(sample(dropped=0.01), 90.0, id="a drop: a tenth less"),
        pytest.param(sample(latency_s=5.1), 90.0, id="far too slow: a tenth less"),
        pytest.param(sample(latency_s=5.0), 101.0, id="slow, but not too slow"),
        pytest.param(sample(dropped=0.01, in_flight=1), 90.0, id="a drop counts also when little is used"),
    ],
)
def test_aimd_adds_one_or_takes_a_tenth(seen: Sample, limit: float) -> None:
    assert Aimd().next_limit(100.0, seen) == pytest.approx(limit)


@pytest.mark.parametrize(
    ("seen", "limit"),
    [
        pytest.param(sample(), 100.8, id="as fast as ever: a fifth of the way to four more"),
        pytest.param(sample(latency_s=0.14), 100.8, id="within the tolerance"),
        pytest.param(sample(latency_s=10.0), 90.8, id="much slower: a fifth of the way to half and four"),
        pytest.param(sample(in_flight=49), 100.0, id="little is used: as it is"),
        pytest.param(sample(dropped=1.0), 90.8, id="all dropped"),
        pytest.param(sample(dropped=0.5), 90.8, id="half of them dropped"),
        pytest.param(sample(dropped=0.1), 98.8, id="one in ten dropped"),
        pytest.param(sample(dropped=1.0, in_flight=1), 90.0, id="a drop counts also when little is used"),
        pytest.param(sample(dropped=0.01, in_flight=1), 99.8, id="and few drops are no reason to grow then"),
        pytest.param(sample(latency_s=0.0), 100.0, id="a latency of nothing teaches nothing"),
    ],
)
def test_gradient2_follows_the_ratio_of_usual_to_present(seen: Sample, limit: float) -> None:
    assert warm(Gradient2()).next_limit(100.0, seen) == pytest.approx(limit)


def test_gradient2_shrinks_the_more_the_slower_calls_are() -> None:
    limits = [
        warm(Gradient2()).next_limit(100.0, sample(latency_s=latency_s)) for latency_s in (0.1, 0.16, 0.2, 0.25, 9.0)
    ]
    assert limits == sorted(limits, reverse=True)
    assert len(set(limits)) == 5


def test_gradient2_forgets_an_overload_sooner_than_it_learned_it() -> None:
    law = warm(Gradient2(), latency_s=10.0)
    for _ in range(60):
        law.next_limit(100.0, sample(latency_s=0.1))
    assert law.next_limit(100.0, sample(latency_s=0.35)) < 100.0  # slow again, by the measure of the present


def test_a_call_enters_while_there_is_room() -> None:
    limiter = Limiter(Aimd(), AT_ONCE)
    assert [limiter.enter() for _ in range(12)] == [True] * 10 + [False] * 2
    limiter.leave(0.0, None)
    assert limiter.enter()
    assert not limiter.enter()


def test_what_is_cancelled_gives_its_place_back_and_teaches_nothing() -> None:
    limiter = Limiter(Aimd(), AT_ONCE)
    for now in range(100):
        assert limiter.enter()
        limiter.leave(float(now), None, dropped=True)
    assert (limiter.limit, limiter.in_flight) == (10, 0)


def test_many_drops_of_one_moment_shrink_the_limit_once() -> None:
    limiter = Limiter(Aimd(), LimiterConfig(initial=100, gather_s=1.0, calls_least=10))
    for _ in range(100):
        assert limiter.enter()
    for _ in range(99):
        limiter.leave(0.0, 0.1, dropped=True)
    assert limiter.limit == 100
    limiter.leave(1.0, 0.1, dropped=True)
    assert limiter.limit == 90


def settled_at(law: Gradient2, dropped: float) -> float:
    """Where the limit ends when this share of the calls is dropped for ever."""
    limit = 100.0
    for _ in range(2000):
        limit = min(200.0, warm(law).next_limit(limit, sample(dropped=dropped)))
    return limit


def test_a_few_drops_do_not_make_the_limit_collapse_and_many_do() -> None:
    assert settled_at(Gradient2(), 0.01) == 200.0
    assert settled_at(Gradient2(), 0.5) == pytest.approx(8.0)


def test_calls_that_are_still_under_way_count_as_use_of_the_limit() -> None:
    limiter = Limiter(Aimd(), LimiterConfig(initial=10, gather_s=1.0, calls_least=1))
    for _ in range(10):
        assert limiter.enter()
    for now in range(4):
        limiter.leave(float(now), 0.1)
    assert limiter.limit == 12  # nobody entered since the first gathering ended, and yet more than half is used


def test_few_calls_do_not_move_the_limit_however_long_they_take() -> None:
    limiter = Limiter(Aimd(), LimiterConfig(initial=100, gather_s=1.0, calls_least=10))
    for now in range(9):
        assert limiter.enter()
        limiter.leave(now * 10.0, 60.0)
    assert limiter.limit == 100


@pytest.mark.parametrize("law", [Aimd, Gradient2])
def test_a_service_with_room_for_thirty_is_found_out(law: Callable[[], Law]) -> None:
    """Up to 30 at once take 0.1 s; beyond that they queue, and past 60 the service drops."""
    limiter = Limiter(law(), LimiterConfig(gather_s=0.1, calls_least=1))
    now, limits = 0.0, []
    for _ in range(600):
        entered = 0
        while limiter.enter():
            entered += 1
        latency_s = 0.1 * max(1.0, entered / 30)
        now += latency_s
        for number in range(entered):
            limiter.leave(now, latency_s, dropped=number >= 60)
        limits.append(limiter.limit)
    assert all(20 <= limit <= 70 for limit in limits[100:])


def check_bounds(make: Callable[[], Limiter], how: settings = properties) -> None:
    events = st.tuples(st.booleans(), st.floats(0, 2), st.none() | st.floats(0, 20), st.booleans())

    @how
    @given(st.lists(events, max_size=150))
    def check(steps: list[tuple[bool, float, float | None, bool]]) -> None:
        limiter, now, inside = make(), 0.0, 0
        for enters, after_s, latency_s, dropped in steps:
            now += after_s
            if enters:
                room = inside < limiter.limit
                assert limiter.enter() is room
                inside += room
            elif inside:
                limiter.leave(now, latency_s, dropped=dropped)
                inside -= 1
            assert limiter.in_flight == inside
            assert 2 <= limiter.limit <= 50

    check()


@pytest.mark.parametrize("law", [Aimd, Gradient2])
def test_the_limit_is_kept_and_stays_within_its_bounds(law: Callable[[], Law]) -> None:
    check_bounds(lambda: Limiter(law(), AT_ONCE))


class OneMore(Limiter):
    """A planted bug: the last place is given away twice."""

    def enter(self) -> bool:
        if self._in_flight == int(self._limit):
            self._in_flight += 1
            return True
        return super().enter()


class Unbounded(Limiter):
    """A planted bug: the lower bound is forgotten."""

    def __init__(self) -> None:
        super().__init__(Aimd(), LimiterConfig(initial=2, least=1, most=50, gather_s=0.001, calls_least=1))


@pytest.mark.parametrize(
    "broken",
    [lambda: OneMore(Aimd(), replace(AT_ONCE, initial=2)), Unbounded],
    ids=["one more", "a lower bound forgotten"],
)
def test_the_check_of_bounds_finds_a_limiter_that_does_not_keep_them(broken: Callable[[], Limiter]) -> None:
    with pytest.raises(AssertionError):
        check_bounds(broken, planted)


def test_who_leaves_without_having_entered_is_told_so() -> None:
    with pytest.raises(ProgrammerError, match="pair each enter with one leave"):
        Limiter(Aimd()).leave(0.0, 0.1)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: LimiterConfig(least=0), "least"),
        (lambda: LimiterConfig(most=0), "most"),
        (lambda: LimiterConfig(initial=500), "initial"),
        (lambda: Aimd(shrink=1.0), "shrink"),
        (lambda: Gradient2(smoothing=0.0), "smoothing"),
    ],
)
def test_terms_out_of_range_are_refused_by_name(make: Callable[[], object], field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}="):
        make()
