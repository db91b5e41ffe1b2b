"""Shielded go on to their end when whoever awaits them is cancelled, and nothing they bring is lost."""

from __future__ import annotations

import asyncio

import pytest

from onefold.db._shielded import Shielded, run_to_end
from tests.support.patience import PATIENCE_S


async def test_what_a_shielded_call_brings_goes_to_whoever_waits_for_it() -> None:
    async def work() -> str:
        return "connection"

    disposed: list[str] = []

    async def dispose(thing: str) -> None:
        disposed.append(thing)

    shielded = Shielded()
    assert await shielded.run(work(), on_abandoned=dispose) == "connection"
    await shielded.finish(10)
    assert disposed == []


async def test_what_a_shielded_call_brings_after_its_wait_was_cancelled_is_disposed_of() -> None:
    started, let_go = asyncio.Event(), asyncio.Event()
    disposed: list[str] = []

    async def work() -> str:
        started.set()
        await let_go.wait()
        return "connection"

    async def dispose(thing: str) -> None:
        disposed.append(thing)

    shielded = Shielded()
    waiting = asyncio.ensure_future(shielded.run(work(), on_abandoned=dispose))
    await started.wait()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting  # at once, although the work is not done
    assert disposed == []
    let_go.set()
    await shielded.finish(10)
    assert disposed == ["connection"]


@pytest.mark.parametrize("turns", range(5))
async def test_whenever_the_wait_is_cancelled_the_thing_is_either_had_or_disposed_of(turns: int) -> None:
    had: list[str] = []
    disposed: list[str] = []

    async def work() -> str:
        await asyncio.sleep(0)
        return "connection"

    async def dispose(thing: str) -> None:
        disposed.append(thing)

    shielded = Shielded()

    async def wait() -> None:
        had.append(await shielded.run(work(), on_abandoned=dispose))

    waiting = asyncio.ensure_future(wait())
    for _ in range(turns):
        await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await shielded.finish(10)
    assert had + disposed == (["connection"] if turns else [])


async def test_a_shielded_call_that_fails_fails_for_whoever_waits_and_for_nobody_else() -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def work() -> str:
        await asyncio.sleep(0)
        raise OSError("no route")

    async def dispose(thing: str) -> None:
        raise AssertionError("there is nothing to dispose of")

    shielded = Shielded()
    with pytest.raises(OSError, match="no route"):
        await shielded.run(work(), on_abandoned=dispose)
    waiting = asyncio.ensure_future(shielded.run(work(), on_abandoned=dispose))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    await shielded.finish(10)
    assert complaints == []


async def test_finishing_does_not_wait_for_ever() -> None:
    async def work() -> None:
        await asyncio.Event().wait()

    shielded = Shielded()
    waiting = asyncio.ensure_future(shielded.run(work()))
    await asyncio.sleep(0)
    await shielded.finish(0.01)
    assert not waiting.done()
    waiting.cancel()
    for task in shielded._under_way:
        task.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@pytest.mark.parametrize("waits", range(4))
@pytest.mark.parametrize("turns", range(5))
async def test_short_work_goes_on_to_its_end_when_its_task_is_cancelled(waits: int, turns: int) -> None:
    ended = asyncio.Event()

    async def work() -> None:
        for _ in range(waits):
            with pytest.raises(ValueError, match="on purpose"):
                await asyncio.gather(fail())
        ended.set()

    async def fail() -> None:
        raise ValueError("on purpose")

    task = asyncio.create_task(run_to_end(work()))
    for _ in range(1 + turns):
        await asyncio.sleep(0)
    cancelled = task.cancel()
    await asyncio.wait([task])
    assert task.cancelled() is cancelled
    await asyncio.wait_for(ended.wait(), PATIENCE_S)


async def test_short_work_that_fails_raises_its_error_with_and_without_a_wait() -> None:
    async def fail(*, waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise ValueError("on purpose")

    for waits in (False, True):
        with pytest.raises(ValueError, match="on purpose"):
            await run_to_end(fail(waits=waits))
