"""A row is read as it is and stays so; where there is none, its place is kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Column, MetaData, Numeric, Table, Uuid

from onefold._natural import row_locks
from onefold.errors import ProgrammerError, StoreBusy, TransactionMisused
from tests.natural.stages import WAYS, Stage, address_for, look, opened, refused


@pytest.fixture(params=WAYS, ids=lambda way: f"{way[0]}-{way[1]}".replace(" ", "-"))
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    driver, form = request.param
    async with opened(driver, address_for(request, driver), form) as stage:
        yield stage


async def lock(stage: Stage, tx: Any, **where: Any) -> Any:
    found = tx.lock_row(stage.table("orders"), where=stage.named(where))
    return await found if stage.asynchronous else found


async def test_the_row_is_given_or_none(stage: Stage) -> None:
    stage.outside("INSERT INTO orders (id, tenant, number, version) VALUES ('o1', 'a', 1, 3), ('o2', 'a', 2, 5)")
    async with stage.transaction() as tx:
        assert stage.read(await lock(stage, tx, id="o1"), "version") == 3
        assert stage.read(await lock(stage, tx, tenant="a", number=2), "version") == 5
        assert await lock(stage, tx, id="o9") is None
        assert await lock(stage, tx, id="o9") is None


async def test_what_stands_for_several_rows_is_refused_and_nothing_is_kept(stage: Stage) -> None:
    stage.outside("INSERT INTO orders (id, tenant, number) VALUES ('o1', 'a', 1), ('o2', 'a', 2)")
    with refused(TransactionMisused, "2 rows of orders"):
        async with stage.transaction() as tx:
            with refused(TransactionMisused, "2 rows of orders"):
                await lock(stage, tx, tenant="a")


async def test_what_names_no_row_is_refused(stage: Stage) -> None:
    async with stage.transaction() as tx:
        for where in ({}, {"id": None}, {"id or 1=1": "o1"}):
            with pytest.raises(ProgrammerError):
                await lock(stage, tx, **where)


@pytest.mark.parametrize(
    ("driver", "form"), [("psycopg-async", "plain"), ("asyncpg", "plain"), ("asyncpg engine", "table")]
)
async def test_the_place_of_a_row_is_one_however_its_key_is_written(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, driver: str, form: Any
) -> None:
    """A UUID in capitals, a number with decimals: two that make the same row must not both find its place free."""
    address = str(request.getfixturevalue("postgres_dsn"))
    look(address, "CREATE TABLE documents (id uuid, part numeric, PRIMARY KEY (id, part))")
    table: Any = "documents"
    if form == "table":
        columns = (Column("id", Uuid(as_uuid=False), primary_key=True), Column("part", Numeric, primary_key=True))
        table = Table("documents", MetaData(), *columns)
    monkeypatch.setattr(row_locks, "WAIT_S", 0.0)
    id_ = "abcdef01-aaaa-4aaa-8aaa-aaaaaaaaaaaa"
    async with opened(driver, address) as stage, stage.transaction() as first, stage.transaction() as second:
        assert await first.lock_row(table, where={"id": id_, "part": Decimal("1")}) is None
        assert await second.lock_row(table, where={"id": id_, "part": Decimal("2")}) is None
        with refused(StoreBusy):
            await second.lock_row(table, where={"id": id_.upper(), "part": Decimal("1.00")})
