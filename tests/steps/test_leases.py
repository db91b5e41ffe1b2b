"""Two times that have nothing to do with each other: how long a process that died keeps a work from others, and how
long a phase, which is a transaction, may take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

import onefold
from onefold import Onefold
from onefold._steps.model import lease_of
from onefold.errors import ConfigurationError
from tests.steps.places import Place
from tests.steps.ride_checks import new_key, wrongs
from tests.steps.ride_processes import Ride, RideProcesses, serve


@pytest.mark.parametrize(
    ("given", "phase_s", "lease_s"), [(None, 60.0, 15.0), (None, 5.0, 5.0), (120.0, 60.0, 120.0), (3.0, 60.0, 3.0)]
)
def test_a_lease_is_fifteen_seconds_or_a_phase_if_that_is_less_or_as_given(
    given: float | None, phase_s: float, lease_s: float
) -> None:
    assert lease_of(given, phase_s) == lease_s


def test_a_phase_may_take_longer_than_its_process_may_be_silent(place: Place) -> None:
    """On SQLite nothing ends a transaction."""
    limits: list[str] = []

    def look(tx: Any) -> None:
        if place.is_postgres:
            limits.extend(tx.connection.execute("SHOW idle_in_transaction_session_timeout").fetchone())

    once = Onefold(place.address, source="rides")
    with once.work("import") as work:
        work.phase("look", look)
        end = "extract(epoch FROM lease_ends_at) - extract(epoch FROM now())"
        now_ms = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
        left = end if place.is_postgres else f"(lease_ends_at_ms - {now_ms}) / 1000.0"
        [(left_s,)] = place.rows(f"SELECT {left} FROM onefold_work")
    once.close()
    assert 0 < left_s <= 15
    assert limits == (["1min"] if place.is_postgres else [])


@pytest.mark.parametrize("given", [0.0, -1.0, 100_000.0])
def test_a_lease_that_cannot_be_is_refused_where_it_is_written(place: Place, given: float) -> None:
    once = Onefold(place.address, source="rides", principal=onefold.single_principal)
    with pytest.raises(ConfigurationError, match="work_lease_s"):
        once.idempotent(work_lease_s=given)
    once.close()


@pytest.mark.soak
@pytest.mark.parametrize("lease_s", [60.0, 600.0])
def test_a_client_with_its_defaults_outlasts_a_process_that_is_killed_in_its_steps(
    place: Place, tmp_path: Path, lease_s: float
) -> None:
    """The lease of the dead one is all that it waits for, and that is 15 s, whatever a phase may take."""
    blank = Ride(address=place.address, processor=str(tmp_path / "processor"), key="", lease_s=lease_s)
    processes = RideProcesses()
    [charge] = [each for each in processes.ask(replace(blank, key=new_key())).crossings if "charge" in str(each)][-1:]
    ride = replace(blank, key=new_key(), act="kill", at=charge.number)
    assert processes.ask(ride).state == "killed"
    with serve(ride) as flask:
        transport = onefold.retrying(httpx.WSGITransport(flask.application))
        with httpx.Client(transport=transport, base_url="http://rides", timeout=None) as client:
            answer = client.post(f"/rides/{ride.key}", json={}, headers={"Idempotency-Key": ride.key})
    assert answer.status_code == 201
    assert not [*wrongs(place, ride, [], (answer.status_code, answer.json()))]
