"""Steps that are broken off at their ends: in their COMMIT, behind it, while their result is closed, after the work is
parked. What is committed is remembered, and what is not known is not built upon."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from typing import Any

import pydantic
import pytest

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._kernel.effects import Acquire, Batch, Boundary, Release
from onefold._kernel.runners import run
from onefold._kernel.transaction import Transaction
from onefold._steps.model import Done, Held, RecordedStep
from onefold.errors import OutcomeUnknown, ProgrammerError, WorkMisused, WorkParked
from onefold.fastapi import StepOptions
from tests.steps.places import ASK, ON_POSTGRES, Place, effects, insert
from tests.steps.rides import FRAMEWORKS
from tests.support.patience import PATIENCE_S


async def ainsert(tx: Transaction[Any], name: str) -> str:
    postgres = "asyncpg" in type(tx.connection).__module__
    arguments: Any = (name,) if postgres else ((name,),)
    await tx.connection.execute(f"INSERT INTO effects VALUES ({'$1' if postgres else '?'})", *arguments)
    return name


@ON_POSTGRES  # on SQLite one of them waits for the other before it looks
def test_a_work_whose_first_step_commits_while_it_is_given_back_is_kept(place: Place) -> None:
    held = place.flow(place.works.claim(ASK))
    assert isinstance(held, Held)
    sql, phase = place.works.sql, place.executor()

    async def begin() -> None:
        await Acquire()
        await Batch((Boundary.BEGIN, sql.lock(held), sql.renew(held)))
        await Batch((sql.record(held, RecordedStep(0, "first", "phase", "done", b"\x00null")),))

    async def commit() -> None:
        await Batch((Boundary.COMMIT,))
        await Release()

    run(begin(), phase)
    giving_back = threading.Thread(target=lambda: place.flow(place.works.give_back(held)))
    giving_back.start()
    until = time.monotonic() + PATIENCE_S
    while not place.rows("SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock'"):
        assert time.monotonic() < until
    run(commit(), phase)
    giving_back.join()
    assert (place.works_left(), len(place.steps_left())) == (1, 1)
    again = place.flow(place.works.claim(ASK))
    assert isinstance(again, Held)
    assert [step.name for step in again.steps] == ["first"]


def test_a_finished_work_without_steps_is_not_forgotten_by_giving_it_back(place: Place) -> None:
    held = place.flow(place.works.claim(ASK))
    assert isinstance(held, Held)

    async def finish() -> None:
        await Acquire()
        await Batch((Boundary.BEGIN, *place.works.sql.finish(held, None, 60.0), Boundary.COMMIT))
        await Release()

    place.flow(finish())
    place.flow(place.works.give_back(held))
    assert isinstance(place.flow(place.works.claim(ASK)), Done)


@pytest.mark.parametrize(
    ("error", "told"), [(KeyError("mine"), "mine"), (None, "finish")], ids=["raises", "goes on as if it were done"]
)
async def test_a_finish_that_is_cancelled_behind_its_commit_ends_the_attempt_and_is_not_done_twice(
    address: str, place: Place, error: Exception | None, told: str
) -> None:
    once = AsyncOnefold(address, principal=single_principal, source="tests")

    async def end(tx: Transaction[Any]) -> str:
        tx.after_commit(lambda: asyncio.sleep(PATIENCE_S))
        return await ainsert(tx, "last")

    async def attempt() -> None:
        async with once.work("x") as work:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2):
                    await work.finish(end)
            if error is not None:
                raise error

    with pytest.raises(OutcomeUnknown if error is None else type(error), match=told):
        await attempt()
    async with once.work("x") as work:
        assert await work.finish(ainsert, "last") == "last"
    await once.close()
    assert await asyncio.to_thread(effects, place) == ["last"]


@ON_POSTGRES  # SQLite does not look at foreign keys unless it is told to
def test_a_finish_that_could_not_be_committed_may_be_tried_again(once: Onefold, place: Place) -> None:
    place.change("CREATE TABLE parents (id integer PRIMARY KEY)")
    place.change("CREATE TABLE children (id integer REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)")

    def orphan(tx: Transaction[Any]) -> None:
        tx.connection.execute("INSERT INTO children VALUES (1)")

    try:
        with once.work("x") as work:
            with contextlib.suppress(Exception):
                work.finish(orphan)
            assert work.finish(insert, "last") == "last"
    finally:
        place.change("DROP TABLE children")
        place.change("DROP TABLE parents")
    assert effects(place) == ["last"]


def test_after_a_work_is_parked_no_step_of_it_is_done(once: Onefold, place: Place) -> None:
    step = StepOptions("charge", repeatable=False)

    def lost() -> None:
        raise ConnectionError("the answer was lost")

    with pytest.raises(ConnectionError), once.work("pay:1") as work:
        work.call(step, lost)

    def catch_everything() -> None:
        with once.work("pay:1") as work:
            for step_of in (
                lambda: work.call(step, lost),
                lambda: work.phase("note failure", insert, "failed"),
                lambda: work.finish(insert, "failed"),
            ):
                with contextlib.suppress(Exception):
                    step_of()

    with pytest.raises(WorkParked):
        catch_everything()
    assert effects(place) == []
    assert place.steps_left() == [(0, "charge", "call", "started")]


class Unsure:
    """A sealer whose keys are elsewhere, and cannot be had for a while."""

    def __init__(self) -> None:
        self.is_down = False

    def seal(self, plain: bytes, context: bytes) -> bytes:
        if self.is_down:
            raise ConnectionError("the keys cannot be had")
        return plain

    def unseal(self, sealed: bytes, context: bytes) -> bytes:
        return sealed


@pytest.mark.parametrize("end", ["phase", "finish"])
def test_a_result_that_cannot_be_sealed_rolls_its_transaction_back(address: str, place: Place, end: str) -> None:
    sealer = Unsure()
    once = Onefold(address, principal=single_principal, source="tests", sealer=sealer)

    def attempt() -> None:
        with once.work("x", lease_s=5.0) as work:
            if end == "phase":
                work.phase("first", insert, "first")
            else:
                work.finish(insert, "first")

    sealer.is_down = True
    with pytest.raises(ConnectionError):
        attempt()
    assert effects(place) == []
    sealer.is_down = False
    attempt()
    assert effects(place) == ["first"]
    once.close()


class Half(pydantic.BaseModel):
    """A model that does not read what it writes."""

    id: str
    secret: str = pydantic.Field(exclude=True)


def test_a_result_that_cannot_be_read_again_is_not_recorded(once: Onefold, place: Place) -> None:
    def answer(tx: Transaction[Any]) -> Half:
        insert(tx, "lost")
        return Half(id="1", secret="2")

    def call() -> Half:
        return Half(id="1", secret="2")

    with pytest.raises(ProgrammerError, match="phase 'first'"), once.work("x") as work:
        work.phase("first", answer)
    with pytest.raises(ProgrammerError, match="call 'first'"), once.work("y") as work:
        work.call("first", call)
    assert effects(place) == []
    assert place.steps_left() == []


def test_the_key_of_a_renamed_call_is_not_derived_from_its_new_name(once: Onefold) -> None:
    renamed = StepOptions("pay", formerly=("charge",))
    keys: list[str] = []
    with pytest.raises(WorkMisused, match=r"work\.derive\('pay'\)"), once.work("x") as work:
        work.call(renamed, keys.append, work.derive("pay"))
    assert keys == []
    with once.work("x") as work:
        work.call(renamed, keys.append, work.derive(renamed))


@ON_POSTGRES  # SQLite does not look at foreign keys unless it is told to
def test_a_request_whose_answer_could_not_be_committed_is_gone_on_with_at_once(address: str, place: Place) -> None:
    place.change("CREATE TABLE parents (id integer PRIMARY KEY)")
    place.change("CREATE TABLE children (id integer REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)")
    orphans = [True]

    async def pay(tx: Transaction[Any], charge: Any) -> None:
        if orphans:
            orphans.pop()
            await tx.connection.execute("INSERT INTO children VALUES (1)")
        await ainsert(tx, "paid")

    with FRAMEWORKS["fastapi"](address) as rides:
        rides.shop.apay = pay
        statuses = [rides.post().status_code for _ in range(2)]
    place.change("DROP TABLE children")
    place.change("DROP TABLE parents")
    assert statuses == [500, 201]
    assert effects(place) == ["paid", "ride"]
