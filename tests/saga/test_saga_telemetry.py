"""What engines tell of sagas: each attempt, each end, and what is stuck, once, on every engine."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from onefold.errors import ConfigurationError
from onefold.sagas import Abort, Saga, SagaEngine, saga
from onefold.sagas.dbos import Dbos
from onefold.telemetry import Event, Listener, SagaEnded, SagaStepAttempted, SagaStuck, StuckSagasCounted
from tests.saga.conformance.cases import compensated, seen, until
from tests.saga.conformance.sagas import QUICK, RETRY, WORLD, mistaken, not_storable, order, patient
from tests.saga.server_engines import RestateOpener, TemporalOpener
from tests.support.patience import PATIENCE_S

_numbers = itertools.count(1)

Open: TypeAlias = Callable[[Listener], AbstractAsyncContextManager[SagaEngine]]

RUN = [order, patient, mistaken, not_storable]
NAME = "conformance-order"


@pytest.fixture
def saga_id() -> str:
    return f"told-{next(_numbers)}"


@pytest.fixture(params=["dbos", "restate", "temporal"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    if request.param == "dbos":
        yield lambda listener: Dbos(f"sqlite:///{tmp_path / 'sagas.db'}", sagas=RUN, listener=listener)
        return
    server = request.getfixturevalue(request.param)
    opener = RestateOpener(server) if request.param == "restate" else TemporalOpener(server)
    yield lambda listener: opener(RUN, listener=listener)
    opener.close()


def attempts(heard: list[Event], saga_id: str) -> list[tuple[str, str, str]]:
    return [
        (event.kind, event.step, event.outcome)
        for event in heard
        if isinstance(event, SagaStepAttempted) and event.saga_id == saga_id
    ]


def ends(heard: list[Event], saga_id: str) -> list[str]:
    return [event.outcome for event in heard if isinstance(event, SagaEnded) and event.saga_id == saga_id]


async def test_attempts_and_ends_are_told_once(opened: Open, saga_id: str) -> None:
    heard: list[Event] = []
    done, declined, cancelled = (f"{saga_id}-{each}" for each in ("done", "declined", "cancelled"))
    async with opened(heard.append) as engine:
        await engine.start(order, done, {"item": "book", "fail": {"charge": 1}})
        await engine.result(done, timeout_s=PATIENCE_S)
        await engine.start(order, declined, {"item": "book", "abort": ["charge"]})
        await compensated(engine, declined)
        await engine.start(patient, cancelled, {"item": "book"})
        await seen(cancelled, "reserve")
        await engine.cancel(cancelled)
        await compensated(engine, cancelled)
    assert attempts(heard, done) == [
        ("step", "reserve", "done"),
        ("step", "charge", "retried"),
        ("step", "charge", "done"),
        ("step", "ship", "done"),
    ]
    assert attempts(heard, declined) == [
        ("step", "reserve", "done"),
        ("step", "charge", "aborted"),
        ("undo", "charge", "done"),
        ("undo", "reserve", "done"),
    ]
    assert attempts(heard, cancelled) == [("step", "reserve", "done"), ("undo", "reserve", "done")]
    assert [ends(heard, each) for each in (done, declined, cancelled)] == [
        ["completed"],
        ["compensated"],
        ["cancelled"],
    ]


async def test_a_compensation_that_keeps_failing_is_told_each_round_and_counted_until_it_succeeds(
    opened: Open, saga_id: str
) -> None:
    heard: list[Event] = []
    broken = f"{saga_id}:reserve:undo"
    WORLD.broken.add(broken)
    async with opened(heard.append) as engine:
        await engine.start(order, saga_id, {"item": "book", "abort": ["charge"]})
        await seen(saga_id, "release", 2 * RETRY.attempts_max)
        await until(engine, saga_id, "stuck")
        WORLD.broken.discard(broken)
        await compensated(engine, saga_id)
    stuck = [event for event in heard if isinstance(event, SagaStuck)]
    assert [event.round for event in stuck] == [*range(1, len(stuck) + 1)]
    assert len(stuck) >= 2
    assert {(event.saga, event.saga_id, event.step) for event in stuck} == {(NAME, saga_id, "reserve")}
    assert "ConnectionError" in stuck[0].reason
    counted = [event.stuck for event in heard if isinstance(event, StuckSagasCounted)]
    assert (set(counted), counted[0], counted[-1]) == ({0, 1}, 1, 0)
    assert ends(heard, saga_id) == ["compensated"]


@pytest.mark.parametrize("wrong", [mistaken, not_storable], ids=lambda each: each.name)
async def test_a_saga_that_stops_is_told(opened: Open, saga_id: str, wrong: Any) -> None:
    heard: list[Event] = []
    async with opened(heard.append) as engine:
        await engine.start(wrong, saga_id, {"item": "book"})
        await until(engine, saga_id, "stopped")
    assert set(ends(heard, saga_id)) == {"stopped"}


async def test_a_stuck_saga_of_an_engine_that_is_closed_is_not_counted(tmp_path: Path, saga_id: str) -> None:
    heard: list[Event] = []
    WORLD.broken.add(f"{saga_id}:reserve:undo")
    url = f"sqlite:///{tmp_path / 'sagas.db'}"
    async with Dbos(url, sagas=RUN, listener=heard.append) as engine:
        await engine.start(order, saga_id, {"item": "book", "abort": ["charge"]})
        await until(engine, saga_id, "stuck")
    assert [event for event in heard if isinstance(event, StuckSagasCounted)][-1] == StuckSagasCounted(NAME, 0)
    # The next process finds in the journal that it is stuck.
    heard.clear()
    async with Dbos(url, sagas=RUN, listener=heard.append) as engine:
        await seen(saga_id, "release", WORLD.of(saga_id).count("release") + 1)
        WORLD.broken.discard(f"{saga_id}:reserve:undo")
        await compensated(engine, saga_id)
    assert StuckSagasCounted(NAME, 1) in heard
    assert ("step", "reserve", "done") not in attempts(heard, saga_id), "what the journal answered is not told again"


@asynccontextmanager
async def transacting(tmp_path: Path, listener: Listener) -> AsyncIterator[Dbos]:
    database = sa.create_engine(f"sqlite:///{tmp_path / 'rows.db'}")
    async with Dbos(f"sqlite:///{tmp_path / 'tx.db'}", sagas=[stocked], database=database, listener=listener) as engine:
        yield engine
    database.dispose()


def take(session: Session, o: dict[str, Any]) -> None:
    session.execute(sa.text("CREATE TABLE IF NOT EXISTS stock (free INTEGER)"))
    if o["item"] == "none":
        raise Abort("there is none")


def give(session: Session, o: dict[str, Any]) -> None: ...


@saga("stocked", undo_retry=RETRY, undo_pause=QUICK)
async def stocked(s: Saga, o: dict[str, Any]) -> None:
    await s.tx("take", take, o, undo=give, retry=RETRY)
    await s.wait("paid", timeout_s=o.get("timeout_s"))


async def test_steps_in_transactions_are_told_and_not_again_by_the_journal(tmp_path: Path, saga_id: str) -> None:
    heard: list[Event] = []
    async with transacting(tmp_path, heard.append) as engine:
        await engine.start(stocked, f"{saga_id}-none", {"item": "none"})
        await compensated(engine, f"{saga_id}-none")
        await engine.start(stocked, saga_id, {"item": "book"})
        while "take" not in [entry.name for entry in await engine.history(saga_id)]:  # else it is done again, and told
            await until(engine, saga_id, "running")
    async with transacting(tmp_path, heard.append) as engine:
        await engine.signal(saga_id, "paid")
        await engine.result(saga_id, timeout_s=PATIENCE_S)
    assert attempts(heard, f"{saga_id}-none") == [("step", "take", "aborted"), ("undo", "take", "done")]
    assert attempts(heard, saga_id) == [("step", "take", "done")]


def test_what_is_no_listener_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a list of them"):
        Dbos(f"sqlite:///{tmp_path / 'sagas.db'}", sagas=RUN, listener=3)  # type: ignore[arg-type]
