"""What a serial thread obtains is disposed of where its task never sees it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import pytest

from onefold._kernel.serial_thread import SerialThread, call_in_thread
from tests.support.patience import PATIENCE_S


class Waste:
    """What was disposed of, and a wait for it."""

    def __init__(self) -> None:
        self.found: list[Any] = []
        self._came = threading.Event()

    def __call__(self, thing: Any) -> None:
        self.found.append(thing)
        self._came.set()

    def wait(self) -> list[Any]:
        assert self._came.wait(PATIENCE_S)
        return self.found


class Gate:
    """A function that is in the middle until it is let through."""

    def __init__(self) -> None:
        self.entered, self.opened = threading.Event(), threading.Event()

    def __call__(self) -> str:
        self.entered.set()
        assert self.opened.wait(PATIENCE_S)
        return "connection"


@pytest.fixture
def thread() -> Iterator[SerialThread]:
    made = SerialThread()
    yield made
    made.end()


@pytest.fixture
def waste() -> Waste:
    return Waste()


async def test_what_a_task_gets_is_its_own(thread: SerialThread, waste: Waste) -> None:
    assert await thread.obtain(lambda: "connection", waste) == "connection"
    assert await thread.run(lambda: waste.found) == []
    assert thread.is_idle


async def test_an_error_is_raised_and_there_is_nothing_to_dispose_of(thread: SerialThread, waste: Waste) -> None:
    with pytest.raises(ZeroDivisionError):
        await thread.obtain(lambda: 1 / 0, waste)
    assert waste.found == []


@pytest.mark.parametrize("call", [SerialThread("spare").run, call_in_thread])
async def test_a_stop_iteration_does_not_keep_its_task_waiting(call: Callable[[Any], Awaitable[Any]]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        with pytest.raises(RuntimeError, match=r"raised StopIteration\(no more\), as next\(\) does") as raised:
            await call(lambda: next(_nothing()))
    assert isinstance(raised.value.__cause__, StopIteration)


def _nothing() -> Iterator[Any]:
    class Nothing:
        def __iter__(self) -> Iterator[Any]:
            return self

        def __next__(self) -> Any:
            raise StopIteration("no more")

    return Nothing()


async def test_a_task_that_is_cancelled_while_the_function_runs(thread: SerialThread, waste: Waste) -> None:
    gate = Gate()
    task = asyncio.ensure_future(thread.obtain(gate, waste))
    await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    gate.opened.set()
    assert await asyncio.to_thread(waste.wait) == ["connection"]


async def test_a_coroutine_that_is_closed_when_the_result_is_there(thread: SerialThread, waste: Waste) -> None:
    obtaining = thread.obtain(lambda: "connection", waste)
    answer: Any = obtaining.send(None)
    while not answer.done():  # noqa: ASYNC110 - nothing tells of it but the future, which the coroutine awaits
        await asyncio.sleep(0.01)
    obtaining.close()
    assert await asyncio.to_thread(waste.wait) == ["connection"]


def test_a_loop_that_is_closed_while_the_function_runs(thread: SerialThread, waste: Waste) -> None:
    gate = Gate()
    with closing(asyncio.new_event_loop()) as loop:

        async def leave() -> None:
            obtaining = asyncio.ensure_future(thread.obtain(gate, waste))
            await asyncio.to_thread(gate.entered.wait, PATIENCE_S)
            obtaining.cancel()
            with suppress(asyncio.CancelledError):
                await obtaining

        loop.run_until_complete(leave())
    gate.opened.set()
    assert waste.wait() == ["connection"]
