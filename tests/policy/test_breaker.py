"""Opens late, comes back gently, and listens only to those it let through."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.breaker import Admission, Breaker, BreakerConfig, Permit, Refused
from onefold._policy.outcome import Verdict
from onefold.errors import ConfigurationError
from tests.policy.overtaken import Overtaken
from tests.policy.properties import planted, properties

Make = Callable[[], Breaker]


def breaker() -> Breaker:
    # Room to see the open time grow; and all three probes have to succeed, so that one that fails is enough to open it.
    return Breaker(lambda: 1.0, BreakerConfig(open_max_s=60, proofs=3))


def call(machine: Breaker, verdict: Verdict, now: float) -> None:
    machine.report(permit(machine, now), verdict, now)


def permit(machine: Breaker, now: float) -> Permit:
    admission = machine.admit(now)
    assert isinstance(admission, Permit), admission
    return admission


def opened(machine: Breaker, now: float = 0.0) -> Breaker:
    for _ in range(5):
        call(machine, Verdict.FAILURE, now)
    assert isinstance(machine.admit(now), Refused)
    return machine


def is_open(machine: Breaker, now: float) -> bool:
    return machine.ready_at(now) > now


@pytest.mark.parametrize(
    ("successes", "failures", "opens"),
    [
        pytest.param(0, 4, False, id="one call with all its attempts"),
        pytest.param(0, 5, True, id="five failures and nothing else"),
        pytest.param(1, 4, False, id="four of five, as happens at half an outage"),
        pytest.param(1, 9, True, id="eighty percent of ten, and one"),
        pytest.param(2, 8, False, id="eighty percent of ten"),
        pytest.param(10, 10, False, id="half an outage"),
        pytest.param(200, 804, False, id="just below, with much traffic"),
        pytest.param(200, 805, True, id="just there, with much traffic"),
    ],
)
def test_it_opens_at_eighty_percent_of_enough_calls_and_a_little(successes: int, failures: int, opens: bool) -> None:
    machine = breaker()
    for _ in range(successes):
        call(machine, Verdict.SUCCESS, 0.0)
    for _ in range(failures):
        call(machine, Verdict.FAILURE, 0.0)
    assert is_open(machine, 0.0) is opens


def test_failures_that_are_older_than_the_window_do_not_count() -> None:
    machine = breaker()
    for now in (0.0, 0.0, 0.0, 0.0, 20.0):
        call(machine, Verdict.FAILURE, now)
    assert not is_open(machine, 20.0)


def test_what_is_not_the_fault_of_the_server_counts_neither_way() -> None:
    machine = breaker()
    for _ in range(1000):
        call(machine, Verdict.NEITHER, 0.0)
    assert not is_open(machine, 0.0)
    assert is_open(opened(machine), 0.0)


def test_an_open_breaker_refuses_until_its_time_is_over_and_says_when() -> None:
    machine = opened(breaker())
    assert machine.admit(4.99) == Refused(5.0)
    assert isinstance(machine.admit(5.0), Permit)


def test_three_probes_may_be_out_at_once_and_a_fourth_is_refused() -> None:
    machine = opened(breaker())
    probes = [permit(machine, 5.0) for _ in range(3)]
    assert machine.admit(5.0) == Refused(5.0)
    machine.succeed(probes[0], 5.1)
    permit(machine, 5.1)
    assert machine.admit(5.1) == Refused(5.1)


def test_three_probes_that_succeed_close_it() -> None:
    machine = opened(breaker())
    for _ in range(3):
        call(machine, Verdict.SUCCESS, 5.0)
    assert machine.admit(5.0) is machine.admit(5.0)  # one permit for all: closed


def test_failures_from_before_do_not_weigh_on_a_breaker_that_has_closed() -> None:
    machine = opened(breaker())
    for _ in range(3):
        call(machine, Verdict.SUCCESS, 5.0)
    for _ in range(4):
        call(machine, Verdict.FAILURE, 5.0)
    assert not is_open(machine, 5.0)


def test_one_probe_that_fails_opens_it_again_for_longer() -> None:
    machine = opened(breaker())
    call(machine, Verdict.SUCCESS, 5.0)
    call(machine, Verdict.SUCCESS, 5.0)
    call(machine, Verdict.FAILURE, 5.0)
    assert machine.admit(5.0) == Refused(15.0)


@pytest.mark.parametrize(
    ("verdicts", "state"),
    [
        ("s", "half-open"),
        ("f", "half-open"),
        ("sf", "half-open"),
        ("ss", "closed"),
        ("sfs", "closed"),
        ("fss", "closed"),
        ("ff", "open"),
        ("fsf", "open"),
    ],
)
def test_by_default_two_of_three_probes_decide(verdicts: str, state: str) -> None:
    machine = opened(Breaker(lambda: 1.0))
    for verdict in verdicts:
        call(machine, Verdict.SUCCESS if verdict == "s" else Verdict.FAILURE, 5.0)
    assert machine.state(5.0) == state


def test_with_one_probe_that_one_decides() -> None:
    for verdict, state in ((Verdict.SUCCESS, "closed"), (Verdict.FAILURE, "open")):
        machine = opened(Breaker(lambda: 1.0, BreakerConfig(probes=1)))
        call(machine, verdict, 5.0)
        assert machine.state(5.0) == state


def test_probes_that_succeeded_before_it_opened_again_prove_nothing_afterwards() -> None:
    machine = opened(breaker())
    for verdict in (Verdict.SUCCESS, Verdict.SUCCESS, Verdict.FAILURE):
        call(machine, verdict, 5.0)
    call(machine, Verdict.SUCCESS, 15.0)
    call(machine, Verdict.SUCCESS, 15.0)
    assert machine.admit(15.0) is not machine.admit(15.0)  # every probe has its own permit: still half-open


def test_the_open_time_doubles_up_to_its_cap() -> None:
    machine, now, times = opened(breaker()), 0.0, []
    for _ in range(6):
        times.append(machine.ready_at(now) - now)
        now = machine.ready_at(now)
        call(machine, Verdict.FAILURE, now)
    assert times == [5, 10, 20, 40, 60, 60]


@pytest.mark.parametrize(
    ("closed_for_s", "open_s"), [(1.0, 10.0), (59.0, 10.0), (60.0, 5.0)], ids=["soon", "almost calm", "calm"]
)
def test_the_open_time_goes_on_growing_until_there_was_calm(closed_for_s: float, open_s: float) -> None:
    machine = opened(breaker())
    for _ in range(3):
        call(machine, Verdict.SUCCESS, 5.0)
    again = 5.0 + closed_for_s
    assert opened(machine, again).ready_at(again) - again == open_s


@pytest.mark.parametrize(("chance", "open_s"), [(0.0, 2.5), (0.5, 3.75), (0.9999999, 5.0)])
def test_the_jitter_takes_at_most_half_of_the_open_time(chance: float, open_s: float) -> None:
    assert opened(Breaker(lambda: chance)).ready_at(0.0) == pytest.approx(open_s)


@pytest.mark.parametrize("verdict", Verdict)
def test_a_call_from_before_the_opening_changes_nothing_when_it_ends(verdict: Verdict) -> None:
    machine = breaker()
    slow = permit(machine, 0.0)
    opened(machine)
    machine.report(slow, verdict, 1.0)
    assert machine.admit(1.0) == Refused(5.0)
    probes = [permit(machine, 5.0) for _ in range(3)]
    machine.report(slow, verdict, 6.0)
    assert machine.admit(6.0) == Refused(6.0)  # neither closed, nor opened again, nor room for a fourth
    for probe in probes:
        machine.succeed(probe, 6.0)
    for _ in range(50):
        machine.report(slow, verdict, 6.0)
    assert not is_open(machine, 6.0)


def test_a_probe_of_an_earlier_try_changes_nothing_when_it_ends() -> None:
    machine = opened(breaker())
    slow, failing = permit(machine, 5.0), permit(machine, 5.0)
    machine.fail(failing, 5.0)
    for _ in range(3):
        machine.succeed(slow, 15.0)
    assert not isinstance(machine.admit(14.0), Permit)
    machine.fail(slow, 15.0)
    assert isinstance(machine.admit(15.0), Permit)


def test_a_probe_that_reports_twice_is_heard_once() -> None:
    machine = opened(breaker())
    probe = permit(machine, 5.0)
    for _ in range(3):
        machine.succeed(probe, 5.0)
    assert machine.admit(5.0) is not machine.admit(5.0)  # every probe has its own permit: still half-open


def test_a_probe_that_is_released_without_a_verdict_makes_room_for_another() -> None:
    machine = opened(breaker())
    probes = [permit(machine, 5.0) for _ in range(3)]
    machine.release_without_verdict(probes[0])
    permit(machine, 5.0)
    assert isinstance(machine.admit(5.0), Refused)


def test_probes_that_are_never_heard_of_again_do_not_keep_the_host_out_for_ever() -> None:
    machine = opened(breaker())
    for _ in range(3):
        permit(machine, 5.0)
    assert machine.admit(124.0) == Refused(124.0)
    assert machine.admit(125.0) == Refused(135.0)
    assert isinstance(machine.admit(135.0), Permit)


def check_half_open(make: Make, how: settings = properties) -> None:
    """Some calls begin before it opens; then any order of new calls and reports."""

    @how
    @given(
        st.integers(0, 8), st.lists(st.tuples(st.booleans(), st.integers(0, 99), st.sampled_from(Verdict)), max_size=60)
    )
    def check(old: int, steps: list[tuple[bool, int, Verdict]]) -> None:
        machine = make()
        stale = [permit(machine, 0.0) for _ in range(old)]
        opened(machine)
        probes: list[Permit] = []
        proven = 0
        for begins, which, verdict in steps:
            if begins:
                admission = machine.admit(5.0)
                assert isinstance(admission, Permit) is (len(probes) < 3)
                if isinstance(admission, Permit):
                    probes.append(admission)
            elif which % 2 and stale:
                machine.report(stale.pop(), verdict, 5.0)
            elif probes:
                machine.report(probes.pop(which % len(probes)), verdict, 5.0)
                proven += verdict is Verdict.SUCCESS
                if verdict is Verdict.FAILURE:
                    assert is_open(machine, 5.0)
                    return
                if proven == 3:
                    assert machine.admit(5.0) is machine.admit(5.0)
                    return

    check()


def test_in_any_order_of_calls_and_reports_no_more_than_three_probes_are_out() -> None:
    check_half_open(breaker)


class Flood(Breaker):
    """A planted bug that most breakers have: half-open lets everybody through."""

    def admit(self, now: float) -> Admission:
        admission = super().admit(now)
        return Permit() if isinstance(admission, Refused) and not is_open(self, now) else admission


class Hearsay(Breaker):
    """A planted bug: whoever reports is believed, also calls from before it opened."""

    def fail(self, permit: Permit, now: float, *, attempt: int = 1) -> None:
        if self.closed_permit is None and self._probes:
            permit = next(iter(self._probes))
        super().fail(permit, now)

    def succeed(self, permit: Permit, now: float) -> None:
        if self.closed_permit is None and self._probes:
            permit = next(iter(self._probes))
        super().succeed(permit, now)


@pytest.mark.parametrize("broken", [Flood, Hearsay])
def test_the_walk_finds_a_breaker_that_floods_or_believes_anybody(broken: type[Breaker]) -> None:
    with pytest.raises(AssertionError):
        check_half_open(lambda: broken(lambda: 1.0), planted)


def test_a_call_that_asks_while_the_breaker_closes_is_no_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = opened(breaker())
    probes = [permit(machine, 5.0) for _ in range(2)]

    def closes() -> None:
        for probe in (*probes, permit(machine, 5.0)):
            machine.succeed(probe, 5.0)

    monkeypatch.setattr(machine, "_lock", Overtaken(closes))
    assert machine.admit(5.0) is machine.admit(5.0)


def test_threads_that_ask_at_once_get_three_probes_between_them() -> None:
    for _ in range(20):
        machine = opened(breaker())
        with ThreadPoolExecutor(8) as pool:
            admissions = list(pool.map(machine.admit, [5.0] * 64))
        assert sum(isinstance(admission, Permit) for admission in admissions) == 3


@pytest.mark.parametrize(
    ("field", "make"),
    [
        ("failure_share", lambda: BreakerConfig(failure_share=0.0)),
        ("calls_least", lambda: BreakerConfig(calls_least=0)),
        ("slices", lambda: BreakerConfig(slices=1)),
        ("open_s", lambda: BreakerConfig(open_s=100.0)),
        ("probes", lambda: BreakerConfig(probes=0)),
        ("probe_s", lambda: BreakerConfig(probe_s=0.0)),
    ],
)
def test_terms_out_of_range_are_refused_by_name(field: str, make: Callable[[], BreakerConfig]) -> None:
    with pytest.raises(ConfigurationError, match=f"^{field}="):
        make()
