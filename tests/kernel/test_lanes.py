"""A lane holds at most one connection, and knows what to do with it whatever happens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel.effects import Statement
from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold.db.sqlite import AsyncSqlite, SqliteDatabase
from onefold.db.threads import ThreadedDatabase
from onefold.errors import ConnectionLost, ProgrammerError
from onefold.testing.crash import Boundaries, Crossing
from tests.patience import PATIENCE_S

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
def lane(watched: Watched) -> ThreadLane[Any]:
    return ThreadLane(watched.threads)


@pytest.fixture
async def task_lane(watched: Watched) -> AsyncIterator[TaskLane[Any]]:
    yield TaskLane(watched.tasks)
    await watched.tasks.close()


# --- at most one connection -----------------------------------------------------------------------------------


def test_acquiring_twice_takes_one_connection(lane: ThreadLane[Any], watched: Watched) -> None:
    lane.acquire()
    lane.acquire()
    assert watched.boundaries.out == 1
    lane.release()
    assert watched.verbs == ["acquire", "release"]


async def test_acquiring_twice_takes_one_connection_on_asyncio(task_lane: TaskLane[Any], watched: Watched) -> None:
    await task_lane.acquire()
    await task_lane.acquire()
    assert watched.boundaries.out == 1
    await task_lane.release()
    assert watched.verbs == ["acquire", "release"]


def test_a_lane_can_be_used_again(lane: ThreadLane[Any], watched: Watched) -> None:
    for _ in range(2):
        lane.acquire()
        assert lane.fetch(ONE) == [(1,)]
        lane.release()
    assert watched.boundaries.out == 0


async def test_a_lane_can_be_used_again_on_asyncio(task_lane: TaskLane[Any], watched: Watched) -> None:
    for _ in range(2):
        await task_lane.acquire()
        assert await task_lane.fetch(ONE) == [(1,)]
        await task_lane.release()
    assert watched.boundaries.out == 0


def test_letting_go_of_nothing_does_nothing(lane: ThreadLane[Any], watched: Watched) -> None:
    lane.release()
    lane.discard()
    lane.abandon()
    assert watched.verbs == []


async def test_letting_go_of_nothing_does_nothing_on_asyncio(task_lane: TaskLane[Any], watched: Watched) -> None:
    await task_lane.release()
    await task_lane.discard()
    task_lane.abandon()
    assert watched.verbs == []


def test_whoever_uses_a_connection_without_one_is_told_what_to_await(lane: ThreadLane[Any]) -> None:
    with pytest.raises(ProgrammerError, match=r"await Acquire\(\) first"):
        lane.fetch(ONE)
    with pytest.raises(ProgrammerError, match=r"await Acquire\(\) first"):
        lane.batch((ONE,))


async def test_whoever_uses_a_connection_without_one_is_told_what_to_await_on_asyncio(
    task_lane: TaskLane[Any],
) -> None:
    with pytest.raises(ProgrammerError, match=r"await Acquire\(\) first"):
        await task_lane.fetch(ONE)
    with pytest.raises(ProgrammerError, match=r"await Acquire\(\) first"):
        await task_lane.batch((ONE,))


# --- connections that break -----------------------------------------------------------------------------------


def test_a_connection_lost_while_it_is_given_back_fails_nobody(lane: ThreadLane[Any], watched: Watched) -> None:
    lane.acquire()
    watched.lose("release")
    lane.release()
    assert watched.boundaries.out == 0


async def test_a_connection_lost_while_it_is_given_back_fails_nobody_on_asyncio(
    task_lane: TaskLane[Any], watched: Watched
) -> None:
    await task_lane.acquire()
    watched.lose("release")
    await task_lane.release()
    assert watched.boundaries.out == 0


def test_abandoning_a_connection_that_cannot_be_thrown_away_fails_nobody(
    lane: ThreadLane[Any], watched: Watched
) -> None:
    lane.acquire()
    watched.lose("discard")
    lane.abandon()
    assert watched.boundaries.out == 0


async def test_abandoning_awaits_nothing_and_the_connection_leaves_all_the_same(
    task_lane: TaskLane[Any], watched: Watched
) -> None:
    await task_lane.acquire()
    task_lane.abandon()
    assert watched.boundaries.out == 1
    async with asyncio.timeout(PATIENCE_S):
        while watched.boundaries.out:  # noqa: ASYNC110
            await asyncio.sleep(0)
    assert watched.verbs == ["acquire", "discard"]


async def test_abandoning_a_connection_that_cannot_be_thrown_away_fails_nobody_on_asyncio(
    task_lane: TaskLane[Any], watched: Watched
) -> None:
    failures: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
    await task_lane.acquire()
    watched.lose("discard")
    task_lane.abandon()
    async with asyncio.timeout(PATIENCE_S):
        while watched.boundaries.out:  # noqa: ASYNC110
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert failures == []


# --- user code ------------------------------------------------------------------------------------------------


async def later() -> str:
    return "later"


def test_a_thread_calls_plain_functions_only(lane: ThreadLane[Any]) -> None:
    assert lane.call(lambda: "now") == "now"
    with pytest.raises(ProgrammerError, match="AsyncOnefold"):
        lane.call(later)


async def test_a_task_calls_both_kinds(task_lane: TaskLane[Any]) -> None:
    assert await task_lane.call(lambda: "now") == "now"
    assert await task_lane.call(later) == "later"
