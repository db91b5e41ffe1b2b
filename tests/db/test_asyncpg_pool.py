"""The line in front of an asyncpg pool: nobody is overtaken, nothing is lost, and the pool keeps its say."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import asyncpg
import pytest

from onefold._kernel.effects import Boundary, Statement
from onefold.db._asyncpg_fast import PASSES_MAX, FastConnection
from onefold.db.asyncpg import AsyncpgConnection, AsyncpgDatabase
from onefold.errors import StatementRefused, StoreUnavailable
from tests.support.patience import PATIENCE_S

ONE = Statement("SELECT 1")


@pytest.fixture
async def pool(postgres_dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool:
        yield pool


async def settled(turns: int = 5) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


async def overtaken(acquire: Callable[[], Awaitable[Any]], release: Callable[[Any], Awaitable[None]]) -> bool:
    """Somebody waits; at the moment the connection is given back, somebody else asks. Who gets it first?"""
    order: list[str] = []

    async def use(name: str) -> None:
        held = await acquire()
        order.append(name)
        await release(held)

    held = await acquire()
    waiting = asyncio.create_task(use("first"))
    await settled()
    late = asyncio.create_task(use("second"))  # it runs before whoever is woken now
    await release(held)
    await asyncio.gather(waiting, late)
    return order != ["first", "second"]


async def test_nobody_is_overtaken(pool: Any) -> None:
    database = AsyncpgDatabase(pool)

    async def used() -> AsyncpgConnection:
        connection = await database.acquire()
        await connection.batch((Boundary.BEGIN, ONE, Boundary.COMMIT))
        return connection

    assert not await overtaken(used, FastConnection.release)


async def test_the_pool_itself_lets_people_overtake(pool: Any) -> None:
    """The control: without the line the same check finds what it looks for."""

    async def straight_back(proxy: Any) -> None:
        proxy._con._reset_query = ""  # as the driver spares it: nothing is waited for
        await proxy._holder.release(None)

    assert await overtaken(pool.acquire, straight_back)


async def test_a_connection_that_passes_on_never_meets_the_pool(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    connection = await database.acquire()
    waiting = asyncio.create_task(database.acquire())
    await settled()
    await connection.release()
    assert pool.get_idle_size() == 0
    await (await waiting).release()
    assert pool.get_idle_size() == 1


async def test_a_handle_that_was_kept_is_worth_nothing_after_its_connection_passed_on(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    connection = await database.acquire()
    await connection.batch((Boundary.BEGIN,))
    kept = connection.handle
    await connection.batch((Boundary.COMMIT,))
    waiting = asyncio.create_task(database.acquire())
    await settled()
    await connection.release()
    other = await waiting
    with pytest.raises(asyncpg.InterfaceError, match="released back to the pool"):
        await kept.execute("SELECT 1")
    assert await other.handle.fetchval("SELECT 1") == 1
    await other.release()


@pytest.mark.parametrize("many", [1, 3])
async def test_other_users_of_the_pool_get_their_turn(pool: Any, many: int) -> None:
    database = AsyncpgDatabase(pool)
    busy, served = True, 0

    async def keep_busy() -> None:
        nonlocal served
        while busy and served < 1000:
            connection = await database.acquire()
            served += 1
            await connection.batch((ONE,))
            await connection.release()

    crowd = [asyncio.create_task(keep_busy()) for _ in range(many)]
    await settled()
    async with pool.acquire() as somebody:
        assert await somebody.fetchval("SELECT 1") == 1
        assert served <= many * PASSES_MAX
        busy = False
    await asyncio.gather(*crowd)


# What the pool does with a connection that comes and goes is done here in its place: it must come to the same.


async def backend(database: AsyncpgDatabase) -> int:
    """Have a connection, use it and give it back; whose it was."""
    connection = await database.acquire()
    try:
        [(number,)] = await connection.fetch(Statement("SELECT pg_backend_pid()"))
    finally:
        await connection.release()
    return int(number)


async def test_the_pool_counts_what_is_out_and_what_is_back(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    first = await backend(database)
    connection = await database.acquire()
    assert pool.get_idle_size() == 0
    await connection.release()
    assert pool.get_idle_size() == 1
    assert await backend(database) == first


async def test_expired_connections_are_not_used_again(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    first = await backend(database)
    await pool.expire_connections()  # while it is idle
    second = await backend(database)
    assert second != first
    connection = await database.acquire()
    await pool.expire_connections()  # while it is out
    await connection.release()
    assert await backend(database) != second


async def test_a_connection_is_used_for_as_many_queries_as_the_pool_says(postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1, max_queries=3) as pool:
        database = AsyncpgDatabase(pool)
        assert len({await backend(database) for _ in range(9)}) > 2


async def test_a_connection_is_closed_when_it_was_idle_for_long_and_never_while_it_is_out(postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=1, max_inactive_connection_lifetime=0.05) as pool:
        database = AsyncpgDatabase(pool)
        first = await backend(database)
        connection = await database.acquire()
        await asyncio.sleep(0.15)
        assert await connection.fetch(Statement("SELECT pg_backend_pid()")) == [(first,)]
        await connection.release()
        await asyncio.sleep(0.15)
        assert pool.get_size() == 0


async def test_a_connection_that_died_while_it_was_idle_is_replaced(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    first = await backend(database)
    pool._holders[0]._con.terminate()
    assert await backend(database) != first


async def test_a_connection_that_died_while_it_was_out_is_given_back_quietly(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    connection = await database.acquire()
    first = await connection.fetch(Statement("SELECT pg_backend_pid()"))
    pool._holders[0]._con.terminate()
    await connection.release()
    assert pool.get_idle_size() == 0
    assert [(await backend(database),)] != first


async def test_a_pool_that_is_closing_waits_for_what_is_out_and_gives_nothing_more(postgres_dsn: str) -> None:
    pool: Any = await asyncpg.create_pool(postgres_dsn, min_size=2, max_size=2)
    database = AsyncpgDatabase(pool)
    connection = await database.acquire()
    closing = asyncio.create_task(pool.close())
    await settled()
    with pytest.raises(StoreUnavailable, match="pool is closing"):
        await database.acquire()
    assert not closing.done()
    await connection.release()
    await closing


async def test_a_pool_with_a_hook_for_every_acquisition_gets_to_call_it(postgres_dsn: str) -> None:
    calls = []

    async def setup(connection: Any) -> None:
        calls.append(connection)

    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1, setup=setup) as pool:
        database = AsyncpgDatabase(pool)
        connection = await database.acquire()
        waiting = asyncio.create_task(database.acquire())
        await settled()
        await connection.release()
        await (await waiting).release()
    assert len(calls) == 2


async def test_a_connection_that_listens_goes_back_to_the_pool_which_ends_that(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    connection = await database.acquire()
    await connection.batch((Boundary.BEGIN,))
    await connection.handle.add_listener("gossip", lambda *_: None)
    await connection.batch((Boundary.COMMIT,))
    waiting = asyncio.create_task(database.acquire())
    await settled()
    with pytest.warns(asyncpg.InterfaceWarning, match="active notification listener"):
        await connection.release()
    other = await waiting
    assert not other.handle.is_closed()
    assert await other.handle.fetch("SELECT pg_listening_channels()") == []
    await other.release()


async def test_who_has_waited_long_enough_is_told_so_and_leaves_the_line(pool: Any) -> None:
    database = AsyncpgDatabase(pool, acquire_timeout_s=0.01)
    connection = await database.acquire()
    with pytest.raises(StoreUnavailable, match=r"within 0\.01 s"):
        await database.acquire()
    await connection.release()
    assert pool.get_idle_size() == 1
    await settled()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("followed", [True, False], ids=["somebody behind", "nobody behind"])
async def test_a_connection_given_to_a_request_that_was_cancelled_goes_to_the_next(pool: Any, followed: bool) -> None:
    database = AsyncpgDatabase(pool)
    connection = await database.acquire()
    waiting = asyncio.create_task(database.acquire())
    behind = asyncio.create_task(database.acquire()) if followed else None
    await settled()
    await connection.release()
    waiting.cancel()  # it has the connection, and does not know yet
    with pytest.raises(asyncio.CancelledError):
        await waiting
    if behind is not None:
        await (await behind).release()
    async with asyncio.timeout(PATIENCE_S), pool.acquire() as free:
        assert await free.fetchval("SELECT 1") == 1


async def test_one_who_gives_up_in_the_middle_of_the_line_is_passed_by(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    connection = await database.acquire()
    waiting = [asyncio.create_task(database.acquire()) for _ in range(3)]
    await settled()
    waiting[1].cancel()
    await settled()
    await connection.release()
    await (await waiting[0]).release()
    await (await waiting[2]).release()
    assert pool.get_idle_size() == 1


async def test_a_server_that_is_gone_is_told_to_everyone_in_line(postgres_dsn: str) -> None:
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool:
        database = AsyncpgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        connection = await database.acquire()
        waiting = [asyncio.create_task(database.acquire()) for _ in range(3)]
        await settled()
        pool.set_connect_args("postgresql://postgres@127.0.0.1:1/nowhere")
        await connection.discard()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(error) for error in found] == [StoreUnavailable] * 3


async def test_a_connect_that_hangs_keeps_nobody_else_waiting(postgres_dsn: str) -> None:
    hangs = 0

    async def connect(*args: Any, **kwargs: Any) -> Any:
        nonlocal hangs
        if hangs:
            hangs -= 1
            await asyncio.sleep(3600)
        return await asyncpg.connect(*args, **kwargs)

    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=2, connect=connect) as pool:
        database = AsyncpgDatabase(pool, acquire_timeout_s=PATIENCE_S)
        held = [await database.acquire() for _ in range(2)]
        waiting = [asyncio.create_task(database.acquire())]
        await settled()
        hangs = 1
        for connection in held:
            await connection.discard()
        await settled()  # the one who asks for all hangs now, and there is room for one more
        waiting += [asyncio.create_task(database.acquire())]
        done, _ = await asyncio.wait(waiting, timeout=PATIENCE_S / 2, return_when=asyncio.FIRST_COMPLETED)
        assert done
        for task in waiting:
            task.cancel()
        for connection in [task.result() for task in done]:
            await connection.release()
        await asyncio.gather(*waiting, return_exceptions=True)


async def test_a_connection_that_somebody_is_still_at_does_not_pass_on(pool: Any) -> None:
    database = AsyncpgDatabase(pool)
    connection = await database.acquire()
    await connection.batch((Boundary.BEGIN,))
    kept = connection.handle
    stray: list[str] = []

    async def left_behind() -> None:
        """What a handler may leave running: it tries until the connection is free for a moment."""
        while not stray:
            try:
                stray.append(await kept.execute("SELECT pg_sleep(0.05)"))
            except asyncpg.InterfaceError:
                await asyncio.sleep(0)

    straying = asyncio.create_task(left_behind())
    await settled()
    waiting = asyncio.create_task(database.acquire())
    for _ in range(50):  # until it was quicker than we are
        try:
            await connection.batch((Boundary.COMMIT,))
        except StatementRefused:
            continue
        break
    await connection.release()
    other = await waiting
    assert await other.handle.fetchval("SELECT 1") == 1
    await other.release()
    straying.cancel()
    await asyncio.gather(straying, return_exceptions=True)
