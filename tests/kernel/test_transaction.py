"""The request's transaction as its handler sees it: when it may be touched, and savepoints on both colours."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onefold._kernel import savepoints
from onefold._kernel.effects import Boundary, Nested, Statement
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold.db._drivers import async_database, sync_database
from onefold.errors import ProgrammerError, StoreUnavailable, TransactionEnded, TransactionMisused
from onefold.testing.servers import PrivatePostgres

CREATE = Statement("CREATE TABLE payments (amount integer)")
SUM = Statement("SELECT sum(amount) FROM payments")


class Declined(Exception):
    """A part of the handler that may fail."""


@pytest.fixture(params=["sqlite", "postgres"])
def address(request: pytest.FixtureRequest, sqlite_path: Path) -> Any:
    if request.param == "sqlite":
        return sqlite_path
    server: PrivatePostgres = request.getfixturevalue("postgres")
    return server.fresh_database()


@pytest.fixture
def executor(address: Any) -> Iterator[ThreadExecutor[Any]]:
    """Inside a transaction that has an empty table."""
    database = sync_database(address)
    executor: ThreadExecutor[Any] = ThreadExecutor(database)
    executor.acquire()
    executor.batch((Boundary.BEGIN, CREATE))
    yield executor
    executor.batch((Boundary.ROLLBACK,))
    executor.release()
    database.close()


@pytest.fixture
def tx(executor: ThreadExecutor[Any]) -> OwnedTransaction[Any]:
    tx = OwnedTransaction(executor)
    tx.open("POST /pay")
    return tx


def pay(executor: ThreadExecutor[Any], amount: int) -> None:
    executor.batch((Statement(f"INSERT INTO payments VALUES ({amount})"),))


def pay_in_vain(tx: OwnedTransaction[Any], executor: ThreadExecutor[Any], amount: int) -> None:
    """A part that writes and then fails."""
    with tx.savepoint():
        with tx.savepoint():
            pay(executor, amount)
        raise Declined


# --- when it may be touched -----------------------------------------------------------------------------------


def test_before_the_claim_there_is_no_transaction(executor: ThreadExecutor[Any]) -> None:
    tx = OwnedTransaction(executor)
    with pytest.raises(ProgrammerError, match="has not begun"):
        _ = tx.connection
    with pytest.raises(ProgrammerError, match="has not begun"):
        tx.savepoint()
    assert not tx.touched


def test_after_the_answer_it_is_over(tx: OwnedTransaction[Any]) -> None:
    tx.end()
    with pytest.raises(ProgrammerError, match="needs a connection or a transaction of its own"):
        _ = tx.connection
    with pytest.raises(ProgrammerError, match="needs a connection or a transaction of its own"):
        tx.savepoint()


def test_a_route_that_runs_without_its_store_is_told_why_there_is_no_transaction(executor: ThreadExecutor[Any]) -> None:
    tx = OwnedTransaction(executor)
    tx.deny(StoreUnavailable("the store is down"))
    with pytest.raises(StoreUnavailable, match="the store is down"):
        _ = tx.connection


def test_touching_is_noticed(tx: OwnedTransaction[Any]) -> None:
    assert not tx.touched
    _ = tx.connection
    assert tx.touched


def test_a_savepoint_is_a_touch(tx: OwnedTransaction[Any]) -> None:
    with tx.savepoint():
        pass
    assert tx.touched


# --- savepoints, on threads -----------------------------------------------------------------------------------


def test_a_part_that_succeeds_stays(tx: OwnedTransaction[Any], executor: ThreadExecutor[Any]) -> None:
    with tx.savepoint():
        pay(executor, 1)
    assert executor.fetch(SUM) == [(1,)]


def test_a_part_that_fails_is_undone_alone_and_its_error_rises(
    tx: OwnedTransaction[Any], executor: ThreadExecutor[Any]
) -> None:
    pay(executor, 1)
    with pytest.raises(Declined):
        pay_in_vain(tx, executor, 10)
    pay(executor, 100)
    assert executor.fetch(SUM) == [(101,)]


def test_a_statement_that_fails_inside_a_savepoint_leaves_the_transaction_usable(
    tx: OwnedTransaction[Any], executor: ThreadExecutor[Any]
) -> None:
    with pytest.raises(Exception, match="nonsense"), tx.savepoint():
        executor.batch((Statement("INSERT INTO payments VALUES (nonsense(1))"),))
    pay(executor, 1)
    assert executor.fetch(SUM) == [(1,)]


def test_parts_nest_and_each_undoes_its_own(tx: OwnedTransaction[Any], executor: ThreadExecutor[Any]) -> None:
    with tx.savepoint():
        pay(executor, 1)
        with pytest.raises(Declined):
            pay_in_vain(tx, executor, 10)
        with tx.savepoint():
            pay(executor, 100)
    assert executor.fetch(SUM) == [(101,)]


def test_a_savepoint_of_a_thread_says_how_to_use_it(tx: OwnedTransaction[Any]) -> None:
    async def wrong() -> None:
        async with tx.savepoint():
            pass

    with pytest.raises(ProgrammerError, match=r"write `with tx.savepoint\(\)`"):
        asyncio.run(wrong())


# --- savepoints, on asyncio -----------------------------------------------------------------------------------


async def on_a_task(address: Any, work: Callable[[OwnedTransaction[Any], TaskExecutor[Any]], Awaitable[None]]) -> Any:
    """Work inside a transaction that has an empty table; what the table sums up to at the end."""
    database = async_database(address)
    executor: TaskExecutor[Any] = TaskExecutor(database)
    await executor.acquire()
    await executor.batch((Boundary.BEGIN, CREATE))
    tx = OwnedTransaction(executor)
    tx.open("POST /pay")
    await work(tx, executor)
    [(total,)] = await executor.fetch(SUM)
    await executor.batch((Boundary.ROLLBACK,))
    await executor.release()
    await database.close()
    return total


async def pay_async(executor: TaskExecutor[Any], amount: int) -> None:
    await executor.batch((Statement(f"INSERT INTO payments VALUES ({amount})"),))


async def pay_in_vain_async(
    tx: OwnedTransaction[Any], executor: TaskExecutor[Any], amount: int, why: type[BaseException]
) -> None:
    async with tx.savepoint():
        async with tx.savepoint():
            await pay_async(executor, amount)
        raise why


async def test_parts_are_kept_or_undone_alone_on_asyncio(address: Any) -> None:
    async def work(tx: OwnedTransaction[Any], executor: TaskExecutor[Any]) -> None:
        async with tx.savepoint():
            await pay_async(executor, 1)
            with pytest.raises(Declined):
                await pay_in_vain_async(tx, executor, 10, Declined)
        with pytest.raises(Declined):
            await pay_in_vain_async(tx, executor, 100, Declined)
        assert tx.touched

    assert await on_a_task(address, work) == 1


async def test_an_interrupted_part_is_undone_alone_and_the_interruption_rises(address: Any) -> None:
    async def work(tx: OwnedTransaction[Any], executor: TaskExecutor[Any]) -> None:
        await pay_async(executor, 1)
        with pytest.raises(asyncio.CancelledError):
            await pay_in_vain_async(tx, executor, 10, asyncio.CancelledError)
        tx.check_end()

    assert await on_a_task(address, work) == 1


@pytest.mark.parametrize("why", [GeneratorExit, KeyboardInterrupt])
async def test_a_part_that_is_interrupted_where_nothing_can_be_awaited_dooms_the_transaction(
    address: Any, why: type[BaseException]
) -> None:
    async def work(tx: OwnedTransaction[Any], executor: TaskExecutor[Any]) -> None:
        with pytest.raises(why):
            await pay_in_vain_async(tx, executor, 1, why)
        for touch in (tx.check_end, tx.savepoint, lambda: tx.connection):
            with pytest.raises(TransactionMisused, match="could not be undone alone"):
                touch()
        with pytest.raises(TransactionMisused):
            tx.check_end(keep_rows=False)

    assert await on_a_task(address, work) == 1


async def test_a_rollback_that_is_cancelled_meanwhile_is_done_all_the_same(address: Any) -> None:
    async def work(tx: OwnedTransaction[Any], executor: TaskExecutor[Any]) -> None:
        begun = asyncio.Event()

        async def fail() -> None:
            async with tx.savepoint():
                await pay_async(executor, 1)
                begun.set()
                raise Declined

        task = asyncio.create_task(fail())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        tx.check_end()
        await pay_async(executor, 10)

    assert await on_a_task(address, work) == 10


async def test_a_rollback_that_is_not_answered_in_time_dooms_the_transaction(
    address: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(savepoints, "UNDO_S_MAX", 0.0)

    async def work(tx: OwnedTransaction[Any], executor: TaskExecutor[Any]) -> None:
        with pytest.raises(asyncio.CancelledError):
            await pay_in_vain_async(tx, executor, 1, asyncio.CancelledError)
        with pytest.raises(TransactionMisused, match="not answered within"):
            tx.check_end()

    await on_a_task(address, work)


def test_a_savepoint_that_cannot_be_ended_dooms_the_transaction(
    tx: OwnedTransaction[Any], executor: ThreadExecutor[Any]
) -> None:
    savepoint = tx.savepoint()
    savepoint.__enter__()
    pay(executor, 1)
    executor.batch((Nested(Boundary.RELEASE_SAVEPOINT, 1),))
    with pytest.raises(TransactionEnded):
        savepoint.__exit__(None, None, None)
    with pytest.raises(TransactionMisused, match="could not be ended"):
        tx.check_end()


def test_savepoints_that_overlap_doom_the_transaction(tx: OwnedTransaction[Any]) -> None:
    first, second = tx.savepoint(), tx.savepoint()
    first.__enter__()
    second.__enter__()
    with pytest.raises(TransactionMisused, match="overlap"):
        first.__exit__(None, None, None)
    with pytest.raises(TransactionMisused, match="overlap"):
        tx.check_end(keep_rows=False)


def test_a_savepoint_that_is_still_open_keeps_rows_from_being_kept(tx: OwnedTransaction[Any]) -> None:
    tx.savepoint().__enter__()
    tx.check_end(keep_rows=False)
    with pytest.raises(TransactionMisused, match="still open"):
        tx.check_end()


async def test_a_savepoint_of_a_task_says_how_to_use_it(address: Any) -> None:
    async def work(tx: OwnedTransaction[Any], executor: TaskExecutor[Any]) -> None:
        with pytest.raises(ProgrammerError, match=r"write `async with tx.savepoint\(\)`"), tx.savepoint():
            pass
        await pay_async(executor, 1)

    assert await on_a_task(address, work) == 1


def test_transactions_that_are_open_at_once_need_no_dictionary(sqlite_path: Path) -> None:
    """A class has room for what its first instances have from their beginning. Requests that arrive together are many
    instances before the first of them gets on: what that would have later, all others would get a dictionary for."""

    class Fresh(OwnedTransaction[Any]):
        """None of it has been made in this process."""

    executor: ThreadExecutor[Any] = ThreadExecutor(sync_database(sqlite_path))
    tx = [Fresh(executor) for _ in range(100)][-1]
    tx.open("POST /orders", dict, (b"digest", "key"))
    tx.end(None)
    tx.note_commit()

    assert not [found for found in gc.get_referents(tx) if type(found) is dict]
