"""What stops a saga, or fails its step, without being an ordinary error: faults that its function passes over, attempts
that break off, engines that fail."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

from onefold._saga.execution import run_saga
from onefold._saga.step_call import StepCall
from onefold.sagas import Abort, EngineFault, RetryPolicy, Saga, saga
from tests.saga.conformance.cases import seen
from tests.saga.conformance.sagas import QUICK, RETRY, WORLD
from tests.saga.memory_engine import MemoryContext, kept_of
from tests.support.patience import PATIENCE_S


async def _catch_all(s: Saga) -> str:
    try:
        await s.step("a", print, object())
    except BaseException:
        return "completed without its step"
    return "done"


async def _abort_for_all(s: Saga) -> None:
    try:
        await s.step("a", print, object())
    except BaseException as error:
        raise Abort("it failed") from error


async def _gather_errors(s: Saga) -> None:
    async def wait() -> None:
        await asyncio.sleep(0)

    await asyncio.gather(s.step("a", wait), s.step("b", wait), return_exceptions=True)


async def _time_out(s: Saga) -> str:
    try:
        async with asyncio.timeout(0.01):
            await s.step("a", asyncio.sleep, PATIENCE_S)
    except TimeoutError:
        return "completed without its step"
    return "done"


async def _forget_to_await(s: Saga) -> str:
    s.step("charge", print).close()  # closed, so that Python does not warn of it, too
    return "completed without its step"


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (_forget_to_await, "did not await step 'charge'"),
        (_catch_all, "argument 1 of step 'a'"),
        (_abort_for_all, "argument 1 of step 'a'"),
        (_gather_errors, "one after the other"),
        (_time_out, "RetryPolicy\\(attempt_s=...\\)"),
    ],
)
async def test_a_saga_that_passes_over_a_fault_neither_completes_nor_compensates(
    run: Callable[[Saga], Any], told: str
) -> None:
    @saga("careless")
    async def careless(s: Saga, o: dict[str, Any]) -> Any:
        await s.step("first", WORLD.act, "first", o, undo=lambda _, o: WORLD.act("undo", o))
        return await run(s)

    saga_id = f"careless{run.__name__}"
    kept = kept_of(careless, saga_id, {})
    with pytest.raises(EngineFault, match=told):
        await run_saga(careless, kept.start, MemoryContext(kept))
    assert WORLD.of(saga_id) == ["first"]


async def test_a_saga_that_passes_over_a_request_to_cancel_is_compensated() -> None:
    @saga("deaf")
    async def deaf(s: Saga, o: dict[str, Any]) -> str:
        await s.step("first", WORLD.act, "first", o, undo=lambda _, o: WORLD.act("undo", o))
        try:
            await s.wait("never")
        except BaseException:
            return "went on"
        return "done"

    kept = kept_of(deaf, "deaf", {})
    running = asyncio.ensure_future(run_saga(deaf, kept.start, MemoryContext(kept)))
    await seen("deaf", "first")
    kept.cancelled = "given up"
    kept.change()
    assert await running == {
        "outcome": "compensated", "error": "given up", "cancelled": True, "saga": "deaf", "version": "1",
    }  # fmt: skip
    assert WORLD.of("deaf") == ["first", "undo"]


def test_a_saga_that_its_engine_drops_ends_without_asking_for_more() -> None:
    """As one that waits is dropped with Temporal's cache, by the garbage collector and outside of any loop. Python
    reports a coroutine that goes on then, in the test that happens to run."""

    class Dropped(MemoryContext):
        async def wait_signal(self, signal: str, timeout_s: float | None) -> Any:
            await asyncio.sleep(0)

        async def cancel_requested(self) -> bool:
            await asyncio.sleep(0)
            return True

    @saga("dropped")
    async def dropped(s: Saga, o: dict[str, Any]) -> None:
        await s.wait("never")

    kept = kept_of(dropped, "dropped", {})
    running = run_saga(dropped, kept.start, Dropped(kept))
    running.send(None)
    running.close()


async def _await_what_is_cancelled() -> None:
    task = asyncio.ensure_future(asyncio.sleep(PATIENCE_S))
    task.cancel()
    await task


def _find_nothing() -> int:
    return next(number for number in [1, 2, 3] if number > 3)


@pytest.mark.parametrize(
    ("function", "told"),
    [(_await_what_is_cancelled, "cancelled"), (sys.exit, "sys.exit"), (_find_nothing, "raised StopIteration")],
)
async def test_a_step_that_breaks_off_has_failed(function: Callable[..., Any], told: str) -> None:
    @saga("broken-off")
    async def broken_off(s: Saga, o: dict[str, Any]) -> None:
        await s.step("a", function, retry=RETRY, undo=lambda: None)

    kept = kept_of(broken_off, "broken-off", {})
    outcome = await run_saga(broken_off, kept.start, MemoryContext(kept))
    assert (outcome["outcome"], told in outcome["error"]) == ("compensated", True)
    assert len(kept.journal[0][1]["failures"]) == RETRY.attempts_max


async def test_an_attempt_on_a_thread_ends_before_what_follows_it() -> None:
    """A thread cannot be broken off: with `attempt_s` its compensation would run beside it."""
    running: list[str] = []

    def act() -> str:
        running.append("begins")
        time.sleep(0.1)
        running.append("ends")
        return "done"

    @saga("limited")
    async def limited(s: Saga, o: dict[str, Any]) -> Any:
        return await s.step(
            "a", act, retry=RetryPolicy(attempts_max=1, attempt_s=0.01), undo=lambda: running.append("undone")
        )

    kept = kept_of(limited, "limited", {})
    outcome = await run_saga(limited, kept.start, MemoryContext(kept))
    assert (outcome["result"], running) == ("done", ["begins", "ends"])


@pytest.mark.parametrize("broken", ["run_step", "sleep", "cancel_requested"])
async def test_an_engine_that_fails_beside_the_function_stops_the_saga(broken: str) -> None:
    """Else the engine would end the saga with that error, and what was done would stay."""
    saga_id = f"fails-at-{broken}"

    class Broken(MemoryContext):
        async def run_step(self, call: StepCall) -> Any:
            if call.undo and broken == "run_step":
                raise OSError("the disk is full")
            return await super().run_step(call)

        async def sleep(self, seconds: float) -> None:
            raise OSError("the disk is full")

        async def cancel_requested(self) -> bool:
            raise OSError("the disk is full")

    @saga("aborting", undo_retry=RETRY, undo_pause=QUICK)
    async def aborting(s: Saga, o: dict[str, Any]) -> None:
        await s.step("first", WORLD.act, "first", o, undo=lambda _, o: WORLD.act("undo", o))
        raise (ValueError if broken == "cancel_requested" else Abort)("no")

    kept = kept_of(aborting, saga_id, {"fail": {"undo": RETRY.attempts_max}} if broken == "sleep" else {})
    with pytest.raises(EngineFault, match="the disk is full"):
        await run_saga(aborting, kept.start, Broken(kept))
    if broken == "cancel_requested":
        kept.cancelled = "given up"
    assert (await run_saga(aborting, kept.start, MemoryContext(kept)))["outcome"] == "compensated"
    assert WORLD.of(saga_id)[-1] == "undo"


async def test_a_step_whose_process_ends_has_not_failed() -> None:
    begun = asyncio.Event()

    async def wait() -> None:
        begun.set()
        await asyncio.sleep(PATIENCE_S)

    @saga("ended")
    async def ended(s: Saga, o: dict[str, Any]) -> None:
        await s.step("a", wait, retry=RETRY, undo=lambda: None)

    kept = kept_of(ended, "ended", {})
    running = asyncio.ensure_future(run_saga(ended, kept.start, MemoryContext(kept)))
    await begun.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert kept.journal == []
