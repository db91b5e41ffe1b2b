"""`once.work(...)` in both colours: the same steps, without a request."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable
from typing import Any

import pytest

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._kernel.transaction import Transaction
from onefold.errors import (
    ConfigurationError,
    ProgrammerError,
    WorkChanged,
    WorkInProgress,
    WorkMismatch,
    WorkMisused,
    WorkParked,
    WorkTakenOver,
)
from onefold.fastapi import StepOptions, Steps
from tests.steps.places import Place, effects, insert


class Calls(list[str]):
    def __call__(self, name: str) -> dict[str, str]:
        self.append(name)
        return {"called": name}


def test_a_block_that_failed_is_gone_on_with(once: Onefold, place: Place) -> None:
    calls = Calls()

    def attempt(*, fails: bool) -> Any:
        with once.work("import:42") as work:
            work.phase("first", insert, "first")
            work.call("fetch", calls, "file")
            if fails:
                raise KeyError("on purpose")
            return work.finish(insert, "last")

    with pytest.raises(KeyError):
        attempt(fails=True)
    assert effects(place) == ["first"]
    assert attempt(fails=False) == "last"
    assert effects(place) == ["first", "last"]
    assert calls == ["file"]


def test_a_work_that_is_done_answers_from_its_record(once: Onefold, place: Place) -> None:
    for _ in range(3):
        with once.work("import:42") as work:
            assert work.phase("first", insert, "first") == "first"
            assert work.finish(insert, "last") == "last"
    assert effects(place) == ["first", "last"]


def test_a_work_without_finish_ends_with_its_block(once: Onefold, place: Place) -> None:
    for _ in range(2):
        with once.work("import:42") as work:
            work.phase("first", insert, "first")
    assert effects(place) == ["first"]
    [(finished,)] = place.rows(f"SELECT finished_at{'' if place.is_postgres else '_ms'} IS NOT NULL FROM onefold_work")
    assert finished
    place.retention_passes()
    once.reap()
    assert (place.works_left(), place.steps_left()) == (0, [])


def test_a_step_behind_the_end_of_a_finished_work_is_refused(once: Onefold) -> None:
    with once.work("import:42") as work:
        work.call("a", Calls(), "a")
    with once.work("import:42") as work:
        work.call("a", Calls(), "a")
        with pytest.raises(WorkMisused, match="is finished, and call 'b'"):
            work.call("b", Calls(), "b")


def test_the_same_work_elsewhere_is_in_progress_and_other_data_is_told_apart(once: Onefold) -> None:
    with once.work("import:42", data={"file": "a", "size": 1}) as work:
        work.call("a", Calls(), "a")
        with pytest.raises(WorkInProgress, match=r"'import:42' is being done elsewhere.* died .* within 15 s"):
            once.work("import:42", data={"size": 1, "file": "a"}).__enter__()
        with pytest.raises(WorkMismatch):
            once.work("import:42", data={"file": "b"}).__enter__()
    with pytest.raises(WorkMismatch), once.work("import:42", data={"file": "b"}):
        pass


def test_keys_of_steps_are_durable_and_each_its_own(once: Onefold) -> None:
    keys = []
    for name in ("import:42", "import:42", "import:43"):
        with once.work(name) as work:
            keys.append(
                (work.derive("charge"), work.derive("mail"), work.derive(StepOptions("pay", formerly=("charge",))))
            )
    assert keys[0] == keys[1]
    assert keys[0][0] == keys[0][2]
    assert len({*keys[0], *keys[2]}) == 4


def test_a_call_that_must_not_be_made_twice_parks_the_work_where_its_outcome_is_unknown(
    once: Onefold, place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    step = StepOptions("charge", repeatable=False)

    def lost() -> None:
        assert place.steps_left() == [(0, "charge", "call", "started")]
        raise ConnectionError("the answer was lost")

    with pytest.raises(ConnectionError), once.work("pay:1") as work:
        work.call(step, lost)
    for _ in range(2):
        with pytest.raises(WorkParked, match="charge"), once.work("pay:1") as work:
            work.call(step, lost)
    [record] = [record for record in caplog.records if record.levelname == "ERROR"]
    assert "call 'charge' was begun by an earlier attempt, its outcome is not known" in record.getMessage()
    assert place.rows("SELECT parked FROM onefold_work") == [("outcome unknown: charge",)]


def test_a_call_that_must_not_be_made_twice_is_recorded_like_any_other(once: Onefold, place: Place) -> None:
    calls = Calls()
    for fails in (True, False):
        try:
            with once.work("pay:1") as work:
                work.call(StepOptions("charge", repeatable=False), calls, "a")
                assert place.steps_left() == [(0, "charge", "call", "done")]
                if fails:
                    raise KeyError
        except KeyError:
            continue
    assert calls == ["a"]


def test_code_that_takes_another_way_is_refused_and_nothing_is_run(once: Onefold, place: Place) -> None:
    with contextlib.suppress(KeyError), once.work("import:42") as work:
        work.phase("first", insert, "first")
        raise KeyError
    with pytest.raises(WorkChanged, match=r"call 'fetch'.*phase 'first'"), once.work("import:42") as work:
        work.call("fetch", Calls(), "file")
    with pytest.raises(WorkChanged, match="ends without phase 'first'"), once.work("import:42"):
        pass
    with once.work("import:42") as work:
        work.phase("first", insert, "first")
    assert effects(place) == ["first"]


def test_a_result_that_cannot_be_recorded_rolls_its_phase_back(once: Onefold, place: Place) -> None:
    def answer(tx: Transaction[Any]) -> Any:
        insert(tx, "lost")
        return object()

    with pytest.raises(ProgrammerError, match="phase 'first' of the work 'import:42'"), once.work("import:42") as work:
        work.phase("first", answer)
    assert effects(place) == []
    assert place.works_left() == 0


def test_a_holder_that_was_taken_over_writes_nothing_more(once: Onefold, place: Place) -> None:
    block = once.work("import:42")
    work = block.__enter__()
    work.phase("first", insert, "first")
    place.change("UPDATE onefold_work SET fence = fence + 1")
    with pytest.raises(WorkTakenOver, match=r"^Another process has taken over import:42, and goes on with it\."):
        work.phase("second", insert, "second")
    with pytest.raises(WorkTakenOver):
        work.call("third", Calls(), "third")
    with pytest.raises(WorkTakenOver):
        work.finish(insert, "last")
    with pytest.raises(WorkTakenOver):
        block.__exit__(None, None, None)
    assert effects(place) == ["first"]
    assert place.steps_left() == [(0, "first", "phase", "done")]


def test_a_call_that_was_made_by_a_holder_that_lost_its_work_is_not_recorded(once: Onefold, place: Place) -> None:
    def meanwhile() -> str:
        place.change("UPDATE onefold_work SET fence = fence + 1")
        return "too late"

    with pytest.raises(WorkTakenOver), once.work("import:42") as work:
        work.call("slow", meanwhile)
    assert place.steps_left() == []


def test_a_transaction_inside_of_a_phase_is_refused(once: Onefold, place: Place) -> None:
    def nested(tx: Transaction[Any]) -> None:
        with once.transaction():
            pass

    with pytest.raises(ProgrammerError, match="inside a consumer's handler or a phase"), once.work("import:42") as work:
        work.phase("first", nested)


def test_a_name_that_cannot_be_one_is_refused(once: Onefold) -> None:
    for name in ("", "a" * 201, "a\nb", 42):
        with pytest.raises(ConfigurationError, match="a work is named by"), once.work(name):  # type: ignore[arg-type]
            pass


# --- on asyncio --------------------------------------------------------------------------------------------


async def ainsert(tx: Transaction[Any], name: str) -> str:
    postgres = "asyncpg" in type(tx.connection).__module__
    arguments: Any = (name,) if postgres else ((name,),)
    await tx.connection.execute(f"INSERT INTO effects VALUES ({'$1' if postgres else '?'})", *arguments)
    return name


async def test_on_asyncio_a_block_that_failed_is_gone_on_with(address: str, place: Place) -> None:
    once = AsyncOnefold(address, principal=single_principal, source="tests")
    calls = Calls()

    async def call(name: str) -> dict[str, str]:
        return calls(name)

    async def attempt(fails: bool) -> str:
        async with once.work("import:42") as work:
            assert await work.phase("first", ainsert, "first") == "first"
            assert await work.call("fetch", call, "file") == {"called": "file"}
            if fails:
                raise KeyError("on purpose")
            return await work.finish(ainsert, "last")

    with pytest.raises(KeyError):
        await attempt(True)
    assert [await attempt(False), await attempt(False)] == ["last", "last"]
    await once.close()
    assert await asyncio.to_thread(effects, place) == ["first", "last"]
    assert calls == ["file"]


async def test_on_asyncio_two_steps_at_once_are_refused(address: str) -> None:
    once = AsyncOnefold(address, principal=single_principal)

    async def slow() -> None:
        await asyncio.sleep(0)

    told = "call 'b' of the work 'x' was called while call 'a' runs.*several reads may be sent at once"
    with pytest.raises(WorkMisused, match=told):
        async with once.work("x") as work:
            await asyncio.gather(work.call("a", slow), work.call("b", slow))
    await once.close()


async def test_on_asyncio_a_step_that_was_not_awaited_is_told_of(address: str) -> None:
    once = AsyncOnefold(address, principal=single_principal)

    async def nothing() -> None: ...

    with pytest.raises(WorkMisused, match="did not await it"):
        async with once.work("x") as work:
            forgotten = work.call("a", nothing)
    forgotten.close()
    await once.close()


async def test_on_asyncio_a_call_that_was_cancelled_may_be_made_again(address: str, place: Place) -> None:
    once = AsyncOnefold(address, principal=single_principal)
    keys: list[str] = []

    async def hang(work: Steps) -> str:
        keys.append(work.derive("slow"))
        if len(keys) == 1:
            await asyncio.Event().wait()
        return "done"

    async with once.work("x") as work:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await work.call("slow", hang, work)
        assert await work.call("slow", hang, work) == "done"
    await once.close()
    assert len(set(keys)) == 1


async def test_on_asyncio_a_cancelled_block_gives_its_work_back(address: str, place: Place) -> None:
    once = AsyncOnefold(address, principal=single_principal)
    began = asyncio.Event()

    async def block() -> None:
        async with once.work("x") as work:
            await work.phase("first", ainsert, "first")
            began.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await began.wait()
    task.cancel()
    await asyncio.wait([task])
    async with asyncio.timeout(60):
        while True:
            try:
                async with once.work("x") as work:
                    assert await work.phase("first", ainsert, "first") == "first"
                break
            except WorkInProgress:
                await asyncio.sleep(0.01)
    await once.close()
    assert await asyncio.to_thread(effects, place) == ["first"]


async def test_functions_of_the_wrong_colour_are_refused_with_the_way_out(address: str) -> None:
    once = AsyncOnefold(address, principal=single_principal)
    with pytest.raises(WorkMisused, match=r"functools\.partial\(asyncio\.to_thread, insert\)"):
        async with once.work("x") as work:
            work.phase("a", insert, "a")
    await once.close()


def test_on_threads_async_functions_are_refused(once: Onefold) -> None:
    told = "ainsert, an async function, and Onefold is for threads"
    with pytest.raises(WorkMisused, match=told), once.work("x") as work:
        _ = work.phase("a", ainsert, "a")


def without_tx(name: str) -> None:
    raise AssertionError(f"{name} was called")


def test_a_function_that_takes_no_transaction_is_refused_with_its_name_and_the_way_out(
    once: Onefold, place: Place
) -> None:
    steps: list[Callable[[Steps], Any]] = [
        lambda work: work.phase("create", without_tx, "a"),  # type: ignore[arg-type, call-arg]
        lambda work: work.phase("create", functools.partial(without_tx, "a")),
        lambda work: work.finish(without_tx, "a"),  # type: ignore[arg-type, call-arg]
        lambda work: work.phase("create", insert),  # type: ignore[call-arg]
    ]
    told = r"(phase 'create'|finish) .*takes the transaction first: def (without_tx|insert)\(tx, \.\.\.\)"
    for ask in steps:
        with pytest.raises(WorkMisused, match=told), once.work("x") as work:
            ask(work)
    assert place.works_left() == 0


def test_a_type_error_of_the_function_itself_stays_what_it_is(once: Onefold) -> None:
    def broken(tx: object) -> None:
        raise TypeError("of its own")

    with pytest.raises(TypeError, match="of its own"), once.work("x") as work:
        work.phase("create", broken)
