"""tx.savepoint() and the unit of work of the session that has joined the transaction: as SQLAlchemy's begin_nested."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from sqlalchemy import select, text
from sqlalchemy.exc import IntegrityError

from onefold.db.sqlalchemy import tx_of
from onefold.errors import TransactionMisused
from tests.sessions.stages import KINDS, Order, Stage, settle, staged


@pytest.fixture(params=KINDS)
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with staged(request, request.param) as stage:
        yield stage


@asynccontextmanager
async def part(tx: Any, stage: Stage) -> AsyncIterator[None]:
    if stage.asynchronous:
        async with tx.savepoint():
            yield
    else:
        with tx.savepoint():
            yield


async def within(stage: Stage, work: Callable[[Any], Awaitable[None]], **options: Any) -> None:
    """Do something inside a transaction that commits."""
    once = await stage.migrated(session_factory=stage.factory(**options))
    if stage.asynchronous:
        async with once.transaction() as tx:
            await work(tx)
    else:
        with once.transaction() as tx:
            await work(tx)


class Refused(Exception):
    """What a block raises."""


async def read(session: Any) -> list[str]:
    return list((await settle(session.scalars(select(Order.item).order_by(Order.item)))).all())


async def test_what_was_added_before_an_undone_block_stays(stage: Stage) -> None:
    async def work(tx: Any) -> None:
        session = tx.session()
        session.add(Order(item="paid"))
        tx.publish("order.placed", {})
        with pytest.raises(Refused):  # noqa: PT012
            async with part(tx, stage):
                assert await read(session) == ["paid"]
                raise Refused

    await within(stage, work)
    assert (stage.items(), stage.events()) == (["paid"], 1)


@pytest.mark.parametrize("used", [False, True], ids=["unused before", "used before"])
@pytest.mark.parametrize("flushed", [False, True], ids=["pending", "flushed"])
async def test_what_was_added_inside_an_undone_block_is_undone(stage: Stage, used: bool, flushed: bool) -> None:
    async def work(tx: Any) -> None:
        session = tx.session()
        if used:
            await read(session)
        with pytest.raises(Refused):  # noqa: PT012
            async with part(tx, stage):
                session.add(gift := Order(item="gift"))
                _ = tx_of(session).publish("gift.given", {})
                if flushed:
                    await settle(session.flush())
                raise Refused
        assert gift not in session
        session.add(Order(item="main"))

    await within(stage, work)
    assert (stage.items(), stage.events()) == (["main"], 0)


async def test_changes_before_and_inside_an_undone_block_are_told_apart(stage: Stage) -> None:
    async def work(tx: Any) -> None:
        session = tx.session()
        session.add_all([untouched := Order(item="untouched"), order := Order(item="order")])
        await settle(session.flush())
        order.tenant = "paid"
        with pytest.raises(Refused):  # noqa: PT012
            async with part(tx, stage):
                order.tenant = "refused"
                raise Refused
        assert untouched.item == "untouched"  # not expired: nothing of it was undone

    await within(stage, work)
    with stage.outside.connect() as connection:
        rows = connection.execute(text("SELECT item, tenant FROM orders ORDER BY item")).all()
    assert [tuple(row) for row in rows] == [("order", "paid"), ("untouched", "acme")]


async def test_blocks_nest(stage: Stage) -> None:
    async def work(tx: Any) -> None:
        session = tx.session()
        session.add(Order(item="a"))
        async with part(tx, stage):
            session.add(Order(item="b"))
            with pytest.raises(Refused):  # noqa: PT012
                async with part(tx, stage):
                    session.add(Order(item="not c"))
                    async with part(tx, stage):
                        session.add(Order(item="not d"))
                    assert await read(session) == ["a", "b", "not c", "not d"]
                    raise Refused
            session.add(Order(item="e"))
        session.add(Order(item="f"))

    await within(stage, work)
    assert stage.items() == ["a", "b", "e", "f"]


@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("fails", [False, True])
async def test_a_session_may_be_joined_inside_a_block(stage: Stage, fails: bool, commits: bool) -> None:
    async def work(tx: Any) -> None:
        try:
            async with part(tx, stage):
                session = tx.session()
                session.add(Order(item="inside"))
                if commits:
                    await settle(session.commit())
                    session.add(Order(item="inside too"))
                async with part(tx, stage):
                    session.add(Order(item="deeper"))
                if fails:
                    raise Refused
        except Refused:
            pass
        session.add(Order(item="after"))

    await within(stage, work)
    inside = ["deeper", "inside", "inside too"] if commits else ["deeper", "inside"]
    assert stage.items() == (["after"] if fails else ["after", *inside])


async def test_a_rollback_after_a_block_undoes_the_block_too(stage: Stage) -> None:
    async def work(tx: Any) -> None:
        session = tx.session()
        async with part(tx, stage):
            session.add(Order(item="gift"))
            tx.publish("gift.given", {})
        await settle(session.rollback())
        session.add(Order(item="main"))

    await within(stage, work)
    assert (stage.items(), stage.events()) == (["main"], 0)


@pytest.mark.parametrize("swallowed", [False, True], ids=["at the end", "swallowed inside"])
async def test_a_block_whose_work_cannot_be_written_is_undone(stage: Stage, swallowed: bool) -> None:
    async def work(tx: Any) -> None:
        session = tx.session()
        session.add(tea := Order(item="tea"))
        tx.publish("order.placed", {})
        with pytest.raises(Exception, match=r"rolled back|UNIQUE|unique"):  # noqa: PT012
            async with part(tx, stage):
                tx.publish("order.placed", {})
                session.add(Order(item="cup"))
                await settle(session.flush())
                session.expunge(tea)
                session.add(Order(item="tea"))
                if swallowed:
                    with pytest.raises(IntegrityError):
                        await settle(session.flush())
        session.add(Order(item="pen"))

    await within(stage, work)
    assert (stage.items(), stage.events()) == (["pen", "tea"], 1)


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_session_that_ends_more_than_the_block_is_refused(stage: Stage, end: str) -> None:
    async def work(tx: Any) -> None:
        session = tx.session()
        session.add(Order(item="tea"))
        async with part(tx, stage):
            session.add(Order(item="cup"))
            await settle(getattr(session, end)())

    with pytest.raises(TransactionMisused, match=r"inside a tx.savepoint\(\) block"):
        await within(stage, work)
    assert stage.items() == []


async def test_a_block_that_times_out_is_undone_in_the_session_too(request: pytest.FixtureRequest) -> None:
    for kind in ("async-sqlite", "async-postgres"):
        async with staged(request, kind) as stage:

            async def work(tx: Any, stage: Stage = stage) -> None:
                session = tx.session()
                session.add(Order(item="paid"))
                with pytest.raises(TimeoutError):  # noqa: PT012
                    async with asyncio.timeout(None) as limit, part(tx, stage):
                        session.add(Order(item="flushed"))
                        await session.flush()
                        session.add(Order(item="pending"))
                        limit.reschedule(asyncio.get_running_loop().time())
                        await asyncio.Event().wait()
                session.add(Order(item="after"))

            await within(stage, work)
            assert stage.items() == ["after", "paid"]
