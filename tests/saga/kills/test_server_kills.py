"""Services, servers and both of them, killed at every point of a saga on Restate and on Temporal: each effect net 0 or
1, the saga whole or undone."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from onefold.errors import StoreUnavailable
from onefold.sagas import SagaEngine, SagaStatus, SagaUnknown
from onefold.telemetry import Event, SagaEnded
from onefold.testing.servers import PrivateRestate
from tests.saga.conformance.sagas import patient
from tests.saga.kills.killing import POINTS, judge
from tests.saga.kills.server_killing import Target, Victim, kill_and_go_on, restate_target, temporal_target
from tests.saga.server_engines import RestateOpener
from tests.support.patience import PATIENCE_S
from tests.support.temporal_server import PrivateTemporal
from tests.testing.servers.missing import unless_missing
from tests.testing.servers.processes import ends


@pytest.fixture(scope="module")
def mortal_restate() -> Iterator[PrivateRestate]:
    with unless_missing(PrivateRestate), PrivateRestate() as server:
        yield server


@pytest.fixture(scope="module")
def mortal_temporal() -> Iterator[PrivateTemporal]:
    with unless_missing(PrivateTemporal), PrivateTemporal() as server:
        yield server


@pytest.fixture
def restate_there(mortal_restate: PrivateRestate) -> Iterator[Target]:
    with restate_target(mortal_restate) as target:
        yield target


@pytest.fixture
def temporal_there(mortal_temporal: PrivateTemporal) -> Iterator[Target]:
    with temporal_target(mortal_temporal) as target:
        yield target


#: Each victim, each way to end and each moment once.
SOME: list[tuple[Victim, str, str]] = [
    ("service", "complete", "charge:mid"),
    ("both", "abort", "refund:before"),
    ("server", "complete", "end:before"),
]
every_victim = pytest.mark.parametrize("victim", ["service", "server", "both"])


@pytest.mark.parametrize(("victim", "mode", "at"), SOME)
def test_a_saga_on_restate_ends_as_if_nothing_had_died(
    tmp_path: Path, restate_there: Target, victim: Victim, mode: str, at: str
) -> None:
    outside = kill_and_go_on(restate_there, tmp_path / "world.db", mode, at, victim)
    assert judge(outside, mode) == []
    if at == "charge:mid":
        # The engine ran it twice: only the key makes its effect single.
        assert outside.executions()["charge"] == 2


@pytest.mark.parametrize(("victim", "mode", "at"), SOME[:2])
def test_a_saga_on_temporal_ends_as_if_nothing_had_died(
    tmp_path: Path, temporal_there: Target, victim: Victim, mode: str, at: str
) -> None:
    outside = kill_and_go_on(temporal_there, tmp_path / "world.db", mode, at, victim)
    assert judge(outside, mode) == []


async def test_a_saga_is_never_unknown_to_a_restate_that_comes_back(mortal_restate: PrivateRestate) -> None:
    """It answers queries before it has read its log again, and then lists nothing. The saga has not stopped, either."""
    heard: list[Event] = []
    opener = RestateOpener(mortal_restate)
    with closing(opener):
        for round_number in range(3):
            async with opener([patient], listener=heard.append) as engine:
                saga_id = f"outlives-{round_number}"
                await engine.start(patient, saga_id, {"item": "book"})
                os.kill(mortal_restate.pid, signal.SIGKILL)
                assert ends(mortal_restate.pid)
                restarting = asyncio.create_task(asyncio.to_thread(mortal_restate.restart))
                async with asyncio.timeout(PATIENCE_S):
                    statuses = await asyncio.gather(*(_first_status(engine, saga_id) for _ in range(4)))
                    await restarting
                assert {status.saga for status in statuses} == {patient.name}
                with pytest.raises(SagaUnknown, match="no saga 'never-started'"):
                    await engine.status("never-started")
                await engine.signal(saga_id, "paid", 1)
                assert await engine.result(saga_id, timeout_s=PATIENCE_S) == 1
    assert [event.outcome for event in heard if isinstance(event, SagaEnded)] == ["completed"] * 3


async def _first_status(engine: SagaEngine, saga_id: str) -> SagaStatus:
    while True:
        try:
            return await engine.status(saga_id)
        except StoreUnavailable:
            await asyncio.sleep(0.001)


@pytest.mark.soak
def test_the_control_without_keys_has_an_effect_twice_on_restate(tmp_path: Path, restate_there: Target) -> None:
    outside = kill_and_go_on(restate_there, tmp_path / "world.db", "complete", "charge:mid", "service", keyed=False)
    assert judge(outside, "complete") == ["charge stands 2 times", "charge: net 2 of a saga that completed"]


@pytest.mark.soak
def test_the_control_without_keys_has_an_effect_twice_on_temporal(tmp_path: Path, temporal_there: Target) -> None:
    outside = kill_and_go_on(temporal_there, tmp_path / "world.db", "complete", "charge:mid", "service", keyed=False)
    assert judge(outside, "complete") == ["charge stands 2 times", "charge: net 2 of a saga that completed"]


@pytest.mark.soak
@every_victim
@pytest.mark.parametrize(("mode", "at"), POINTS)
def test_killed_at_any_point_a_saga_on_restate_ends_as_if_nothing_had_died(
    tmp_path: Path, restate_there: Target, victim: Victim, mode: str, at: str
) -> None:
    assert judge(kill_and_go_on(restate_there, tmp_path / "world.db", mode, at, victim), mode) == []


@pytest.mark.soak
@every_victim
@pytest.mark.parametrize(("mode", "at"), POINTS)
def test_killed_at_any_point_a_saga_on_temporal_ends_as_if_nothing_had_died(
    tmp_path: Path, temporal_there: Target, victim: Victim, mode: str, at: str
) -> None:
    assert judge(kill_and_go_on(temporal_there, tmp_path / "world.db", mode, at, victim), mode) == []
