"""Metrics of sagas: what an engine tells, counted. That each engine tells the same is in tests/saga."""

from __future__ import annotations

from pathlib import Path

from onefold.sagas.dbos import Dbos
from tests.observe.measured import Measured
from tests.saga.conformance.cases import compensated, seen, until
from tests.saga.conformance.sagas import RETRY, WORLD, mistaken, order, patient
from tests.support.patience import PATIENCE_S

ORDER, PATIENT, MISTAKEN = order.name, patient.name, mistaken.name


async def test_sagas_and_their_steps_are_counted_by_outcome(tmp_path: Path, measured: Measured) -> None:
    url = f"sqlite:///{tmp_path / 'sagas.db'}"
    async with Dbos(url, sagas=[order, patient, mistaken], listener=measured.listeners) as engine:
        await engine.start(order, "secret-1", {"item": "book", "fail": {"charge": 1}})
        await engine.result("secret-1", timeout_s=PATIENCE_S)
        await engine.start(patient, "secret-2", {"item": "book"})
        await seen("secret-2", "reserve")
        await engine.cancel("secret-2")
        await compensated(engine, "secret-2")
        await engine.start(mistaken, "secret-3", {"item": "book"})
        await until(engine, "secret-3", "stopped")
    assert measured.values("onefold_sagas_total") == {
        ("completed", ORDER): 1,
        ("cancelled", PATIENT): 1,
        ("stopped", MISTAKEN): 1,
    }
    assert measured.values("onefold_saga_steps_total") == {
        ("step", "done", ORDER): 3,
        ("step", "retried", ORDER): 1,
        ("step", "done", PATIENT): 1,
        ("undo", "done", PATIENT): 1,
        ("step", "done", MISTAKEN): 1,
    }
    assert "secret" not in measured.exposition


async def test_a_saga_is_shown_as_stuck_until_its_compensation_succeeds(tmp_path: Path, measured: Measured) -> None:
    WORLD.broken.add("stuck-1:reserve:undo")
    async with Dbos(f"sqlite:///{tmp_path / 'sagas.db'}", sagas=[order], listener=measured.listeners) as engine:
        await engine.start(order, "stuck-1", {"item": "book", "abort": ["charge"]})
        await seen("stuck-1", "release", RETRY.attempts_max + 1)
        assert measured.value("onefold_sagas_stuck", saga=ORDER) == 1
        WORLD.broken.discard("stuck-1:reserve:undo")
        await compensated(engine, "stuck-1")
    assert measured.value("onefold_sagas_stuck", saga=ORDER) == 0
    stuck = measured.value("onefold_sagas_total", saga=ORDER, outcome="stuck")
    assert stuck
    assert stuck == measured.value("onefold_saga_steps_total", saga=ORDER, kind="undo", outcome="failed")
    assert measured.value("onefold_sagas_total", saga=ORDER, outcome="compensated") == 1
