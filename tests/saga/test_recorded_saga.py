"""An activity of Temporal runs a saga with its recorded answers up to the attempt that is wanted, and no further."""

from __future__ import annotations

from typing import Any

import pytest

from onefold._engines.temporal.recorded_saga import run_recorded
from onefold._saga.definition import begin
from onefold.sagas import EngineFault, Saga, SignalTimedOut, key, saga

DONE: dict[str, Any] = {"result": None, "attempts": 1, "failures": []}


async def run(answers: list[tuple[str, Any]], wanted: str) -> tuple[Any, list[str]]:
    """Steps that are closures: no other process could look them up by a name."""
    ran: list[str] = []

    def note(result: object) -> Any:
        async def step(*given: object) -> object:
            ran.append(f"{key()} {given}")
            return result

        return step

    @saga("recorded")
    async def recorded(s: Saga, o: dict[str, Any]) -> Any:
        first = await s.step("first", note(None), undo=note("undone"))
        await s.sleep(60)
        try:
            paid = await s.wait("paid", timeout_s=1)
        except SignalTimedOut:
            paid = "late"
        await s.step("second", note(first), paid, undo=note("undone"))
        raise KeyError("a mistake")

    start = begin(recorded, "order-1", {})
    return await run_recorded(recorded, start, answers, wanted), ran


FIRST = ("first", {"result": 7, "attempts": 1, "failures": []})
SLEPT = ("sleep", None)
PAID = ("signal:paid", {"data": "card"})


async def test_the_attempt_gets_what_was_recorded_before_it() -> None:
    record, ran = await run([FIRST, SLEPT, PAID], "second")
    assert record["result"] == 7
    assert ran == ["order-1:second ('card',)"]


async def test_a_later_attempt_counts_those_before_it() -> None:
    failed = ("first", {"retry": "OSError: no", "pause_s": 1.0})
    record, _ = await run([failed, ("pause", None)], "first:attempt2")
    assert (record["attempts"], record["failures"]) == (2, ["OSError: no"])


async def test_a_time_that_is_over_and_a_request_to_cancel_are_answers_too() -> None:
    _, ran = await run([FIRST, SLEPT, ("signal:paid", None)], "second")
    assert ran == ["order-1:second ('late',)"]
    _, ran = await run([FIRST, ("sleep", {"cancelled": "it rains"})], "first:undo")
    assert ran == ["order-1:first:undo ()"]


async def test_a_stopped_saga_that_was_cancelled_is_compensated() -> None:
    answers = [FIRST, SLEPT, PAID, ("second", DONE), ("is cancelled", True), ("second:undo", DONE)]
    _, ran = await run(answers, "first:undo")
    assert ran == ["order-1:first:undo ()"]


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [([("other", DONE)], "second"), ([FIRST], "second"), ([FIRST, SLEPT, PAID], "first:undo")],
)
async def test_a_definition_that_asks_for_something_else_stops(answers: list[tuple[str, Any]], wanted: str) -> None:
    with pytest.raises(EngineFault, match="another version"):
        await run(answers, wanted)
