"""What engines with a server have in common beyond the conformance suite: processes that end and come back, definitions
that change in between, and requests that come from the server's own tools."""

from __future__ import annotations

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from restate import TerminalError
from temporalio.exceptions import ApplicationError

from onefold.sagas import Compensated, Saga, SagaStatus, SagaUnknown, saga
from onefold.sagas.temporal import Temporal
from tests.saga.conformance.cases import compensated, recorded, retry, seen, until
from tests.saga.conformance.sagas import (
    QUICK,
    RETRY,
    WORLD,
    charge,
    order,
    patient,
    refund,
    release,
    reserve,
    ship,
    slow,
    unship,
)
from tests.saga.server_engines import Opener, RestateOpener, TemporalOpener
from tests.support.patience import PATIENCE_S
from tests.support.temporal_server import PrivateTemporal

_numbers = itertools.count(1)

#: Temporal waits for seconds before it tries a workflow's task again, and cannot be hurried.
slow_on_temporal = pytest.mark.parametrize(
    "opener", ["restate", pytest.param("temporal", marks=pytest.mark.soak)], indirect=True
)


@pytest.fixture(params=["restate", "temporal"])
def opener(request: pytest.FixtureRequest) -> Iterator[Opener]:
    server = request.getfixturevalue(request.param)
    made: Opener = RestateOpener(server) if request.param == "restate" else TemporalOpener(server)
    yield made
    made.close()


@pytest.fixture
def saga_id() -> str:
    return f"server-{next(_numbers)}"


@saga("conformance-patient", undo_retry=RETRY, undo_pause=QUICK)
async def changed(s: Saga, o: dict[str, Any]) -> Any:
    """The saga `patient` with a step in front, under the same name and version."""
    await s.step("charge", charge, o, undo=refund, retry=RETRY)
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    paid = await s.wait("paid")
    await s.step("ship", ship, o, undo=unship, retry=RETRY)
    return paid


def with_session(step: Callable[[dict[str, Any]], object]) -> Callable[[object, dict[str, Any]], object]:
    """As `s.tx` calls it."""
    return lambda session, o: step(o)


@saga("transacting", undo_retry=RETRY, undo_pause=QUICK)
async def transacting(s: Saga, o: dict[str, Any]) -> None:
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    await s.tx("charge", with_session(charge), o, undo=with_session(refund))


@slow_on_temporal
async def test_a_definition_that_changed_under_a_running_saga_stops_it(opener: Opener, saga_id: str) -> None:
    async with opener([patient]) as engine:
        await engine.start(patient, saga_id, {"item": "book"})
        await recorded(engine, saga_id, "reserve")
    async with opener([changed]) as engine:
        await engine.signal(saga_id, "paid", 1)
        status = await until(engine, saga_id, "stopped")
        assert status.error
        assert WORLD.of(saga_id) == ["reserve"]  # nothing more, and nothing undone
    async with opener([patient]) as engine:
        await retry(engine, saga_id)
        assert await engine.result(saga_id, timeout_s=PATIENCE_S) == 1
    assert WORLD.of(saga_id) == ["reserve", "ship"]


async def test_a_saga_that_is_not_served_any_more_stops(opener: Opener, saga_id: str) -> None:
    async with opener([patient]) as engine:
        await engine.start(patient, saga_id, {"item": "book"})
        await recorded(engine, saga_id, "reserve")
    async with opener([order]) as engine:
        await engine.signal(saga_id, "paid", 1)
        status = await until(engine, saga_id, "stopped")
        assert status.error is not None
        assert "sagas=[...]" in status.error
        assert WORLD.of(saga_id) == ["reserve"]


async def test_an_engine_that_stops_lets_its_step_end_and_begins_no_other(opener: Opener, saga_id: str) -> None:
    async with opener([slow]) as engine:
        await engine.start(slow, saga_id, {"item": "book"})
        await seen(saga_id, "charge")
        closing = asyncio.create_task(engine.close())
        await asyncio.sleep(0.2)  # it waits
        WORLD.gates.add(f"{saga_id}:charge")
        await closing
        assert WORLD.of(saga_id) == ["reserve", "charge", "charged"]
    async with opener([slow]) as engine:
        assert await engine.result(saga_id, timeout_s=PATIENCE_S) == "shipped"
    assert WORLD.of(saga_id) == ["reserve", "charge", "charged", "ship"]


async def test_a_step_that_takes_longer_than_the_stop_is_run_again_elsewhere(opener: Opener, saga_id: str) -> None:
    async with opener([slow], stop_s=0.1) as engine:
        await engine.start(slow, saga_id, {"item": "book"})
        await seen(saga_id, "charge")
    WORLD.gates.add(f"{saga_id}:charge")
    async with opener([slow]) as engine:
        assert await engine.result(saga_id, timeout_s=PATIENCE_S) == "shipped"
    assert WORLD.of(saga_id) == ["reserve", "charge", "charge", "charged", "ship"]


async def test_a_timer_and_a_wait_survive_the_process(opener: Opener, saga_id: str) -> None:
    async with opener([patient]) as engine:
        await engine.start(patient, saga_id, {"item": "book", "sleep_s": 0.5})
        await recorded(engine, saga_id, "reserve")
    async with opener([patient]) as engine:
        await engine.signal(saga_id, "paid", 1)
        assert await engine.result(saga_id, timeout_s=PATIENCE_S) == 1
        assert [entry.kind for entry in await engine.history(saga_id)] in (
            ["step", "sleep", "signal", "step"],
            ["step", "signal", "sleep", "step"],  # when it came, and not when it was taken
            ["step", "sleep", "step", "signal"],
        )
    assert WORLD.of(saga_id) == ["reserve", "ship"]


async def test_one_that_serves_none_starts_what_others_run(opener: Opener, saga_id: str) -> None:
    async with opener([order]) as _, opener([order], serve=False) as engine:
        await engine.start(order, saga_id, {"item": "book"})
        assert (await engine.result(saga_id, timeout_s=PATIENCE_S))["shipped"] == "shipped"


async def test_an_operator_looks_and_asks_beside_the_process_that_runs_the_sagas(opener: Opener, saga_id: str) -> None:
    async with opener([patient]) as engine:
        await engine.start(patient, saga_id, {"item": "book"})
        await seen(saga_id, "reserve")
        async with opener([patient]).as_operator() as operator:
            assert (await operator.status(saga_id)).state == "running"
            for action, actor in (("retry", "ann"), ("cancel", "bob")):
                await operator.audit(saga_id, action=action, actor=actor)
            assert await operator.cancel(saga_id, reason="cancelled by bob")
        assert "cancelled by bob" in (await compensated(engine, saga_id)).error
        actions = [(each.name, each.result) for each in await engine.history(saga_id) if each.kind == "action"]
        assert actions == [("retry", "ann"), ("cancel", "bob")]
    assert WORLD.of(saga_id) == ["reserve", "release"]


async def test_a_transaction_is_refused_where_it_is_asked_for(opener: Opener, saga_id: str) -> None:
    async with opener([transacting]) as engine:
        await engine.start(transacting, saga_id, {"item": "book"})
        status = await until(engine, saga_id, "stopped")
        assert status.error is not None
        assert "s.tx('charge')" in status.error
        assert "DBOS" in status.error
        assert await engine.cancel(saga_id)


async def test_the_programs_signal_handlers_stay(opener: Opener, saga_id: str) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    async with opener([order]) as engine:
        await engine.start(order, saga_id, {"item": "book"})
        await engine.result(saga_id, timeout_s=PATIENCE_S)
        assert {number: signal.getsignal(number) for number in before} == before


async def cancel_by_its_own_tools(engine: Any, saga_id: str) -> None:
    if hasattr(engine, "_api"):
        await engine._api.change((await engine._find(saga_id))["id"], "cancel")
    else:
        await engine._handle(saga_id).cancel()


async def end_by_its_own_tools(engine: Any, saga_id: str) -> None:
    if hasattr(engine, "_api"):
        await engine._api.change((await engine._find(saga_id))["id"], "kill")
    else:
        await engine._handle(saga_id).terminate()


async def test_cancelled_by_the_servers_own_tools_a_saga_compensates(opener: Opener, saga_id: str) -> None:
    async with opener([patient]) as engine:
        await engine.start(patient, saga_id, {"item": "book"})
        await seen(saga_id, "reserve")
        await cancel_by_its_own_tools(engine, saga_id)
        assert (await compensated(engine, saga_id)).cancelled
        assert WORLD.of(saga_id) == ["reserve", "release"]
        assert (await engine.status(saga_id)).cancelled


async def test_killed_by_the_servers_own_tools_a_saga_says_that_nothing_was_undone(
    opener: Opener, saga_id: str
) -> None:
    async with opener([patient]) as engine:
        await engine.start(patient, saga_id, {"item": "book"})
        await seen(saga_id, "reserve")
        await end_by_its_own_tools(engine, saga_id)
        with pytest.raises(Exception, match="nothing was undone") as raised:
            await engine.result(saga_id, timeout_s=PATIENCE_S)
        assert not isinstance(raised.value, Compensated)
        status = await engine.status(saga_id)
        assert status.state == "stopped"
        assert "nothing was undone" in (status.error or "")
        assert not await engine.cancel(saga_id)
    assert WORLD.of(saga_id) == ["reserve"]


@saga("terminal", undo_retry=RETRY, undo_pause=QUICK)
async def terminal(s: Saga, o: dict[str, Any]) -> None:
    """Raises what the servers' SDKs take for the end of a workflow."""
    await s.step("reserve", reserve, o, undo=release, retry=RETRY)
    try:
        raise TerminalError("the end", 400)
    except TerminalError as error:
        raise ApplicationError("the end", non_retryable=True) from error


async def test_what_ends_a_workflow_of_the_servers_sdk_stops_a_saga(opener: Opener, saga_id: str) -> None:
    async with opener([terminal]) as engine:
        await engine.start(terminal, saga_id, {"item": "book"})
        status = await until(engine, saga_id, "stopped", "completed", "compensated")
        assert (status.state, "the end" in (status.error or "")) == ("stopped", True)
        assert WORLD.of(saga_id) == ["reserve"]
        assert await engine.cancel(saga_id)
        await until(engine, saga_id, "compensated")  # Temporal may try once more before it sees that, and stop again
        assert (await compensated(engine, saga_id)).cancelled


async def test_an_engine_can_be_opened_again(opener: Opener, saga_id: str) -> None:
    engine = opener([order])
    async with engine:
        await engine.start(order, saga_id, {"item": "book"})
        await engine.result(saga_id, timeout_s=PATIENCE_S)
    async with engine.as_operator():
        assert (await engine.status(saga_id)).state == "completed"
    async with engine:
        await engine.start(order, f"{saga_id}-2", {"item": "book"})
        await engine.result(f"{saga_id}-2", timeout_s=PATIENCE_S)


@slow_on_temporal
async def test_a_signal_waits_for_the_process_that_is_not_there(
    opener: Opener, saga_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("onefold._engines.restate.restate_api._SERVED_S_MAX", 0.2)
    async with opener([patient]) as engine:
        await engine.start(patient, saga_id, {"item": "book"})
        await recorded(engine, saga_id, "reserve")
    async with opener([patient], serve=False) as engine:
        await engine.signal(saga_id, "paid", "card")
    async with opener([patient]) as engine:
        assert await engine.result(saga_id, timeout_s=PATIENCE_S) == "card"


async def test_a_saga_that_temporal_has_deleted_and_still_lists_is_left_out(
    temporal: PrivateTemporal, saga_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with TemporalOpener(temporal)([order]) as engine:
        for each in ("deleted", "kept"):
            await engine.start(order, f"{saga_id}-{each}", {"item": "book"})
            await engine.result(f"{saga_id}-{each}", timeout_s=PATIENCE_S)
        async with asyncio.timeout(PATIENCE_S):
            while True:  # its lists follow a moment later
                if len(await engine.list()) == 2:
                    break
                await asyncio.sleep(0.05)
        status = type(engine).status

        async def status_of_kept(self: Temporal, saga_id: str) -> SagaStatus:
            if saga_id.endswith("-deleted"):
                raise SagaUnknown(saga_id)
            return await status(self, saga_id)

        monkeypatch.setattr(Temporal, "status", status_of_kept)
        assert [each.saga_id for each in await engine.list()] == [f"{saga_id}-kept"]
