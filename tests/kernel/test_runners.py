"""The two runners do the same: answer, throw where it is awaited, and let go of everything when interrupted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from onefold._kernel.effects import Acquire, Batch, Boundary, Call, Fetch, Flow, Now, Release, Sleep, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.runners import run, run_async
from onefold.db._threaded import ThreadedDatabase
from onefold.db.sqlite import AsyncSqlite, SqliteDatabase
from onefold.errors import ProgrammerError, StatementRefused
from tests.support.crash import Boundaries

Runner: TypeAlias = Callable[[Flow[Any]], Any]

ONE = Fetch(Statement("SELECT 1"))


@pytest.fixture
def boundaries() -> Boundaries:
    return Boundaries()


@pytest.fixture(params=["thread", "asyncio"])
def performed(request: pytest.FixtureRequest, boundaries: Boundaries, tmp_path: Path) -> Iterator[Runner]:
    """Run a flow to its end on an executor of its own, by the runner of one colour."""
    database = boundaries.around(SqliteDatabase(tmp_path / "flows.db"))
    if request.param == "thread":
        yield lambda flow: run(flow, ThreadExecutor(database))
        database.close()
        return
    with asyncio.Runner() as runner:
        threaded = ThreadedDatabase(database, AsyncSqlite)

        async def on_a_task(flow: Flow[Any]) -> Any:
            return await run_async(flow, TaskExecutor(threaded))

        yield lambda flow: runner.run(on_a_task(flow))
        runner.run(threaded.close())


def test_a_flow_gets_its_answers_and_returns_its_value(performed: Runner, boundaries: Boundaries) -> None:
    async def flow() -> tuple[Any, ...]:
        await Acquire()
        rows = await ONE
        count = await Batch((Boundary.BEGIN, Statement("CREATE TABLE t (x)"), Boundary.COMMIT))
        await Release()
        return rows, count, await Call(lambda: "called")

    assert performed(flow()) == ([(1,)], 0, "called")
    assert boundaries.out == 0


def test_time_goes_on_while_a_flow_sleeps(performed: Runner) -> None:
    async def flow() -> float:
        begun = await Now()
        await Sleep(0.01)
        return await Now() - begun

    assert performed(flow()) >= 0.01


def test_what_an_effect_raises_is_thrown_where_it_was_awaited(performed: Runner) -> None:
    async def flow() -> str:
        await Acquire()
        try:
            await Fetch(Statement("SELECT nonsense("))
        except StatementRefused as error:
            return f"caught: {error}"
        finally:
            await Release()
        return "nothing was thrown"

    assert performed(flow()).startswith("caught: SQLite")


def test_what_a_flow_does_not_catch_rises(performed: Runner) -> None:
    async def flow() -> None:
        await Call(lambda: [][0])

    with pytest.raises(IndexError):
        performed(flow())


class Stranger:
    """Something that can be awaited, but is not an effect."""

    def __await__(self) -> Generator[str, None, None]:
        yield "a stranger"


def test_a_flow_that_awaits_something_else_is_told_what_it_was(performed: Runner) -> None:
    async def flow() -> None:
        await Stranger()

    with pytest.raises(ProgrammerError, match=r"awaited 'a stranger', which is not an effect.*await Call"):
        performed(flow())


def test_a_flow_that_reaches_for_the_loop_is_told_so(performed: Runner) -> None:
    async def flow() -> None:
        await asyncio.sleep(0)

    with pytest.raises(ProgrammerError, match="awaited None, which is not an effect"):
        performed(flow())


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, asyncio.CancelledError, GeneratorExit])
def test_an_interruption_throws_the_connection_away_and_closes_the_flow(
    performed: Runner, boundaries: Boundaries, interruption: type[BaseException]
) -> None:
    after: list[str] = []

    def interrupt() -> None:
        raise interruption

    async def flow() -> None:
        await Acquire()
        await Batch((Boundary.BEGIN,))
        try:
            await Call(interrupt)
        except Exception:
            after.append("handled")  # nobody asks the flow what to do
        finally:
            after.append("closed")
        after.append("went on")

    with pytest.raises(interruption):
        performed(flow())
    assert after == ["closed"]
    _settle(boundaries, performed)
    assert boundaries.crossings[-1].verb == "discard"
    assert boundaries.out == 0


def _settle(boundaries: Boundaries, performed: Runner) -> None:
    """On asyncio an abandoned connection leaves in a task of its own: give the loop some turns."""

    async def turn() -> None:
        await Sleep(0.001)

    for _ in range(1000):
        if not boundaries.out:
            return
        performed(turn())


async def test_a_task_that_is_cancelled_while_its_flow_waits_holds_nothing_any_more(tmp_path: Path) -> None:
    boundaries = Boundaries()
    with closing(SqliteDatabase(tmp_path / "flows.db")) as file:
        database = ThreadedDatabase(boundaries.around(file), AsyncSqlite)
        waiting = asyncio.Event()

        async def flow() -> None:
            await Acquire()
            await Batch((Boundary.BEGIN,))
            await Call(waiting.set)
            await Sleep(60)

        task = asyncio.create_task(run_async(flow(), TaskExecutor(database)))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        executor = TaskExecutor(database)

        async def write() -> None:
            await Acquire()
            await Batch((Boundary.BEGIN, Statement("CREATE TABLE t (x)"), Boundary.COMMIT))
            await Release()

        await run_async(write(), executor)  # the write lock is free, or this would wait for it in vain
        assert boundaries.out == 0
        await database.close()
