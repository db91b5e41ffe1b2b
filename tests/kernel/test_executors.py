"""An executor holds at most one connection, and knows what to do with it whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel.effects import Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold.db._threaded import ThreadedDatabase
from onefold.db.sqlite import AsyncSqlite, SqliteDatabase
from onefold.errors import ConnectionLost, ProgrammerError
from tests.support.crash import Boundaries, Crossing
from tests.support.patience import PATIENCE_S

ONE = Statement("SELECT 1")


class Watched:
    """A SQLite file, in both colours, and what it is asked for."""

    def __init__(self, path: Path) -> None:
        self.boundaries = Boundaries()
        self.file = SqliteDatabase(path)
        self.threads = self.boundaries.around(self.file)
        self.tasks = self.boundaries.around_async(ThreadedDatabase(self.file, AsyncSqlite))

    @property
    def verbs(self) -> list[str]:
        return [crossing.verb for crossing in self.boundaries.crossings if crossing.edge == "before"]

    def lose(self, verb: str) -> None:
        def lost(crossing: Crossing) -> None:
            if crossing.verb == verb:
                raise ConnectionLost("on purpose")

        self.boundaries.act = lost


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path / "lanes.db")
    yield watched
    watched.file.close()


@pytest.fixture
def executor(watched: Watched) -> ThreadExecutor[Any]:
    return ThreadExecutor(watched.threads)


@pytest.fixture
async def task_executor(watched: Watched) -> AsyncIterator[TaskExecutor[Any]]:
    yield TaskExecutor(watched.tasks)
    await watched.tasks.close()


# --- at most one connection -----------------------------------------------------------------------------------


def test_acquiring_twice_takes_one_connection(executor: ThreadExecutor[Any], watched: Watched) -> None:
    executor.acquire()
    executor.acquire()
    assert watched.boundaries.out == 1
    executor.release()
    assert watched.verbs == ["acquire", "release"]


async def test_acquiring_twice_takes_one_connection_on_asyncio(
    task_executor: TaskExecutor[Any], watched: Watched
) -> None:
    await task_executor.acquire()
    await task_executor.acquire()
    assert watched.boundaries.out == 1
    await task_executor.release()
    assert watched.verbs == ["acquire", "release"]


def test_an_executor_can_be_used_again(executor: ThreadExecutor[Any], watched: Watched) -> None:
    for _ in range(2):
        executor.acquire()
        assert executor.fetch(ONE) == [(1,)]
        executor.release()
    assert watched.boundaries.out == 0


async def test_an_executor_can_be_used_again_on_asyncio(task_executor: TaskExecutor[Any], watched: Watched) -> None:
    for _ in range(2):
        await task_executor.acquire()
        assert await task_executor.fetch(ONE) == [(1,)]
        await task_executor.release()
    assert watched.boundaries.out == 0


def test_letting_go_of_nothing_does_nothing(executor: ThreadExecutor[Any], watched: Watched) -> None:
    executor.release()
    executor.discard()
    executor.abandon()
    assert watched.verbs == []


async def test_letting_go_of_nothing_does_nothing_on_asyncio(
    task_executor: TaskExecutor[Any], watched: Watched
) -> None:
    await task_executor.release()
    await task_executor.discard()
    task_executor.abandon()
    assert watched.verbs == []


def test_whoever_uses_a_connection_without_one_is_told_what_to_await(executor: ThreadExecutor[Any]) -> None:
    with pytest.raises(ProgrammerError, match=r"await Acquire\(\) first"):
        executor.fetch(ONE)
    with pytest.raises(ProgrammerError, match=r"await Acquire\(\) first"):
        executor.batch((ONE,))


async def test_whoever_uses_a_connection_without_one_is_told_what_to_await_on_asyncio(
    task_executor: TaskExecutor[Any],
) -> None:
    with pytest.raises(ProgrammerError, match=r"await Acquire\(\) first"):
        await task_executor.fetch(ONE)
    with pytest.raises(ProgrammerError, match=r"await Acquire\(\) first"):
        await task_executor.batch((ONE,))


# --- connections that break -----------------------------------------------------------------------------------


def test_a_connection_lost_while_it_is_given_back_fails_nobody(executor: ThreadExecutor[Any], watched: Watched) -> None:
    executor.acquire()
    watched.lose("release")
    executor.release()
    assert watched.boundaries.out == 0


async def test_a_connection_lost_while_it_is_given_back_fails_nobody_on_asyncio(
    task_executor: TaskExecutor[Any], watched: Watched
) -> None:
    await task_executor.acquire()
    watched.lose("release")
    await task_executor.release()
    assert watched.boundaries.out == 0


def test_abandoning_a_connection_that_cannot_be_thrown_away_fails_nobody(
    executor: ThreadExecutor[Any], watched: Watched
) -> None:
    executor.acquire()
    watched.lose("discard")
    executor.abandon()
    assert watched.boundaries.out == 0


async def test_abandoning_awaits_nothing_and_the_connection_leaves_all_the_same(
    task_executor: TaskExecutor[Any], watched: Watched
) -> None:
    await task_executor.acquire()
    task_executor.abandon()
    assert watched.boundaries.out == 1
    async with asyncio.timeout(PATIENCE_S):
        while watched.boundaries.out:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert watched.verbs == ["acquire", "discard"]


async def test_abandoning_a_connection_that_cannot_be_thrown_away_fails_nobody_on_asyncio(
    task_executor: TaskExecutor[Any], watched: Watched
) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    await task_executor.acquire()
    watched.lose("discard")
    task_executor.abandon()
    async with asyncio.timeout(PATIENCE_S):
        while watched.boundaries.out:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert failures == []


# --- user code ------------------------------------------------------------------------------------------------


async def later() -> str:
    return "later"


def test_a_thread_calls_plain_functions_only(executor: ThreadExecutor[Any]) -> None:
    assert executor.call(lambda: "now") == "now"
    with pytest.raises(ProgrammerError, match="AsyncOnefold"):
        executor.call(later)


async def test_a_task_calls_both_kinds(task_executor: TaskExecutor[Any]) -> None:
    assert await task_executor.call(lambda: "now") == "now"
    assert await task_executor.call(later) == "later"
