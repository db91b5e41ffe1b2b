"""Cancellation, which asyncio has and threads have not: wherever it strikes, nothing is left behind."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

from onefold._kernel.effects import Acquire, Batch, Boundary, Call, Discard, Nested, Release
from onefold.errors import OnefoldError
from onefold.testing.conformance._stage import Stage, Subject, expect, holding, on_tasks, prepare

#: After how many turns of the loop the work is cancelled: from before it starts until well into a statement.
TURNS = 24


async def check_cancellation(subject: Subject) -> None:
    """Work cancelled in the middle of an effect must leave no lock and no row, and the pool must go on."""
    await on_tasks(subject, [prepare])
    await _cancel_while_connecting(subject)
    await _cancel_while_waiting(subject)
    await _cancel_inside_a_savepoint(subject)

    async def go_on(stage: Stage) -> None:
        await Batch((Boundary.BEGIN, stage.insert(1), Boundary.COMMIT))

    await on_tasks(subject, [lambda stage: holding(stage, subject.connections_max or 1, go_on)])


async def _cancel_while_connecting(subject: Subject) -> None:
    async def passer_by(stage: Stage) -> None:
        await Acquire()
        await Discard()  # so that the next one has to connect again

    for turns in range(TURNS):
        await _cancelled_after(turns, asyncio.create_task(on_tasks(subject, [passer_by])))


async def _cancel_while_waiting(subject: Subject) -> None:
    victims: list[asyncio.Task[Any]] = []

    async def victim(stage: Stage) -> None:
        await Acquire()
        await Batch((Boundary.BEGIN, stage.insert(1)))

    async def cancel_victims() -> None:
        for turns in range(TURNS):
            victims.append(asyncio.create_task(on_tasks(subject, [victim])))
            for _ in range(turns):
                await asyncio.sleep(0)
            victims[-1].cancel()

    async def holder(stage: Stage) -> None:
        await Acquire()
        # Every victim waits for this row, or for the connection that another victim has: none can finish.
        await Batch((Boundary.BEGIN, stage.insert(1)))
        await Call(cancel_victims)
        await Batch((Boundary.ROLLBACK,))
        await Release()

    await on_tasks(subject, [holder])
    ends = await asyncio.gather(*victims, return_exceptions=True)
    expect(all(isinstance(end, asyncio.CancelledError) for end in ends), f"cancelled work ended with {ends}")


async def _cancel_inside_a_savepoint(subject: Subject) -> None:
    """Once the savepoint is rolled back nothing of it is left, also not a statement that was interrupted: or else the
    rollback, or what follows it, is refused."""
    first = (Boundary.BEGIN, Nested(Boundary.SAVEPOINT, 1))
    undo = (Nested(Boundary.ROLLBACK_TO_SAVEPOINT, 1), Nested(Boundary.RELEASE_SAVEPOINT, 1))

    async def interrupt(handle: Any, turns: int) -> None:
        work = subject.execute(handle, "INSERT INTO onefold_conformance (id, name) VALUES (2, 'interrupted')")
        await _cancelled_after(turns, asyncio.ensure_future(work))

    async def interrupted(stage: Stage, turns: int) -> None:
        await Acquire()
        await Batch((*first, stage.insert(1)))
        await stage.user(interrupt, turns)
        left: tuple[int, ...] = ()
        try:
            await Batch(undo)
            await Batch((stage.insert(3), Boundary.COMMIT))
        except OnefoldError:
            await Discard()
        else:
            await Release()
            left = (3,)
        await stage.others_see(*left)
        await Acquire()
        await Batch((stage.sql("DELETE FROM onefold_conformance"),))
        await Release()

    for turns in range(TURNS):
        await on_tasks(subject, [partial(interrupted, turns=turns)])


async def _cancelled_after(turns: int, task: asyncio.Future[Any]) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):  # or it was done by then
        await task
