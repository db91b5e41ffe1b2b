"""Results that are worth another attempt."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from onefold import Retrying, RetryPolicy
from onefold._client.error_outcomes import ResultIf
from onefold.errors import ConfigurationError
from onefold.telemetry import AttemptEnded, CallEnded, RetryPlanned
from tests.client.calls.conftest import Script

PATIENT = RetryPolicy(budget=None, breaker=None)


async def call(colour: str, retrying: Retrying, script: Script, retry_if: ResultIf) -> Any:
    if colour == "sync":
        return retrying.calls("ledger", on=ConnectionError, retry_if=retry_if)(lambda: script())()

    async def awaited() -> Any:
        return script()

    return await retrying.calls("ledger", on=ConnectionError, retry_if=retry_if)(awaited)()


colours = pytest.mark.parametrize("colour", ["sync", "async"])


@colours
async def test_a_result_that_is_none_to_keep_is_asked_for_again(colour: str) -> None:
    script = Script(None, ConnectionError("down"), None, "balance")
    assert await call(colour, Retrying(PATIENT), script, lambda result: result is None) == "balance"
    assert script.calls == 4


@colours
async def test_when_no_attempt_is_left_the_last_result_is_returned(colour: str) -> None:
    heard: list[Any] = []
    script = Script(1, 2, 3, 4, 5)
    assert await call(colour, Retrying(PATIENT, listener=heard.append), script, lambda _: True) == 4
    assert [type(event) for event in heard] == [AttemptEnded, RetryPlanned] * 3 + [AttemptEnded, CallEnded]
    assert heard[-1].reason == "attempts"


@colours
async def test_it_may_say_in_how_many_seconds(colour: str) -> None:
    heard: list[Any] = []
    script = Script("busy", "done")
    say: ResultIf = lambda result: 3.0 if result == "busy" else False  # noqa: E731
    assert await call(colour, Retrying(PATIENT, listener=heard.append), script, say) == "done"
    assert next(event for event in heard if isinstance(event, RetryPlanned)).wait_s >= 3


@colours
async def test_such_results_take_from_the_budget_and_leave_the_breaker_closed(colour: str) -> None:
    retrying = Retrying()
    script = Script("pending")
    for _ in range(20):
        assert await call(colour, retrying, script, lambda _: True) == "pending"
    assert script.calls == 20 + 6
    assert retrying._hosts.of("ledger", 0.0).is_closed


@colours
async def test_a_condition_that_fails_is_told_and_holds_nothing(colour: str) -> None:
    retrying = Retrying(RetryPolicy(in_flight=1))

    def broken(_: object) -> bool:
        raise ValueError("no such field")

    for _ in range(3):
        with pytest.raises(ValueError, match="no such field"):
            await call(colour, retrying, Script("x"), broken)


@pytest.mark.parametrize("wrong", [nan, inf, -1.0, "2", [3]], ids=repr)
@colours
async def test_what_is_no_number_of_seconds_is_refused_and_holds_nothing(colour: str, wrong: Any) -> None:
    retrying = Retrying(replace(PATIENT, in_flight=1))

    def soon(_: object) -> Any:
        return wrong

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=rf"retry_if: .*soon returned {re.escape(repr(wrong))}, "):
            await call(colour, retrying, Script("x"), soon)


def test_a_loop_that_is_left_before_its_attempt_is_made_holds_no_place() -> None:
    retrying = Retrying(RetryPolicy(in_flight=1))
    for _ in range(2):
        for _attempt in retrying.attempts("ledger", on=ConnectionError):
            break
    for attempt in retrying.attempts("ledger", on=ConnectionError):
        with attempt:
            pass


async def test_nor_does_one_of_a_task() -> None:
    retrying = Retrying(RetryPolicy(in_flight=1))
    for _ in range(2):
        attempts = aiter(retrying.attempts("ledger", on=ConnectionError))
        await anext(attempts)
        await attempts.aclose()  # type: ignore[attr-defined]  # a generator, declared as less
    async for attempt in retrying.attempts("ledger", on=ConnectionError):
        with attempt:
            pass
