"""A lock on a natural key: one transaction at a time, a bounded wait, and an end with the transaction."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import Any
from uuid import UUID

import pytest

from onefold import Onefold
from onefold._natural.exclusive import lock_number
from onefold.errors import KeyNotDerivable, ProgrammerError, SerializationFailed, StatementRefused, StoreBusy
from tests.natural.stages import ENGINES, PLAIN, Stage, address_for, opened, refused
from tests.support.patience import PATIENCE_S


@pytest.fixture(params=PLAIN + ENGINES, ids=lambda driver: driver.replace(" ", "-"))
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    async with opened(request.param, address_for(request, request.param)) as stage:
        yield stage


async def take(stage: Stage, tx: Any, *key: Any, **how: Any) -> None:
    if stage.asynchronous:
        async with tx.exclusive(*key, **how):
            pass
    else:
        with tx.exclusive(*key, **how):
            pass


async def test_a_key_that_another_transaction_has_is_refused_and_the_transaction_goes_on(stage: Stage) -> None:
    async with stage.transaction() as holder:
        await take(stage, holder, "transfer", "a", "b")
        await take(stage, holder, "transfer", "a", "b")  # it has it already
        async with stage.transaction() as other:
            with refused(StoreBusy, "tx.exclusive('transfer', 'a', 'b')", "wait_s=0"):
                await take(stage, other, "transfer", "a", "b", wait_s=0)
            with refused(StoreBusy, "wait_s=0.05"):
                await take(stage, other, "transfer", "a", "b", wait_s=0.05)
            if stage.is_postgres:
                await take(stage, other, "transfer", "b", "a", wait_s=0)  # another order is another key
                assert (await other.insert_once("orders", {"id": "o1"}, on="id")).created
    async with stage.transaction() as later:  # free with the end of its holder
        await take(stage, later, "transfer", "a", "b", wait_s=0)
    assert stage.outside("SELECT count(*) FROM orders") == [(int(stage.is_postgres),)]


async def test_the_lock_outlasts_its_block_and_ends_with_a_rollback(stage: Stage) -> None:
    with refused(ZeroDivisionError):
        async with stage.transaction() as holder:
            await take(stage, holder, "transfer", 1)
            async with stage.transaction() as other:
                with refused(StoreBusy):
                    await take(stage, other, "transfer", 1, wait_s=0)
            raise ZeroDivisionError
    async with stage.transaction() as later:
        await take(stage, later, "transfer", 1, wait_s=0)


@pytest.mark.parametrize("driver", ["sqlite", "psycopg", "psycopg engine", "sqlite engine"])
async def test_check_then_insert_is_safe_under_the_lock(request: pytest.FixtureRequest, driver: str) -> None:
    """A table without any unique index: the lock alone keeps the row single."""
    async with opened(driver, address_for(request, driver)) as stage:
        once: Onefold = stage.once
        begun = threading.Barrier(4)

        def transfer_once(number: int) -> bool:
            begun.wait(PATIENCE_S)
            with once.transaction() as tx, tx.exclusive("email", "x@y.z", wait_s=PATIENCE_S):
                if stage.outside("SELECT 1 FROM orders WHERE note = 'x@y.z'"):
                    return False
                return tx.insert_once("orders", {"id": str(number), "note": "x@y.z"}, on="id").created

        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(4) as threads:
            made = await asyncio.gather(*(loop.run_in_executor(threads, transfer_once, number) for number in range(4)))
        assert sorted(made) == [False, False, False, True]
        assert stage.outside("SELECT count(*) FROM orders") == [(1,)]


@pytest.mark.parametrize("driver", ["asyncpg", "psycopg-async", "asyncpg engine"])
async def test_a_deadlock_between_two_is_named(request: pytest.FixtureRequest, driver: str) -> None:
    async with opened(driver, address_for(request, driver)) as stage:
        both = asyncio.Barrier(2)

        async def take_both(first: str, second: str) -> None:
            async with stage.transaction() as tx:
                await take(stage, tx, first)
                await both.wait()
                await take(stage, tx, second, wait_s=PATIENCE_S)

        ended = await asyncio.gather(take_both("a", "b"), take_both("b", "a"), return_exceptions=True)
        [failure] = [end for end in ended if end is not None]
        assert isinstance(failure, SerializationFailed)
        assert "a deadlock" in str(failure)
        assert "in one order" in str(failure)


async def test_on_sqlite_those_who_write_wait_for_nothing_else(request: pytest.FixtureRequest) -> None:
    """A writer that wants a key whose holder waits for the write lock would wait in a circle: the write lock is
    enough."""
    async with opened("sqlite", address_for(request, "sqlite")) as stage:
        with stage.once.transaction() as tx:
            assert tx.insert_once("orders", {"id": "o1"}, on="id").created
            with tx.exclusive("a", wait_s=0):
                assert tx.insert_once("orders", {"id": "o2"}, on="id").created


def begin_part(tx: Any) -> None:
    with tx.savepoint():
        pass


def begin_in_vain(tx: Any) -> None:
    with refused(StatementRefused, "NOT NULL"):
        tx.insert_once("orders", {"id": "o1", "status": None}, on="id")


@pytest.mark.parametrize("begin", [begin_part, begin_in_vain])
async def test_on_sqlite_a_part_and_a_refused_write_have_the_write_lock_too(
    request: pytest.FixtureRequest, begin: Callable[[Any], None]
) -> None:
    """Another transaction has the key, and waits for the write lock."""
    async with opened("sqlite", address_for(request, "sqlite")) as stage:
        had = threading.Event()

        def take_key() -> None:
            with stage.once.transaction() as tx:
                had.set()
                with tx.exclusive("a"):
                    tx.insert_once("orders", {"id": "o2"}, on="id")

        with ThreadPoolExecutor() as threads, stage.once.transaction() as tx:
            begin(tx)
            taking = threads.submit(take_key)
            assert had.wait(PATIENCE_S)
            await asyncio.sleep(0.1)
            with tx.exclusive("a", wait_s=0):
                pass
        taking.result()
        assert stage.outside("SELECT id FROM orders") == [("o2",)]


def test_parts_and_their_order_make_the_key() -> None:
    keys: list[tuple[Any, ...]] = [
        ("a", "b"), ("b", "a"), ("ab",), ("a", "b", ""), (1,), ("1",), (True,), (b"1",),
        (UUID(int=1),), (date(2026, 1, 1),), ("2026-01-01",),
    ]  # fmt: skip
    numbers = [lock_number(key) for key in keys]
    assert len(set(numbers)) == len(keys)
    assert all(-(2**63) <= number < 2**63 for number in numbers)
    # Two releases side by side must mean the same lock.
    assert lock_number(("transfer", "a", 1)) == LOCK_OF_TRANSFER


LOCK_OF_TRANSFER = 81939588167525191


async def test_what_is_no_key_and_the_wrong_colour_are_refused(request: pytest.FixtureRequest) -> None:
    async with opened("sqlite", address_for(request, "sqlite")) as stage:
        with stage.once.transaction() as tx:
            wrong: list[tuple[Any, ...]] = [(), (None,), (1.5,), ({},)]
            for parts in wrong:
                with refused(KeyNotDerivable, "tx.exclusive()"):
                    tx.exclusive(*parts)
            with refused(ProgrammerError, "wait_s=-1"):
                tx.exclusive("a", wait_s=-1)
            with refused(ProgrammerError, "write `with tx.exclusive"):
                async with tx.exclusive("a"):
                    pass
    async with opened("sqlite-async", stage.address) as stage, stage.transaction() as tx:
        with refused(ProgrammerError, "write `async with tx.exclusive"), tx.exclusive("a"):
            pass
        await take(stage, tx, "a")
