"""What one principal may have at most: no hour has more records, every place comes back, memory is bounded."""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest

from onefold._policy.quota import SPAN_S, Quota, QuotaSlot
from onefold.errors import ConfigurationError


def record(quota: Quota, principal: str, now: float) -> bool:
    """One request that is stored, if it may be."""
    place = quota.enter(principal, now, may_record=True)
    if not isinstance(place, QuotaSlot):
        return False
    place.recorded = True
    place.leave()
    return True


def test_each_principal_has_its_own_requests_in_flight() -> None:
    quota = Quota(in_flight=2)
    places = [quota.enter("acme", 0.0, may_record=True) for _ in range(2)]
    assert all(isinstance(place, QuotaSlot) for place in places)
    assert quota.enter("acme", 0.0, may_record=False) is None
    assert isinstance(quota.enter("umbrella", 0.0, may_record=True), QuotaSlot)
    first = places[0]
    assert isinstance(first, QuotaSlot)
    first.leave()
    first.leave()  # once is enough: nothing is given back twice
    assert isinstance(quota.enter("acme", 0.0, may_record=True), QuotaSlot)
    assert quota.enter("acme", 0.0, may_record=True) is None


def test_no_hour_has_more_records_than_the_limit_and_the_wait_it_names_is_enough() -> None:
    chance = random.Random(20)
    for _ in range(50):
        limit = chance.randint(1, 8)
        quota, made, now = Quota(records_per_hour=limit), [], chance.uniform(0, 10_000)
        for _ in range(200):
            now += chance.choice((0.0, 1.0, 60.0, 300.0, 2000.0, 9000.0))
            found = quota.enter("acme", now, may_record=True)
            if isinstance(found, QuotaSlot):
                found.recorded = True
                found.leave()
                made.append(now)
                assert len([at for at in made if at > now - 3600]) <= limit
            else:
                assert found is not None
                assert 0 < found <= 3600 + SPAN_S
                assert len([at for at in made if at > now - 3600 - SPAN_S]) >= limit, "it was turned away too early"
                now += found
                assert record(quota, "acme", now)
                made.append(now)


def test_what_may_still_become_a_record_counts_and_what_did_not_does_not() -> None:
    quota = Quota(records_per_hour=2)
    first, second = (quota.enter("acme", 0.0, may_record=True) for _ in range(2))
    assert isinstance(first, QuotaSlot)
    assert isinstance(second, QuotaSlot)
    assert quota.enter("acme", 0.0, may_record=True) == 1.0
    assert isinstance(quota.enter("acme", 0.0, may_record=False), QuotaSlot), "it can never become a record"
    first.leave()
    second.recorded = True
    second.leave()
    assert record(quota, "acme", 1.0)
    assert not record(quota, "acme", 2.0)


def test_a_request_that_took_longer_than_an_hour_is_counted_where_it_belongs() -> None:
    quota = Quota(records_per_hour=1)
    late = quota.enter("acme", 0.0, may_record=True)
    assert isinstance(late, QuotaSlot)
    late.recorded = True
    assert quota.enter("acme", 9000.0, may_record=True) == 1.0
    late.leave()
    assert record(quota, "acme", 9000.0)
    assert not record(quota, "acme", 9001.0)


def test_what_is_remembered_is_bounded() -> None:
    quota = Quota(in_flight=1, records_per_hour=1, principals_max=10)
    for number in range(1000):
        assert record(quota, str(number), 0.0)
    assert (len(quota._running), len(quota._records)) == (0, 10)
    assert not record(quota, "999", 1.0)
    assert record(quota, "0", 1.0), "it was forgotten"


def test_threads_share_it() -> None:
    quota, entered = Quota(in_flight=3), []
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(500):
            place = quota.enter("acme", 0.0, may_record=True)
            if isinstance(place, QuotaSlot):
                entered.append(quota._running["acme"][0])
                place.leave()

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(entered) <= 3
    assert quota._running == {}


@pytest.mark.parametrize(
    "settings", [{}, {"in_flight": 0}, {"in_flight": True}, {"records_per_hour": 1.5}, {"in_flight": "10"}]
)
def test_a_quota_that_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=next(iter(settings), "in_flight=")):
        Quota(**settings)
