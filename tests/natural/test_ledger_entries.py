"""An additive write is made once: the entry tells a retry from the first, and the balance moves with it."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from onefold.errors import OnefoldError, ProgrammerError, RowDiffers, StatementRefused, TransactionMisused
from tests.natural.stages import WAYS, Stage, address_for, opened, refused


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}".replace(" ", "-"))
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    driver, form = request.param
    async with opened(driver, address_for(request, driver), form) as stage:
        yield stage


def pay(stage: Stage, tx: Any, id_: str, amount: int, account: str = "a", add: object = None) -> Any:
    return tx.ledger_entry(
        stage.table("entries"),
        {"id": id_, "account": account, "amount": amount},
        on="id",
        balance=stage.table("accounts"),
        where={"id": account},
        add={"balance": amount if add is None else add},
    )


def balance_of(row: Any) -> Any:
    return row["balance"] if isinstance(row, dict) else row.balance


def committed(stage: Stage) -> tuple[list[Any], list[Any]]:
    entries = stage.outside("SELECT id, amount FROM entries ORDER BY id")
    return entries, stage.outside("SELECT id, balance FROM accounts WHERE id <> 'unset' ORDER BY id")


async def test_a_retry_moves_nothing_and_another_payload_is_refused(stage: Stage) -> None:
    async with stage.transaction() as tx:
        first = await pay(stage, tx, "e1", 50)
        assert (first.created, bool(first), balance_of(first.balance)) == (True, True, 150)
        again = await pay(stage, tx, "e1", 50)
        assert (again.created, bool(again), again.balance) == (False, False, None)
        assert (await pay(stage, tx, "e2", -30)).created
    async with stage.transaction() as tx:
        assert not await pay(stage, tx, "e1", 50)
        with refused(RowDiffers, "entries", "amount"):
            await pay(stage, tx, "e1", 51)
        alone = await tx.ledger_entry(stage.table("entries"), {"id": "e3", "account": "b", "amount": 1}, on="id")
        assert (alone.created, alone.balance) == (True, None)
    assert committed(stage) == ([("e1", 50), ("e2", -30), ("e3", 1)], [("a", 120), ("b", 0)])


async def test_an_entry_whose_balance_cannot_move_does_not_stay(stage: Stage) -> None:
    """Also where the error is swallowed: on SQLite a failed statement aborts no transaction."""
    async with stage.transaction() as tx:
        if stage.is_postgres and stage.asynchronous:
            with refused(StatementRefused, "check"):
                async with tx.savepoint():
                    await pay(stage, tx, "e1", -101)
        elif stage.is_postgres:
            with refused(StatementRefused, "check"), tx.savepoint():
                await pay(stage, tx, "e1", -101)
        else:
            with refused(StatementRefused, "CHECK"):
                await pay(stage, tx, "e1", -101)
        assert (await pay(stage, tx, "e2", -100)).created
    assert committed(stage) == ([("e2", -100)], [("a", 0), ("b", 0)])


@pytest.mark.parametrize("account", ["nobody's", "unset"])
async def test_a_balance_that_is_not_there_or_null_keeps_nothing(stage: Stage, account: str) -> None:
    with refused(TransactionMisused, "0 rows of accounts"):
        async with stage.transaction() as tx:
            with refused(TransactionMisused, "0 rows of accounts", "insert the row of the balance first"):
                await pay(stage, tx, "e1", 1, account)
    assert committed(stage) == ([], [("a", 100), ("b", 0)])


async def test_half_of_a_movement_is_refused(request: pytest.FixtureRequest) -> None:
    entry = {"id": "e1", "account": "a", "amount": 1}
    async with opened("sqlite", address_for(request, "sqlite")) as stage, stage.transaction() as tx:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"balance": "accounts"}, "together"),
            ({"balance": "accounts", "where": {"id": "a"}, "add": {"balance": None}}, "None"),
            ({"balance": "accounts", "where": {"id": "a"}, "add": {"balance = 0 --": 1}}, "column"),
            *(
                ({"balance": "accounts", "where": {"id": "a"}, "add": {"balance": number}}, "not a number")
                for number in (float("nan"), float("-inf"), Decimal("NaN"), "ten", b"10")
            ),
        ]
        for how, words in wrong:
            with refused(ProgrammerError, words):
                tx.ledger_entry("entries", entry, on="id", **how)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg-async", "asyncpg", "sqlite", "psycopg2 engine"])
async def test_an_addition_that_the_driver_refuses_leaves_no_entry(request: pytest.FixtureRequest, driver: str) -> None:
    """The server has not seen it, and so aborted nothing."""
    async with opened(driver, address_for(request, driver)) as stage:
        with contextlib.suppress(OnefoldError):
            async with stage.transaction() as tx:
                with pytest.raises(OnefoldError):
                    await pay(stage, tx, "e1", 1, add=object())
        assert committed(stage) == ([], [("a", 100), ("b", 0)])
        async with stage.transaction() as tx:
            assert (await pay(stage, tx, "e1", 1)).created


@pytest.mark.parametrize("add", [1, object()], ids=["moves", "refused by the driver"])
@pytest.mark.parametrize("driver", ["psycopg-async", "asyncpg", "sqlite-async", "aiosqlite engine", "asyncpg engine"])
async def test_a_call_that_is_cancelled_on_its_way_leaves_no_entry(
    request: pytest.FixtureRequest, driver: str, add: object
) -> None:
    """At every point where it gives way to others; its user goes on, and commits."""
    async with opened(driver, address_for(request, driver)) as stage:
        for steps in range(1, 40):
            with contextlib.suppress(OnefoldError):
                async with stage.transaction() as tx:
                    paying = asyncio.ensure_future(_await(pay(stage, tx, f"e{steps:02}", 1, add=add)))
                    for _ in range(steps):
                        await asyncio.sleep(0 if steps < 20 else 0.0002)
                    paying.cancel()
                    with contextlib.suppress(asyncio.CancelledError, OnefoldError):
                        await paying
        entries, [(_, balance), _] = committed(stage)
        assert balance == 100 + len(entries)


async def test_an_addition_that_another_task_keeps_out_leaves_no_entry(request: pytest.FixtureRequest) -> None:
    """asyncpg executes one statement at a time, and refuses the next: then it can be asked for nothing either."""

    async def disturb(tx: Any) -> None:
        for number in range(12):
            with contextlib.suppress(OnefoldError):
                await tx.insert_once("orders", {"id": f"o{number}"}, on="id")
            await asyncio.sleep(0)

    async with opened("asyncpg", address_for(request, "asyncpg")) as stage:
        for number in range(40):
            with contextlib.suppress(OnefoldError):
                async with stage.transaction() as tx:
                    paying = _await(pay(stage, tx, f"e{number}", 1))
                    await asyncio.gather(paying, *(disturb(tx) for _ in range(3)), return_exceptions=True)
        entries, [(_, balance), _] = committed(stage)
        assert balance == 100 + len(entries)


@contextlib.contextmanager
def kept_out(stage: Stage, seconds: float = 0.3) -> Iterator[None]:
    """The entry e1 waits so long for another transaction."""
    if stage.is_postgres:
        other: Any = psycopg.connect(stage.address)
        other.execute("INSERT INTO entries VALUES ('e1', 'b', 7)")
    else:
        other = sqlite3.connect(stage.address, isolation_level=None, check_same_thread=False)
        other.execute("BEGIN IMMEDIATE")
    ending = threading.Timer(seconds, other.rollback)
    ending.start()
    try:
        yield
    finally:
        ending.join()
        other.close()


@pytest.mark.parametrize("driver", ["psycopg-async", "asyncpg", "sqlite-async", "aiosqlite engine", "asyncpg engine"])
async def test_a_task_that_is_left_behind_leaves_no_entry_alone(request: pytest.FixtureRequest, driver: str) -> None:
    async with opened(driver, address_for(request, driver)) as stage:
        with kept_out(stage), contextlib.suppress(OnefoldError):
            async with stage.transaction() as tx:
                paying = asyncio.ensure_future(_await(pay(stage, tx, "e1", 1)))
                await asyncio.sleep(0.1)
        with contextlib.suppress(OnefoldError):
            await paying
        entries, [(_, balance), _] = committed(stage)
        assert balance == 100 + len(entries)


@pytest.mark.parametrize("driver", ["psycopg", "sqlite", "psycopg2 engine"])
async def test_a_thread_that_is_left_behind_leaves_no_entry_alone(request: pytest.FixtureRequest, driver: str) -> None:
    async with opened(driver, address_for(request, driver)) as stage:
        with ThreadPoolExecutor() as threads:
            with kept_out(stage), contextlib.suppress(OnefoldError):
                async with stage.transaction() as tx:
                    paying = threads.submit(pay, stage, tx, "e1", 1)
                    await asyncio.sleep(0.1)
            with contextlib.suppress(OnefoldError):
                paying.result()
        entries, [(_, balance), _] = committed(stage)
        assert balance == 100 + len(entries)


@pytest.mark.parametrize("amount", [1, -1000], ids=["moves", "refused"])
@pytest.mark.parametrize("driver", ["psycopg-async", "asyncpg", "sqlite-async", "aiosqlite engine", "asyncpg engine"])
async def test_a_savepoint_of_another_task_takes_no_half_of_an_entry_away(
    request: pytest.FixtureRequest, driver: str, amount: int
) -> None:
    """It may lie between the two statements, and undo the second alone, or that the second has aborted everything. Its
    user goes on, and commits."""

    async def fail(tx: Any, steps: int) -> None:
        with contextlib.suppress(Exception):
            async with tx.savepoint():
                await give_way(steps)
                raise ValueError

    async def pay_later(stage: Stage, tx: Any, steps: int) -> None:
        await give_way(steps)
        with contextlib.suppress(Exception):
            await pay(stage, tx, f"e{steps:02}", amount)

    async with opened(driver, address_for(request, driver)) as stage:
        for first in (0, 1, 5, 30):
            for second in (0, 1, 3, 6, 10, 20, 40):
                stage.outside("DELETE FROM entries")
                stage.outside("UPDATE accounts SET balance = 100 WHERE id = 'a'")
                with contextlib.suppress(OnefoldError):
                    async with stage.transaction() as tx:
                        await asyncio.gather(pay_later(stage, tx, first), fail(tx, second))
                entries, [(_, balance), _] = committed(stage)
                assert balance == 100 + amount * len(entries), (first, second)


async def give_way(steps: int) -> None:
    for _ in range(steps):
        await asyncio.sleep(0 if steps < 20 else 0.0002)


async def _await(call: Any) -> Any:
    return await call
