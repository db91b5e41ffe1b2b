"""Local effects: they apply once, and never after they were undone. On both databases and in both colours."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg
import pytest
from psycopg_pool import ConnectionPool

from onefold import AsyncOnefold, Onefold, single_principal
from onefold._saga import local_effects
from onefold._saga.execution import run_saga
from onefold._saga.step_keys import StepKeys, running
from onefold.errors import ConfigurationError, ResultNotSerializable
from onefold.sagas import Abort, Effects, EngineFault, NotInAStep, Saga, Undone, saga
from tests.saga.memory_engine import MemoryContext, kept_of

STEP = StepKeys(key="order-1:reserve", forward="order-1:reserve", undo=False)
UNDO = StepKeys(key="order-1:reserve:undo", forward="order-1:reserve", undo=True)


@dataclass
class Stock:
    """A counter in the user's database, which has no keys of its own."""

    once: Any
    asynchronous: bool

    async def run(self, function: Any, keys: StepKeys, *args: Any) -> Any:
        with running(keys):
            if self.asynchronous:
                return await function(*args)
            return await asyncio.to_thread(function, *args)

    async def execute(self, sql: str) -> Any:
        if self.asynchronous:
            async with self.once.transaction() as tx:
                return await tx.connection.execute(sql)
        with self.once.transaction() as tx:
            return tx.connection.execute(sql)

    async def free(self) -> int:
        found: list[int] = []
        if self.asynchronous:
            async with self.once.transaction() as tx:
                if hasattr(tx.connection, "fetchval"):
                    found.append(await tx.connection.fetchval("SELECT free FROM stock"))
                else:
                    found.append((await tx.connection.execute("SELECT free FROM stock")).fetchone()[0])
        else:
            with self.once.transaction() as tx:
                found.append(tx.connection.execute("SELECT free FROM stock").fetchone()[0])
        return found[0]

    def steps(self) -> tuple[Any, Any]:
        """What takes one away, and what gives it back."""
        effects = Effects(self.once)
        if self.asynchronous:

            @effects.apply
            async def reserve(tx: Any, o: dict[str, Any]) -> dict[str, int]:
                await tx.connection.execute("UPDATE stock SET free = free - 1")
                if o.get("fails"):
                    raise ConnectionError("away")
                return {"number": o["number"]}

            @effects.undo
            async def release(tx: Any, o: dict[str, Any]) -> None:
                await tx.connection.execute("UPDATE stock SET free = free + 1")

            return reserve, release

        @effects.apply
        def reserve_in_thread(tx: Any, o: dict[str, Any]) -> dict[str, int]:
            tx.connection.execute("UPDATE stock SET free = free - 1")
            if o.get("fails"):
                raise ConnectionError("away")
            return {"number": o["number"]}

        @effects.undo
        def release_in_thread(tx: Any, o: dict[str, Any]) -> None:
            tx.connection.execute("UPDATE stock SET free = free + 1")

        return reserve_in_thread, release_in_thread


@pytest.fixture(params=["sqlite-threads", "sqlite-asyncio", "psycopg", "asyncpg"])
async def stock(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Stock]:
    settings: Any = {"principal": single_principal}
    match request.param:
        case "sqlite-threads":
            made = Stock(Onefold(tmp_path / "shop.db", **settings), False)
        case "sqlite-asyncio":
            made = Stock(AsyncOnefold(tmp_path / "shop.db", **settings), True)
        case "psycopg":
            pool = ConnectionPool(request.getfixturevalue("postgres_dsn"), open=True)
            made = Stock(Onefold(pool, **settings), False)
            made.once.migrate()
        case _:
            async_pool = await asyncpg.create_pool(request.getfixturevalue("postgres_dsn"), min_size=1, max_size=4)
            made = Stock(AsyncOnefold(async_pool, **settings), True)
            await made.once.migrate()
    await made.execute("CREATE TABLE stock (free INTEGER NOT NULL)")
    await made.execute("INSERT INTO stock VALUES (5)")
    yield made
    closing = made.once.close()
    if closing is not None:
        await closing
    if request.param == "psycopg":
        pool.close()
    if request.param == "asyncpg":
        await async_pool.close()


async def test_a_second_execution_gets_the_result_of_the_first(stock: Stock) -> None:
    reserve, _ = stock.steps()
    assert await stock.run(reserve, STEP, {"number": 1}) == {"number": 1}
    assert await stock.run(reserve, STEP, {"number": 2}) == {"number": 1}
    assert await stock.free() == 4


async def test_executions_at_once_are_one(stock: Stock) -> None:
    reserve, _ = stock.steps()
    results = await asyncio.gather(*(stock.run(reserve, STEP, {"number": number}) for number in range(3)))
    assert results[0] == results[1] == results[2]
    assert await stock.free() == 4


async def test_a_failed_execution_leaves_nothing(stock: Stock) -> None:
    reserve, release = stock.steps()
    with pytest.raises(ConnectionError):
        await stock.run(reserve, STEP, {"fails": True})
    assert await stock.free() == 5
    await stock.run(release, UNDO, {})
    assert await stock.free() == 5


async def test_an_undo_gives_back_once(stock: Stock) -> None:
    reserve, release = stock.steps()
    await stock.run(reserve, STEP, {"number": 1})
    for _ in range(2):
        await stock.run(release, UNDO, {})
        assert await stock.free() == 5


async def test_a_step_that_comes_after_its_undo_is_refused(stock: Stock) -> None:
    reserve, release = stock.steps()
    await stock.run(release, UNDO, {})
    with pytest.raises(Undone, match="order-1:reserve was undone"):
        await stock.run(reserve, STEP, {"number": 1})
    assert await stock.free() == 5
    assert issubclass(Undone, Abort)


async def test_what_was_undone_is_not_applied_again(stock: Stock) -> None:
    reserve, release = stock.steps()
    await stock.run(reserve, STEP, {"number": 1})
    await stock.run(release, UNDO, {})
    with pytest.raises(Undone):
        await stock.run(reserve, STEP, {"number": 1})
    assert await stock.free() == 5


async def test_old_effects_are_forgotten(stock: Stock, monkeypatch: pytest.MonkeyPatch) -> None:
    reserve, _ = stock.steps()
    await stock.run(reserve, STEP, {"number": 1})
    effects = Effects(stock.once)
    assert await effects.reap(older_s=3600) == 0
    with pytest.raises(ConfigurationError, match="older_s"):
        await effects.reap(older_s=0)
    is_sqlite = stock.once._database.dialect == "sqlite"
    column, old = ("created_at_ms", "0") if is_sqlite else ("created_at", "'2000-01-01'")
    await stock.execute(f"UPDATE onefold_effect SET {column} = {old}")
    await stock.execute(f"INSERT INTO onefold_effect (key, state, {column}) VALUES ('other', 'applied', {old})")
    monkeypatch.setattr(local_effects, "_REAPED_AT_ONCE", 1)
    assert await effects.reap(older_s=3600) == 2


async def test_a_step_that_applies_twice_is_refused_and_loses_nothing_in_silence(stock: Stock) -> None:
    reserve, release = stock.steps()

    async def reserve_both(o: dict[str, Any]) -> list[Any]:
        return [await reserve(o), await reserve({"number": 2})]

    def reserve_both_in_thread(o: dict[str, Any]) -> list[Any]:
        return [reserve(o), reserve({"number": 2})]

    both = reserve_both if stock.asynchronous else reserve_both_in_thread
    for _ in range(2):  # as often as it is tried
        with pytest.raises(ConfigurationError, match="are called by one step \\(order-1:reserve\\)"):
            await stock.run(both, STEP, {"number": 1})
    await stock.run(release, UNDO, {"number": 1})
    assert await stock.free() == 5


async def test_an_undo_of_what_effects_did_not_apply_is_refused(tmp_path: Path) -> None:
    shop, other = (AsyncOnefold(tmp_path / name, principal=single_principal) for name in ("shop.db", "other.db"))
    reserve, release = Stock(shop, asynchronous=True).steps()
    _, release_other = Stock(other, asynchronous=True).steps()

    async def plain(o: dict[str, Any]) -> None: ...

    for function, undo in ((plain, release), (reserve, release_other)):

        @saga("crossed")
        async def crossed(s: Saga, o: dict[str, Any]) -> None:
            await s.step("a", function, o, undo=undo)  # noqa: B023

        kept = kept_of(crossed, "crossed", {"number": 1})
        with pytest.raises(EngineFault, match="would find nothing to undo"):
            await run_saga(crossed, kept.start, MemoryContext(kept))
    await shop.close()
    await other.close()


def test_wrong_uses_are_told(tmp_path: Path) -> None:
    once = Onefold(tmp_path / "shop.db", principal=single_principal)
    effects = Effects(once)
    with pytest.raises(ConfigurationError, match="needs a Onefold"):
        Effects("shop.db")  # type: ignore[arg-type]

    async def asynchronous(tx: Any) -> None: ...

    with pytest.raises(ConfigurationError, match="must be a `def`"):
        effects.apply(asynchronous)
    apply, undo = effects.apply(lambda tx: object()), effects.undo(lambda tx: None)
    with pytest.raises(NotInAStep):
        apply()
    with running(STEP):
        with pytest.raises(ConfigurationError, match="it is for undo="):
            undo()
        with pytest.raises(ResultNotSerializable):
            apply()
    with once.transaction() as tx:
        assert tx.connection.execute("SELECT count(*) FROM onefold_effect").fetchone() == (0,)
    once.close()


def test_the_control_without_the_table_takes_twice(tmp_path: Path) -> None:
    once = Onefold(tmp_path / "shop.db", principal=single_principal)
    with once.transaction() as tx:
        tx.connection.execute("CREATE TABLE stock (free INTEGER)")
        tx.connection.execute("INSERT INTO stock VALUES (5)")
    for _ in range(2):
        with once.transaction() as tx:
            tx.connection.execute("UPDATE stock SET free = free - 1")
    with once.transaction() as tx:
        assert tx.connection.execute("SELECT free FROM stock").fetchone() == (3,)
    once.close()
