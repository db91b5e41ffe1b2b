"""Drivers by their public API: taken for each version that their private names were not tested with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import pytest

from onefold._kernel.effects import Boundary, Statement
from onefold._kernel.public_drivers import PUBLIC_ONLY
from onefold.db import _asyncpg_fast
from onefold.db._asyncpg_fast import FastConnection
from onefold.db._asyncpg_public import PublicConnection
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import ConfigurationError, StoreUnavailable
from tests.db.drivers import public_only
from tests.support.patience import PATIENCE_S

ONE = Statement("SELECT 1")


@pytest.fixture
async def pool(postgres_dsn: str) -> AsyncIterator[Any]:
    async with asyncpg.create_pool(postgres_dsn, min_size=1, max_size=1) as pool:
        yield pool


def nothing(patch: pytest.MonkeyPatch) -> None:
    """As it is."""


def forbid(patch: pytest.MonkeyPatch) -> None:
    patch.setenv(PUBLIC_ONLY, "1")


def install_another(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_asyncpg_fast, "TESTED", ((0, 99),))


def rename_something(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_asyncpg_fast, "_NAMES", {asyncpg.Pool: "_holders _renamed"})


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (nothing, FastConnection),
        (forbid, PublicConnection),
        (install_another, PublicConnection),
        (rename_something, PublicConnection),
    ],
)
async def test_private_names_are_used_where_they_were_tested_and_are_there(
    change: Callable[[pytest.MonkeyPatch], None], kind: type[object], pool: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(monkeypatch)
    connection = await AsyncpgDatabase(pool).acquire()
    assert type(connection) is kind
    await connection.release()


async def test_requests_get_connections_in_the_order_in_which_they_asked(pool: Any) -> None:
    with public_only():
        database = AsyncpgDatabase(pool)
    order: list[int] = []

    async def use(number: int) -> None:
        connection = await database.acquire()
        order.append(number)
        await connection.batch((Boundary.BEGIN, ONE, Boundary.COMMIT))
        await connection.release()

    first = await database.acquire()
    waiting = [asyncio.create_task(use(number)) for number in range(5)]
    for _ in range(5):
        await asyncio.sleep(0)
    late = asyncio.create_task(use(5))  # it runs before the one that is woken now
    await first.release()
    await asyncio.gather(*waiting, late)
    assert order == [0, 1, 2, 3, 4, 5]


async def test_a_place_in_the_line_is_not_lost_with_a_request_that_gives_up(pool: Any) -> None:
    with public_only():
        database = AsyncpgDatabase(pool, acquire_timeout_s=0.05)
    for _ in range(3):
        connection = await database.acquire()
        with pytest.raises(StoreUnavailable, match=r"within 0\.05 s"):
            await database.acquire()
        waiting = asyncio.create_task(database.acquire())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await connection.discard()
        await connection.discard()  # as whoever could not release it does
    async with asyncio.timeout(PATIENCE_S):
        await (await database.acquire()).release()


async def test_a_codec_for_a_type_that_onefold_reads_is_refused_at_first_use(postgres_dsn: str) -> None:
    async def init(connection: Any) -> None:
        await connection.set_type_codec("bool", schema="pg_catalog", encoder=str, decoder=str)

    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=1, init=init) as pool:
        with public_only():
            database = AsyncpgDatabase(pool)
        for _ in range(2):
            with pytest.raises(ConfigurationError, match="codec of their own for bool"):
                await database.acquire()
