"""A standing queue is shed, a burst is not, and the measure is the service's own latency."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.shedder import Shedder, SheddingConfig
from onefold.errors import ConfigurationError
from tests.policy.properties import planted, properties

FIVE_MS = SheddingConfig(target_least_s=0.005, target_most_s=0.005)


def shedder(latency_s: float = 0.1) -> Shedder:
    """The judge of a service that takes this long; its first interval begins at 0."""
    judge = Shedder()
    judge.serve(latency_s)
    assert judge.admit(0.0, 0.0)
    return judge


def overloaded() -> Shedder:
    """After a second in which everybody waited half a second, where a tenth is the target."""
    judge = shedder()
    judge.admit(0.5, 1.0)
    for tenth in range(11, 21):
        judge.admit(0.5, tenth / 10)
    assert judge.overloaded
    return judge


@pytest.mark.parametrize(
    ("latency_s", "target_s"),
    [(0.0001, 0.005), (0.02, 0.02), (0.1, 0.1), (30.0, 1.0)],
    ids=["at least 5 ms", "20 ms of work", "100 ms of work", "at most a second"],
)
def test_the_target_follows_the_latency_within_bounds(latency_s: float, target_s: float) -> None:
    assert shedder(latency_s)._target_s == target_s


def test_one_slow_request_does_not_move_the_target() -> None:
    judge = Shedder()
    for latency_s in (0.1, 0.1, 59.0):
        judge.serve(latency_s)
    judge.admit(0.0, 0.0)
    assert judge._target_s == 0.1


def test_a_burst_is_served_when_the_queue_empties_within_the_interval() -> None:
    judge = shedder()
    waits = [0.9, 0.7, 0.5, 0.3, 0.05] * 20
    assert all(judge.admit(waited_s, number / 10) for number, waited_s in enumerate(waits))


@pytest.mark.parametrize(
    ("waited_s", "served"),
    [(0.0, True), (0.2, True), (0.21, False), (9.0, False)],
    ids=["0", "two targets", "more", "9"],
)
def test_in_overload_who_waited_more_than_two_targets_is_shed(waited_s: float, served: bool) -> None:
    assert overloaded().admit(waited_s, 2.01) is served


@pytest.mark.parametrize(
    ("shortest_s", "stays"),
    [(0.5, True), (0.11, True), (0.06, True), (0.05, False), (0.0, False)],
    ids=["as bad", "above the target", "between", "half the target", "no wait"],
)
def test_overload_ends_only_well_below_the_target(shortest_s: float, stays: bool) -> None:
    judge = overloaded()
    for tenth in range(21, 45):
        judge.admit(shortest_s, tenth / 10)
    assert judge.overloaded is stays


@pytest.mark.parametrize("shortest_s", [0.06, 0.1])
def test_what_does_not_end_an_overload_does_not_begin_one_either(shortest_s: float) -> None:
    judge = shedder()
    for tenth in range(1, 40):
        judge.admit(shortest_s, tenth / 10)
    assert not judge.overloaded


def test_a_queue_that_was_empty_for_an_interval_is_no_longer_overloaded() -> None:
    judge = overloaded()
    assert judge.admit(0.5, 60.0)
    assert not judge.overloaded


def test_a_queue_from_which_nobody_left_for_long_is_still_overloaded() -> None:
    assert not overloaded().admit(58.5, 60.0)


def check_fairness(make: Callable[[], Shedder], how: settings = properties) -> None:
    steps = st.tuples(st.floats(0, 1), st.floats(0, 2), st.none() | st.floats(0, 5))

    @how
    @given(st.lists(steps, max_size=100))
    def check(requests: list[tuple[float, float, float | None]]) -> None:
        judge, now = make(), 0.0
        for after_s, waited_s, latency_s in requests:
            now += after_s
            served = judge.admit(waited_s, now)
            assert served or (judge.overloaded and waited_s > 2 * judge._target_s)
            assert 0.005 <= judge._target_s <= 1.0
            if latency_s is not None:
                judge.serve(latency_s)

    check()


def test_nobody_is_shed_without_overload_or_within_two_targets() -> None:
    check_fairness(Shedder)


class Impatient(Shedder):
    """A planted bug: overload sheds everybody."""

    def admit(self, waited_s: float, now: float) -> bool:
        return super().admit(waited_s, now) and not self.overloaded


def test_the_check_of_fairness_finds_a_judge_who_sheds_everybody() -> None:
    with pytest.raises(AssertionError):
        check_fairness(Impatient, planted)


def run(judge: Shedder, *, rate: float, seed: int, requests: int = 6000) -> tuple[float, list[float]]:
    """Ten workers, 0.1 s of work on average; returns the share that was shed and the waits of those served."""
    random = Random(seed)
    free = [0.0] * 10
    arrived, shed = 0.0, 0
    waits = []
    for _ in range(requests):
        arrived += random.expovariate(rate)
        now = max(arrived, heappop(free))
        if judge.admit(now - arrived, now):
            latency_s = random.uniform(0.05, 0.15)
            judge.serve(latency_s)
            waits.append(now - arrived)
            heappush(free, now + latency_s)
        else:
            shed += 1
            heappush(free, now)
    return shed / requests, waits


@pytest.mark.parametrize("seed", range(3))
def test_at_an_ordinary_load_nothing_is_shed_where_a_fixed_target_sheds(seed: int) -> None:
    assert run(Shedder(), rate=80, seed=seed)[0] == 0
    assert run(Shedder(FIVE_MS), rate=80, seed=seed)[0] > 0.01


@pytest.mark.parametrize("seed", range(3))
def test_at_half_as_much_again_the_surplus_is_shed_and_the_others_are_served_in_time(seed: int) -> None:
    shed, waits = run(Shedder(), rate=150, seed=seed)
    assert 0.25 < shed < 0.45
    assert sorted(waits)[len(waits) * 9 // 10] <= 0.25


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: SheddingConfig(target_least_s=2.0), "target_least_s"),
        (lambda: SheddingConfig(target_most_s=100.0), "target_most_s"),
        (lambda: SheddingConfig(intervals=0.0), "intervals"),
        (lambda: SheddingConfig(latencies=0), "latencies"),
    ],
)
def test_terms_out_of_range_are_refused_by_name(make: Callable[[], SheddingConfig], field: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}="):
        make()
