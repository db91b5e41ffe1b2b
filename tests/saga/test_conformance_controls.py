"""The conformance suite finds engines that are wrong: each planted bug fails the case that is about it."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._saga.definition import Start
from onefold._saga.saga_errors import EngineFault
from onefold._saga.step_call import StepCall
from onefold.sagas import Compensated, SagaStopped
from tests.saga import memory_engine
from tests.saga.conformance import cases
from tests.saga.conformance.cases import Case
from tests.saga.conformance.sagas import SAGAS
from tests.saga.conformance.side_by_side import run_side_by_side
from tests.saga.memory_engine import MemoryContext, MemoryEngine


class ForgetsWhatItWasStartedWith(MemoryEngine):
    """The same id with other input is taken for a repetition."""

    async def _submit(self, start: Start) -> Start | None:
        known = await super()._submit(start)
        return None if known is None else start


class StartsTwice(MemoryEngine):
    """A known id is run once more."""

    async def _submit(self, start: Start) -> Start | None:
        self.kept.pop(start.saga_id, None)
        return await super()._submit(start)


class WaitsForWhatHasStopped(MemoryEngine):
    """A result that never comes is waited for."""

    async def _wait_for_end(self, saga_id: str) -> Any:
        return await self._outcome(saga_id)


class RetriesWhatRuns(MemoryEngine):
    """A saga that goes on is run a second time."""

    async def retry(self, saga_id: str) -> bool:
        return await self._resume(saga_id)


class EndsWhereItIsCancelled(MemoryContext):
    """As DBOS's own cancel does: nothing is undone."""

    def _check_cancelled(self) -> None:
        if self._kept.cancelled is not None and not self._shielded:
            raise EngineFault("cancelled")


class NeverTriesAgain(MemoryContext):
    """One attempt, whatever the policy says."""

    async def run_step(self, call: StepCall) -> Any:
        async def work() -> Any:
            return await call.attempt(last=True)

        return await self._recorded(call.journal_name, work)


class ForgetsItsJournal(MemoryContext):
    """A saga that goes on begins anew."""

    def __init__(self, kept: memory_engine.Kept) -> None:
        super().__init__(kept)
        kept.journal.clear()


class LosesEarlySignals(MemoryContext):
    """A signal that no saga waits for is gone."""

    async def wait_signal(self, signal: str, timeout_s: float | None) -> Any:
        self._kept.signals.clear()
        return await super().wait_signal(signal, timeout_s)


#: Whatever the case notices first.
FOUND = (AssertionError, TimeoutError, Compensated, SagaStopped, pytest.fail.Exception)

BUGS: list[tuple[type[Any], Case]] = [
    (ForgetsWhatItWasStartedWith, cases.other_input_under_the_same_id_is_refused),
    (ForgetsWhatItWasStartedWith, cases.another_saga_under_the_same_id_is_refused),
    (StartsTwice, cases.a_second_start_is_the_same_saga),
    (WaitsForWhatHasStopped, cases.waiting_for_a_saga_that_stops_tells_why_and_what_to_do),
    (RetriesWhatRuns, cases.a_saga_that_goes_on_is_not_retried),
    (EndsWhereItIsCancelled, cases.a_cancelled_wait_is_compensated),
    (NeverTriesAgain, cases.a_failed_step_is_tried_again_under_the_same_key),
    (ForgetsItsJournal, cases.a_mistake_in_the_saga_stops_it_and_undoes_nothing),
    (LosesEarlySignals, cases.a_signal_that_comes_early_is_kept),
]


@pytest.mark.parametrize(("bug", "case"), BUGS, ids=lambda each: each.__name__)
async def test_a_planted_bug_is_found(bug: type[Any], case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    # What never comes is waited for briefly: that it does not come is what is to be found.
    monkeypatch.setattr(cases, "PATIENCE_S", 1.0)
    if issubclass(bug, MemoryContext):
        monkeypatch.setattr(memory_engine, "MemoryContext", bug)
    engine = bug(SAGAS) if issubclass(bug, MemoryEngine) else MemoryEngine(SAGAS)
    try:
        with pytest.raises(FOUND):
            await case(engine, f"bug-{bug.__name__}-{case.__name__}")
    finally:
        await engine.close()


async def test_a_planted_bug_is_found_among_cases_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "PATIENCE_S", 1.0)
    engine = RetriesWhatRuns(SAGAS)
    group = [cases.a_timer_ends, cases.a_saga_that_goes_on_is_not_retried, cases.an_abort_is_not_tried_again]
    try:
        with pytest.raises(BaseExceptionGroup) as raised:
            await run_side_by_side(engine, group, "side-by-side")
    finally:
        await engine.close()
    [found] = raised.value.exceptions
    assert found.__notes__ == ["in the case a_saga_that_goes_on_is_not_retried"]
