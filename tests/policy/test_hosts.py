"""One machine per host, and not one more than allowed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._policy.budget import Budget
from onefold._policy.hosts import Hosts
from onefold.errors import ConfigurationError
from tests.policy.overtaken import Overtaken
from tests.policy.properties import planted, properties


def test_a_host_keeps_its_machine_and_shares_it_with_nobody() -> None:
    hosts = Hosts(lambda _: Budget())
    assert hosts.of("a.example", 0.0) is hosts.of("a.example", 1.0)
    assert hosts.of("a.example", 2.0) is not hosts.of("b.example", 2.0)


def test_the_quietest_host_is_forgotten_first() -> None:
    hosts = Hosts(lambda _: Budget(), hosts_max=3)
    machines = {host: hosts.of(host, at) for at, host in enumerate(["a", "b", "c"])}
    hosts.of("a", 10.0)
    hosts.of("d", 11.0)
    assert len(hosts) == 3
    assert hosts.of("a", 12.0) is machines["a"]
    assert hosts.of("c", 12.0) is machines["c"]
    assert hosts.of("b", 12.0) is not machines["b"]


def test_two_threads_that_meet_a_new_host_share_its_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = Hosts(lambda _: Budget())
    first = []
    monkeypatch.setattr(hosts, "_lock", Overtaken(lambda: first.append(hosts.of("a", 0.0))))
    assert [hosts.of("a", 0.0)] == first


def check_bound(kind: type[Hosts[Budget]], how: settings = properties) -> None:
    @how
    @given(st.integers(1, 20), st.lists(st.integers(0, 50), max_size=100))
    def check(hosts_max: int, visits: list[int]) -> None:
        hosts = kind(lambda _: Budget(), hosts_max=hosts_max)
        for now, number in enumerate(visits):
            assert hosts.of(f"host-{number}", float(now)) is hosts.of(f"host-{number}", float(now))
            assert len(hosts) <= hosts_max

    check()


def test_there_are_never_more_machines_than_allowed() -> None:
    check_bound(Hosts[Budget])


class Hoard(Hosts[Budget]):
    """A planted bug: nothing is forgotten."""

    def _forget(self) -> None:
        pass


def test_the_check_of_the_bound_finds_a_hoard() -> None:
    with pytest.raises(AssertionError):
        check_bound(Hoard, planted)


def test_room_for_no_host_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="hosts_max=0"):
        Hosts(lambda _: Budget(), hosts_max=0)
