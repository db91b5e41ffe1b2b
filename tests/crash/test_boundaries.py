"""The instruments themselves: boundaries are counted in order, faults are honest, and schedules are complete."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel.effects import Acquire, Batch, Boundary, Call, Effect, Fetch, Now, Release, Sleep, Statement
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.runners import run
from onefold.db.sqlite import SqliteDatabase
from onefold.errors import ConnectionLost
from tests.support.crash import Boundaries, Crossing, lose_connection, never_struck, strikes
from tests.support.schedules import Choices, Stepper, VirtualExecutor, every_schedule, interleave, some_schedules

INSERT = Statement("INSERT INTO t VALUES (1)")
COUNT = Fetch(Statement("SELECT count(*) FROM t"))


@pytest.fixture
def file(tmp_path: Path) -> Iterator[SqliteDatabase]:
    file = SqliteDatabase(tmp_path / "t.db", busy_timeout_s=0.001)
    connection = file.acquire()
    connection.batch((Boundary.BEGIN, Statement("CREATE TABLE t (x)"), Boundary.COMMIT))
    connection.release()
    yield file
    file.close()


async def insert() -> None:
    await Acquire()
    await Batch((Boundary.BEGIN, INSERT, Boundary.COMMIT))
    await Release()


async def count() -> int:
    await Acquire()
    [(rows,)] = await COUNT
    await Release()
    return int(rows)


# --- boundaries -----------------------------------------------------------------------------------------------


def test_every_verb_is_crossed_twice_and_numbered(file: SqliteDatabase) -> None:
    boundaries = Boundaries()
    run(insert(), ThreadExecutor(boundaries.around(file)))
    assert [str(crossing) for crossing in boundaries.crossings] == [
        "crossing 1: before acquire",
        "crossing 2: after acquire",
        "crossing 3: before batch (begin, commit)",
        "crossing 4: after batch (begin, commit)",
        "crossing 5: before release",
        "crossing 6: after release",
    ]
    assert boundaries.out == 0


def test_before_a_verb_it_has_not_happened_and_after_it_it_has(file: SqliteDatabase) -> None:
    rows: dict[str, int] = {}
    for strike in strikes(lose_connection):
        before = run(count(), ThreadExecutor(file))
        boundaries = Boundaries(strike)
        executor = ThreadExecutor(boundaries.around(file))
        try:
            run(insert(), executor)
        except ConnectionLost:
            executor.abandon()
        assert boundaries.out == 0
        if strike.struck is not None:
            rows[f"{strike.struck.edge} {strike.struck.verb}"] = run(count(), ThreadExecutor(file)) - before
    assert rows == {
        "before acquire": 0,
        "after acquire": 0,
        "before batch (begin, commit)": 0,
        "after batch (begin, commit)": 1,
        "before release": 1,
        "after release": 1,
    }


def test_a_lost_connection_is_really_thrown_away_with_what_it_held(file: SqliteDatabase) -> None:
    def lose_fetch(crossing: Crossing) -> None:
        if crossing.verb == "fetch":
            raise ConnectionLost("on purpose")

    boundaries = Boundaries(lose_fetch)
    connection = boundaries.around(file).acquire()
    connection.batch((Boundary.BEGIN, INSERT))
    with pytest.raises(ConnectionLost):
        connection.fetch(COUNT.argument)
    with pytest.raises(ConnectionLost, match="lost before"):
        connection.batch((Boundary.COMMIT,))
    run(insert(), ThreadExecutor(file))  # the write lock is free again
    assert run(count(), ThreadExecutor(file)) == 1


def test_a_refusal_is_an_answer_that_can_be_lost_too(file: SqliteDatabase) -> None:
    boundaries = Boundaries()
    connection = boundaries.around(file).acquire()
    with pytest.raises(Exception, match="nonsense"):
        connection.batch((Statement("SELECT nonsense(1)"),))
    assert str(boundaries.crossings[-1]) == "crossing 4: after batch"
    connection.release()


def test_what_does_not_count_is_not_struck(file: SqliteDatabase) -> None:
    boundaries = Boundaries(lose_connection)
    boundaries.counts = lambda: False
    run(insert(), ThreadExecutor(boundaries.around(file)))
    assert boundaries.crossings == []


def test_an_operation_that_never_gets_through_ends_the_campaign() -> None:
    def endless() -> None:
        for strike in strikes(lambda crossing: None, limit=5):
            strike(Crossing(strike.number, "batch", "before"))

    with pytest.raises(AssertionError, match="after 5 crossings"):
        endless()


def test_a_boundary_that_was_never_struck_is_named() -> None:
    counted = [Crossing(1, "acquire", "before"), Crossing(2, "acquire", "after"), Crossing(3, "fetch", "before")]
    assert never_struck(counted, counted) == []
    assert never_struck(counted, counted[:2]) == [Crossing(3, "fetch", "before")]


# --- schedules ------------------------------------------------------------------------------------------------


async def steps(seen: list[str], name: str, number: int) -> str:
    for _ in range(number):
        await Call(lambda: seen.append(name))
    return name


def orders(file: SqliteDatabase, sizes: dict[str, int], *, limit: int = 10_000, **how: Any) -> list[str]:
    """Every order in which flows of these sizes can be interleaved."""
    found = []
    for choices in every_schedule(limit=limit):
        seen: list[str] = []
        steppers = [Stepper(name, steps(seen, name, size), ThreadExecutor(file)) for name, size in sizes.items()]
        assert interleave(steppers, choices, **how) == seen
        assert [stepper.result for stepper in steppers] == list(sizes)
        found.append("".join(seen))
    return found


@pytest.mark.parametrize(("first", "second"), [(1, 1), (2, 3), (4, 4)])
def test_all_interleavings_of_two_flows_are_found_and_none_twice(file: SqliteDatabase, first: int, second: int) -> None:
    found = orders(file, {"a": first, "b": second})
    assert len(found) == len(set(found)) == math.comb(first + second, first)


def test_all_interleavings_of_three_flows_are_found(file: SqliteDatabase) -> None:
    assert len(set(orders(file, {"a": 2, "b": 2, "c": 1}))) == 30


def test_preemptions_are_counted_where_a_flow_could_have_gone_on(file: SqliteDatabase) -> None:
    assert sorted(orders(file, {"a": 2, "b": 2}, preemptions=0)) == ["aabb", "bbaa"]
    assert sorted(orders(file, {"a": 2, "b": 2}, preemptions=1)) == ["aabb", "abba", "baab", "bbaa"]


def test_private_effects_are_no_choice(file: SqliteDatabase) -> None:
    def is_call(effect: Effect[Any]) -> bool:
        return isinstance(effect, Call)

    found = []
    for choices in every_schedule(limit=10):
        seen: list[str] = []
        steppers = [Stepper(name, steps(seen, name, 2), ThreadExecutor(file)) for name in "ab"]
        interleave(steppers, choices, private=is_call)
        found.append("".join(seen))
    assert found == ["aabb"]


def test_more_schedules_than_expected_are_not_dropped_silently(file: SqliteDatabase) -> None:
    with pytest.raises(AssertionError, match="more than 3 schedules"):
        orders(file, {"a": 2, "b": 2}, limit=3)


def test_a_schedule_can_be_repeated(file: SqliteDatabase) -> None:
    def played(choices: Choices) -> list[str]:
        return interleave([Stepper(name, steps([], name, 5), ThreadExecutor(file)) for name in "abc"], choices)

    samples = [played(choices) for choices in some_schedules(range(20))]
    assert samples == [played(choices) for choices in some_schedules(range(20))]
    assert len({"".join(sample) for sample in samples}) > 10


def test_a_flow_that_fails_ends_and_keeps_its_error(file: SqliteDatabase) -> None:
    async def fails() -> None:
        await Call(lambda: [][0])

    stepper = Stepper("a", fails(), ThreadExecutor(file))
    interleave([stepper], Choices())
    with pytest.raises(IndexError):
        _ = stepper.result


def test_a_flow_handles_what_its_effect_raises(file: SqliteDatabase) -> None:
    async def handles() -> str:
        try:
            await Call(lambda: [][0])
        except IndexError:
            return "handled"
        return "not raised"

    stepper = Stepper("a", handles(), ThreadExecutor(file))
    interleave([stepper], Choices())
    assert stepper.result == "handled"


def test_on_a_virtual_executor_waiting_takes_no_time(file: SqliteDatabase) -> None:
    async def waits() -> float:
        begun = await Now()
        await Sleep(3600)
        return await Now() - begun

    assert run(waits(), VirtualExecutor(file, tick_s=1.0)) == 3601.0
