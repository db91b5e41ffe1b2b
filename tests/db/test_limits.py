"""Handlers that give their statements less time, or less patience with locks: ours have what the transaction began
with."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from onefold import AsyncOnefold
from onefold._idempotency.model import Replay
from onefold.errors import StoreUnavailable
from tests.db.test_tenants import DRIVERS, Opened, migrated, request
from tests.support.patience import PATIENCE_S

SLOW = """
CREATE FUNCTION sleep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep({seconds}); RETURN NEW; END $$;
CREATE TRIGGER slow BEFORE INSERT ON onefold_record FOR EACH ROW EXECUTE FUNCTION sleep();
"""

WAITING = "SELECT FROM pg_locks WHERE NOT granted AND relation = 'onefold_outbox'::regclass"


def execute_outside(dsn: str, sql: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(sql.encode())


@pytest.fixture
def dsn(postgres_dsn: str) -> str:
    migrated(postgres_dsn)
    return postgres_dsn


@pytest.fixture(params=DRIVERS)
async def opened(dsn: str, request: pytest.FixtureRequest) -> AsyncIterator[Opened]:
    async with DRIVERS[request.param](dsn) as opened:
        yield opened


async def test_a_handler_s_statement_timeout_does_not_cut_the_settle(dsn: str, opened: Opened) -> None:
    execute_outside(dsn, SLOW.format(seconds=1))
    assert await request(*opened, "SET LOCAL statement_timeout = '500ms'") is None
    assert isinstance(await request(*opened), Replay)


@pytest.mark.parametrize("own", ["", "SET LOCAL statement_timeout = 0"], ids=["kept by the handler", "lifted by it"])
async def test_the_session_s_own_statement_timeout_holds_for_the_settle(dsn: str, own: str) -> None:
    execute_outside(dsn, SLOW.format(seconds=PATIENCE_S))
    async with DRIVERS["asyncpg"](f"{dsn}?statement_timeout=500") as opened:
        with pytest.raises(StoreUnavailable, match="statement timeout"):
            await request(*opened, own or "SELECT 1")


@pytest.mark.parametrize("in_block", [False, True], ids=["a request", "a block"])
async def test_a_handler_s_lock_timeout_does_not_cut_the_settle(dsn: str, opened: Opened, in_block: bool) -> None:
    database, execute = opened

    async def block() -> None:
        async with AsyncOnefold(database, source="shop").transaction() as tx:
            await execute(tx.connection, "SET LOCAL lock_timeout = '1ms'")
            await tx.publish("paid", {})

    work: Any = block() if in_block else request(database, execute, "SET LOCAL lock_timeout = '1ms'")
    async with (
        await psycopg.AsyncConnection.connect(dsn) as other,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watcher,
    ):
        await other.execute("LOCK TABLE onefold_outbox IN ACCESS EXCLUSIVE MODE")
        settling = asyncio.create_task(work)
        async with asyncio.timeout(PATIENCE_S):
            while not settling.done() and not (await watcher.execute(WAITING)).rowcount:
                await asyncio.wait({settling}, timeout=0.01)
        await other.rollback()
        assert await settling is None


DEFERRED = """
CREATE TABLE account (id int PRIMARY KEY);
CREATE TABLE payment (account int REFERENCES account DEFERRABLE INITIALLY DEFERRED);
INSERT INTO account VALUES (1);
"""

#: Longer than the shorter limits below.
WAITING_LONG = "SELECT FROM pg_locks WHERE NOT granted AND waitstart < clock_timestamp() - interval '300ms'"


@pytest.mark.parametrize(
    ("own", "asked_for"), [("'200ms'", "0"), ("'200ms'", "'2min'"), ("'2min'", "'200ms'"), ("0", "1")]
)
async def test_what_is_deferred_to_commit_has_the_longer_patience_with_locks(
    dsn: str, opened: Opened, own: str, asked_for: str
) -> None:
    execute_outside(dsn, DEFERRED)
    execute_outside(dsn, f"ALTER DATABASE {dsn.rpartition('/')[2]} SET lock_timeout = {own}")
    async with (
        await psycopg.AsyncConnection.connect(dsn) as other,
        await psycopg.AsyncConnection.connect(dsn, autocommit=True) as watcher,
    ):
        await other.execute("SELECT FROM account FOR UPDATE")
        work = (f"SET LOCAL lock_timeout = {asked_for}", "INSERT INTO payment VALUES (1)")
        settling = asyncio.create_task(request(*opened, *work))
        async with asyncio.timeout(PATIENCE_S):
            while not settling.done() and not (await watcher.execute(WAITING_LONG)).rowcount:
                await asyncio.wait({settling}, timeout=0.01)
        await other.rollback()
        assert await settling is None
