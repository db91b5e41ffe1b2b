"""Any callable, retried: what is tried again, what is not, and what is told about it. Every way to write it alike."""

from __future__ import annotations

import asyncio
import logging
import re
from dataclasses import replace
from math import inf, nan
from typing import Any

import httpx
import pytest

from onefold import Retrying, RetryPolicy, deadline
from onefold._client import host_log
from onefold.clients import BreakerConfig, Reason, report_of
from onefold.errors import CallNotMade, ConfigurationError, ProgrammerError, StoreUnavailable
from onefold.telemetry import AttemptEnded, BreakerMoved, CallEnded, Event, RetryPlanned
from tests.client.calls.conftest import Script, Ways

LAVISH = RetryPolicy(budget=None, breaker=None)


async def test_what_succeeds_at_once_is_called_once(way: Ways) -> None:
    script = Script("done")
    assert await way.around(Retrying(), script, OSError)() == "done"
    assert script.calls == 1


async def test_an_error_that_is_worth_it_is_tried_again(way: Ways) -> None:
    script = Script(ConnectionError("gone"), TimeoutError("slow"), "done")
    assert await way.around(Retrying(LAVISH), script, (ConnectionError, TimeoutError))() == "done"
    assert script.calls == 3


async def test_any_other_error_is_the_callers(way: Ways) -> None:
    script = Script(KeyError("a bug"))
    with pytest.raises(KeyError, match="a bug") as caught:
        await way.around(Retrying(LAVISH), script, OSError)()
    assert script.calls == 1
    assert report_of(caught.value) is None


async def test_after_the_last_attempt_its_error_is_raised_with_a_report(way: Ways) -> None:
    errors = [ConnectionError(str(number)) for number in range(5)]
    script = Script(*errors)
    with pytest.raises(ConnectionError) as caught:
        await way.around(Retrying(LAVISH), script, OSError)()
    assert caught.value is errors[3]
    report = report_of(caught.value)
    assert report is not None
    assert (report.attempts, report.reason) == (4, Reason.ATTEMPTS)
    assert caught.value.__notes__ == ["onefold: after 4 attempts, all attempts are used up"]


async def test_the_budget_bounds_all_calls_of_a_host_together(way: Ways) -> None:
    retrying = Retrying(RetryPolicy(breaker=None))
    script = Script(ConnectionError("down"))
    for _ in range(20):
        with pytest.raises(ConnectionError):
            await way.around(retrying, script, OSError)()
    assert script.calls == 20 + 3
    other = Script(ConnectionError("down"), "done")
    assert await way.around(retrying, other, OSError, to="another host")() == "done"


async def test_successes_earn_retries(way: Ways) -> None:
    retrying = Retrying(RetryPolicy(breaker=None))
    with pytest.raises(ConnectionError):  # a broken connection costs two of six, three times
        await way.around(retrying, Script(ConnectionError("down")), OSError)()
    with pytest.raises(ConnectionError):
        await way.around(retrying, Script(ConnectionError("spent"), "done"), OSError)()
    for _ in range(20):
        await way.around(retrying, Script("fine"), OSError)()
    assert await way.around(retrying, Script(ConnectionError("earned"), "done"), OSError)() == "done"


async def test_an_open_breaker_calls_nobody(way: Ways) -> None:
    retrying = Retrying(RetryPolicy(budget=None, attempts_max=1))
    script = Script(ConnectionError("down"))
    for _ in range(5):
        with pytest.raises(ConnectionError):
            await way.around(retrying, script, OSError)()
    with pytest.raises(CallNotMade, match="ledger was not called: the breaker is open") as caught:
        await way.around(retrying, script, OSError)()
    report = report_of(caught.value)
    assert report is not None
    assert (script.calls, report.attempts, report.reason) == (5, 0, Reason.BREAKER)
    assert report.retry_at is not None


def _status_error(status: int) -> Exception:
    return httpx.HTTPStatusError("no", request=httpx.Request("GET", "http://h"), response=httpx.Response(status))


@pytest.mark.parametrize(
    "answer", [KeyError("no such user"), _status_error(404)], ids=["an error of its own", "a response"]
)
async def test_errors_that_are_answers_keep_the_breaker_closed_and_earn_retries(way: Ways, answer: Exception) -> None:
    """Nineteen of twenty calls are told that there is no such thing, one fails: that host is well."""
    retrying = Retrying()
    script = Script(*[ConnectionError("gone"), *[answer] * 19] * 20)
    for _ in range(380):
        with pytest.raises(type(answer)):
            await way.around(retrying, script, ConnectionError)()
    assert script.calls == 400


async def test_errors_that_are_answers_close_a_breaker(way: Ways) -> None:
    retrying = Retrying(RetryPolicy(attempts_max=1, breaker=BreakerConfig(open_s=0.001, open_max_s=0.001)))
    script = Script(*[ConnectionError("gone")] * 5, KeyError("no such user"))
    for _ in range(5):
        with pytest.raises(ConnectionError):
            await way.around(retrying, script, ConnectionError)()
    await asyncio.sleep(0.01)
    breaker = retrying._host("ledger").breaker
    assert breaker is not None
    assert breaker.closed_permit is None
    for _ in range(2):
        with pytest.raises(KeyError):
            await way.around(retrying, script, ConnectionError)()
    assert breaker.closed_permit is not None


_NO_ANSWERS = [
    pytest.param(TimeoutError("slow"), id="slow"),
    pytest.param(OSError("no route"), id="no route"),
    pytest.param(httpx.ReadTimeout("slow"), id="a client's own class"),
    pytest.param(_status_error(503), id="503"),
    pytest.param(_status_error(429), id="429"),
    pytest.param(StoreUnavailable("down"), id="onefold's own"),
]


@pytest.mark.parametrize("error", _NO_ANSWERS)
async def test_errors_that_are_no_answers_say_nothing_about_the_host(way: Ways, error: Exception) -> None:
    """Control of the two above: nearly half are these, and the breaker opens all the same."""
    retrying = Retrying(RetryPolicy(attempts_max=1))
    script = Script(*[ConnectionResetError("gone"), error] * 5)
    for _ in range(9):
        with pytest.raises((ConnectionResetError, type(error))):
            await way.around(retrying, script, ConnectionResetError)()
    with pytest.raises(CallNotMade):
        await way.around(retrying, script, ConnectionResetError)()


@pytest.mark.parametrize("wrong", [nan, inf, -1.0, "2", [3]], ids=repr)
async def test_what_is_no_number_of_seconds_is_refused_and_holds_nothing(way: Ways, wrong: Any) -> None:
    retrying = Retrying(replace(LAVISH, in_flight=1))

    def soon(_: Exception) -> Any:
        return wrong

    for _ in range(2):
        with pytest.raises(ConfigurationError, match=rf"on: .*soon returned {re.escape(repr(wrong))}, "):
            await way.around(retrying, Script(ConnectionError("gone")), soon)()


async def test_a_judge_of_errors_that_fails_is_told_and_holds_nothing(way: Ways) -> None:
    retrying = Retrying(replace(LAVISH, in_flight=1))

    def broken(_: Exception) -> bool:
        raise LookupError("no such field")

    for _ in range(2):
        with pytest.raises(LookupError, match="no such field"):
            await way.around(retrying, Script(ConnectionError("gone")), broken)()


async def test_no_attempt_begins_after_the_deadline(way: Ways) -> None:
    script = Script("done")
    with deadline(0.0), pytest.raises(CallNotMade, match="was not called: the deadline"):
        await way.around(Retrying(), script, OSError)()
    assert script.calls == 0


async def test_a_wait_that_does_not_fit_is_not_waited(way: Ways) -> None:
    script = Script(ConnectionError("gone"))
    policy = replace(LAVISH, deadline_s=0.5)
    retrying = Retrying(policy, draw=lambda: 0.99)

    def in_a_minute(_: Exception) -> float:
        return 59.0

    with pytest.raises(ConnectionError) as caught:
        await way.around(retrying, script, in_a_minute)()
    report = report_of(caught.value)
    assert report is not None
    assert (script.calls, report.reason) == (1, Reason.DEADLINE)
    assert report.retry_at is not None


async def test_a_function_that_breaks_off_says_nothing_about_the_host(way: Ways) -> None:
    retrying = Retrying(RetryPolicy(breaker=BreakerConfig(calls_least=1, failure_share=0.01)))
    with pytest.raises(BaseException, match="interrupted") as caught:
        await way.around(retrying, Script(KeyboardInterrupt("interrupted")), OSError)()
    assert isinstance(caught.value, KeyboardInterrupt)
    assert await way.around(retrying, Script("done"), OSError)() == "done"


@pytest.mark.parametrize("wrapped", [False, True], ids=["as it is", "as the cause of another"])
async def test_what_a_layer_below_has_given_up_is_not_tried_again(
    way: Ways, wrapped: bool, caplog: pytest.LogCaptureFixture
) -> None:
    network = Script(ConnectionError("down"))

    @Retrying(LAVISH).calls("network", on=OSError)
    def inner() -> Any:
        return network()

    class Nested(Script):
        def __call__(self) -> Any:
            try:
                return inner()
            except ConnectionError as error:
                raise (OSError("no ledger") if wrapped else error) from error

    outer = Retrying(LAVISH)
    for _ in range(2):
        with pytest.raises(OSError, match="no ledger" if wrapped else "down"):
            await way.around(outer, Nested(), OSError)()
    assert network.calls == 2 * 4
    assert caplog.text.count("attempts would multiply") == 1  # once for what is called, however many functions call it


async def test_what_a_layer_below_has_mended_is_fine(way: Ways) -> None:
    network = Script(ConnectionError("gone"), "done")

    @Retrying(LAVISH).calls("network", on=OSError)
    def inner() -> Any:
        return network()

    class Nested(Script):
        def __call__(self) -> Any:
            return inner()

    assert await way.around(Retrying(LAVISH), Nested(), OSError)() == "done"


async def test_what_happens_is_told(way: Ways, heard: list[Event]) -> None:
    policy = RetryPolicy(attempts_max=2, budget=None, breaker=BreakerConfig(calls_least=3))
    retrying = Retrying(policy, listener=heard.append, draw=lambda: 0.5)
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await way.around(retrying, Script(ConnectionError("down")), OSError)()
    first, second = heard[:4], heard[4:]
    assert [type(event) for event in first] == [AttemptEnded, RetryPlanned, AttemptEnded, CallEnded]
    assert first[1] == RetryPlanned("ledger", "", 1, 0.125, throttled=False)
    assert [type(event) for event in second] == [AttemptEnded, BreakerMoved, CallEnded]
    assert second[1:] == [BreakerMoved("ledger", "open"), CallEnded("ledger", "", 1, succeeded=False, reason="breaker")]
    heard.clear()
    await way.around(retrying, Script("done"), OSError, to="well")()
    assert [replace(event, elapsed_s=0.0) if isinstance(event, AttemptEnded) else event for event in heard] == [
        AttemptEnded("well", "", 1, 0.0, succeeded=True),
        CallEnded("well", "", 1, succeeded=True),
    ]


async def test_so_is_an_error_that_no_attempt_follows(way: Ways, heard: list[Event]) -> None:
    with pytest.raises(KeyError):
        await way.around(Retrying(listener=heard.append), Script(OSError("gone"), KeyError("no such user")), OSError)()
    last, ended = heard[2:]
    assert isinstance(last, AttemptEnded)
    assert (last.attempt, last.error, last.succeeded) == (2, "KeyError", False)
    assert ended == CallEnded("ledger", "", 2, succeeded=False, reason="final")


async def test_what_has_to_be_tried_again_is_logged_once_and_once_more_when_it_succeeds_at_once(
    way: Ways, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_log, "CALM_S", 0.0)
    caplog.set_level(logging.INFO, "onefold")
    call = way.around(Retrying(LAVISH), Script(OSError("gone"), 1, OSError("gone"), 2, 3, 4), OSError)
    for _ in range(4):
        await call()
    failed, well = (record for record in caplog.records if record.name == "onefold.client")
    assert (failed.levelname, "is retried in" in failed.message) == ("WARNING", True)
    assert (well.levelname, well.message) == ("INFO", "ledger: calls succeed at once again")


async def test_an_error_that_ends_iterators_is_tried_again_and_raised_as_it_is(way: Ways) -> None:
    script = Script(StopIteration("empty"))
    with pytest.raises((StopIteration, RuntimeError)) as caught:  # a coroutine makes the latter of it
        await way.around(Retrying(LAVISH), script, (StopIteration, RuntimeError))()
    assert isinstance(caught.value.__cause__ or caught.value, StopIteration)
    assert script.calls == 4


@pytest.mark.parametrize("on", [(), "OSError", None, 3])
def test_what_to_try_again_must_be_said(on: Any) -> None:
    with pytest.raises(ConfigurationError, match="does not say which errors to retry"):
        Retrying().calls("ledger", on=on)


def test_a_decorated_function_keeps_its_name_its_arguments_and_its_result() -> None:
    @Retrying().calls("ledger", on=OSError)
    def add(one: int, *, other: int) -> int:
        """Adds."""
        return one + other

    assert (add(1, other=2), add.__name__, add.__doc__) == (3, "add", "Adds.")


async def test_an_attempt_on_a_loop_is_broken_off_at_the_deadline() -> None:
    @Retrying(RetryPolicy(deadline_s=0.05)).calls("ledger", on=ConnectionError)
    async def hang() -> None:
        await asyncio.Event().wait()

    with pytest.raises(TimeoutError) as caught:
        await hang()
    report = report_of(caught.value)
    assert report is not None
    assert (report.attempts, report.reason) == (1, Reason.DEADLINE)


async def test_a_cancelled_call_is_cancelled() -> None:
    began = asyncio.Event()

    @Retrying().calls("ledger", on=OSError)
    async def hang() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(hang())
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_function_that_only_makes_a_coroutine_is_a_mistake() -> None:
    async def late() -> None: ...

    @Retrying().calls("ledger", on=OSError)
    def early() -> Any:
        return late()

    with pytest.raises(ProgrammerError, match="ledger returned a coroutine"):
        early()


async def test_a_loop_without_its_block_is_a_mistake() -> None:
    with pytest.raises(ProgrammerError, match="write `with attempt:`"):
        for _ in Retrying().attempts("ledger", on=OSError):
            pass


def test_attempts_are_numbered() -> None:
    script, numbers = Script(ConnectionError("gone"), ConnectionError("gone"), "done"), []
    for attempt in Retrying(LAVISH).attempts("ledger", on=OSError):
        with attempt:
            numbers.append(attempt.number)
            script()
    assert numbers == [1, 2, 3]
