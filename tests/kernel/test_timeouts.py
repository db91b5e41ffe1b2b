"""A time limit that costs nothing when nobody waits, and does what `asyncio.timeout` does when somebody does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from onefold._kernel.timeouts import within
from tests.support.patience import PATIENCE_S

HOUR_S = 3600.0


async def test_what_is_there_at_once_needs_no_timer(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_timer(*_: object) -> None:
        raise AssertionError("a timer was set")

    async def at_once() -> str:
        return "here"

    monkeypatch.setattr(asyncio.get_running_loop(), "call_at", no_timer)
    assert await within(HOUR_S, at_once()) == "here"


async def test_what_comes_in_time_is_returned_and_rung_no_more() -> None:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str] = loop.create_future()
    loop.call_soon(future.set_result, "late")
    assert await within(0.01, future) == "late"
    await asyncio.sleep(0.02)  # the timer that is left behind finds nobody
    assert not future.cancelled()


async def test_an_error_passes_through() -> None:
    async def broken() -> None:
        await asyncio.sleep(0)
        raise LookupError("its own")

    with pytest.raises(LookupError, match="its own"):
        await within(HOUR_S, broken())


async def waiting(awaitable: Awaitable[None], seconds: float) -> None:
    await within(seconds, awaitable)


async def asleep() -> None:
    await asyncio.sleep(HOUR_S)


async def spinning() -> None:
    while True:  # noqa: ASYNC110 - it never waits for anything
        await asyncio.sleep(0)


@pytest.mark.parametrize("never", [asleep, spinning])
async def test_what_does_not_come_in_time_is_cancelled(never: Callable[[], Awaitable[None]]) -> None:
    with pytest.raises(TimeoutError, match=r"not there after 0\.001 s"):
        await within(0.001, never())
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_what_a_cancelled_task_still_does_has_limits_too() -> None:
    ended: list[BaseException] = []

    async def clean_up() -> None:
        try:
            await asleep()
        finally:
            try:
                await within(0.001, asleep())
            except BaseException as error:
                ended.append(error)

    task = asyncio.create_task(clean_up())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [type(error) for error in ended] == [TimeoutError]
    assert task.cancelled()


async def test_what_cleans_up_after_its_time_may_wait_while_it_does() -> None:
    cleaned = []

    async def careful() -> None:
        try:
            await asleep()
        finally:
            await asyncio.sleep(0.001)
            cleaned.append("up")

    with pytest.raises(TimeoutError):
        await within(0.001, careful())
    assert cleaned == ["up"]


async def test_a_result_that_comes_in_spite_of_the_alarm_counts() -> None:
    async def stubborn() -> str:
        try:
            await asleep()
        except asyncio.CancelledError:
            return "after all"
        raise AssertionError("not reached")

    assert await within(0.001, stubborn()) == "after all"


async def test_a_cancelled_task_is_cancelled_and_not_out_of_time() -> None:
    task = asyncio.create_task(waiting(asleep(), HOUR_S))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_task_cancelled_at_the_moment_the_alarm_rings_stays_cancelled() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(waiting(future, 0.001))
    await asyncio.sleep(0)
    while not future.done():  # noqa: ASYNC110 - the moment after it rang, before the task wakes up
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_all_that_wait_share_one_timer_and_each_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    timers, call_at = [], loop.call_at

    def counting(*args: Any, **kwargs: Any) -> asyncio.TimerHandle:
        timers.append(args[0])
        return call_at(*args, **kwargs)

    monkeypatch.setattr(loop, "call_at", counting)
    ended = []

    async def wait(seconds: float) -> None:
        with pytest.raises(TimeoutError):
            await within(seconds, loop.create_future())
        ended.append(seconds)

    patient = [asyncio.create_task(wait(HOUR_S)) for _ in range(20)]
    await asyncio.sleep(0)
    assert len(timers) == 1
    await asyncio.create_task(wait(0.001))
    assert ended == [0.001]
    for each in patient:
        each.cancel()
    await asyncio.gather(*patient, return_exceptions=True)
    assert ended == [0.001]


def test_limits_hold_in_each_loop_of_a_thread() -> None:
    async def wait(seconds: float) -> None:
        await within(seconds, asyncio.get_running_loop().create_future())

    async def leave() -> None:
        asyncio.create_task(wait(HOUR_S)).cancel()
        waiting = asyncio.create_task(wait(HOUR_S))
        await asyncio.sleep(0)
        waiting.cancel()

    asyncio.run(leave())
    with pytest.raises(TimeoutError):
        asyncio.run(wait(0.001))


async def never() -> None:
    with pytest.raises(TimeoutError):
        await within(0.01, asyncio.get_running_loop().create_future())


def test_a_limit_holds_although_the_thread_has_run_another_loop_meanwhile() -> None:
    with asyncio.Runner() as first, asyncio.Runner() as second:
        waiting = first.get_loop().create_task(never())
        first.run(asyncio.sleep(0))
        second.run(never())
        first.run(asyncio.wait_for(waiting, PATIENCE_S))


async def test_an_alarm_that_meets_a_finished_future_is_not_lost() -> None:
    loop = asyncio.get_running_loop()
    first: asyncio.Future[None] = loop.create_future()

    async def two_steps() -> None:
        await first
        await asleep()

    task = asyncio.create_task(waiting(two_steps(), 0.001))
    await asyncio.sleep(0)
    loop.call_at(loop.time() + 0.001, first.set_result, None)  # in the same turn of the loop, just before the alarm
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(PATIENCE_S):
            await task
    assert first.done()
