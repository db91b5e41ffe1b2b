"""The journal over every driver: its statements are theirs too."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import pytest

from onefold._client.journal.queries import counts, forget
from onefold._client.journal.records import ClaimedKey
from onefold._client.journal.schema import prepare
from onefold._client.journal.sql import STATEMENTS
from onefold._kernel.checkout import with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement
from onefold.errors import IntentReused, StoreBusy
from tests.client.journal.backends import DAY_S, HASH, PAY, TARGET, Backend
from tests.db.drivers import POSTGRES_ASYNC, SQLITE_ASYNC
from tests.support.patience import PATIENCE_S


@pytest.fixture(params=[*SQLITE_ASYNC, *POSTGRES_ASYNC])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    if request.param in SQLITE_ASYNC:
        driver, address = SQLITE_ASYNC[request.param], str(request.getfixturevalue("sqlite_path"))
    else:
        driver, address = POSTGRES_ASYNC[request.param], request.getfixturevalue("postgres_dsn")
    async with opened(driver(address, 5.0)) as backend:
        yield backend


@asynccontextmanager
async def opened(driver: AbstractAsyncContextManager[Any]) -> AsyncIterator[Backend]:
    async with driver as subject:
        backend = Backend(subject.database)
        await backend.flow(prepare(backend.dialect))
        yield backend


async def test_intents_are_claimed_left_answered_listed_swept_and_forgotten(backend: Backend) -> None:
    journal = backend.journal()
    assert await backend.claim(journal) == ClaimedKey("key-1", known=False)
    assert await backend.claim(journal) == ClaimedKey("key-1", known=True)
    with pytest.raises(IntentReused):
        await backend.claim(journal, fingerprint=b"o" * 20)
    await backend.flow(journal.leave(PAY, "timeout"))
    [row] = await backend.listed()
    assert (row.intent, row.key, row.reason, row.tries) == (PAY, "key-1", "timeout", 2)
    await backend.flow(journal.resolve(PAY, 201))
    found = await backend.flow(counts(backend.dialect))
    assert (found.unresolved, found.resolved, found.oldest_s) == (0, 1, None)
    await backend.age(PAY, 2 * DAY_S)
    assert await backend.flow(journal.sweep()) == 1
    await backend.claim(journal)
    assert await backend.flow(forget(backend.dialect, PAY)) is True
    assert await backend.listed(unresolved_only=False) == []


@pytest.mark.parametrize("driver", POSTGRES_ASYNC)
async def test_a_table_that_somebody_has_locked_is_waited_for_until_the_deadline(
    driver: str, postgres_dsn: str
) -> None:
    """As a migration does, or an operator whose transaction is still open in a terminal."""
    async with opened(POSTGRES_ASYNC[driver](postgres_dsn, 5.0)) as backend:
        journal = backend.journal()
        await backend.claim(journal)
        operator = await asyncpg.connect(postgres_dsn)
        try:
            await operator.execute("BEGIN; LOCK TABLE onefold_intent IN ACCESS EXCLUSIVE MODE")
            for flow in (
                journal.claim("pay:ord-43", HASH, TARGET, until=time.monotonic() + 0.2),
                journal.resolve(PAY, 201, until=time.monotonic() + 0.2),
            ):
                with pytest.raises(StoreBusy):
                    await asyncio.wait_for(backend.flow(flow), PATIENCE_S)
            await operator.execute("ROLLBACK")
        finally:
            await operator.close()
        await backend.flow(journal.resolve(PAY, 201, until=time.monotonic() + PATIENCE_S))
        assert await backend.unresolved() == []


@pytest.mark.parametrize(("own", "expected"), [("0", "3s"), ("50ms", "50ms"), ("1h", "3s"), ("3s", "3s")])
async def test_a_shorter_limit_that_the_role_has_for_locks_is_kept(postgres_dsn: str, own: str, expected: str) -> None:
    async def find() -> Any:
        limits = STATEMENTS["postgres"].limit_lock_waits(3.0)
        await Batch((Boundary.BEGIN, Statement(f"SET LOCAL lock_timeout = '{own}'"), *limits))
        found = await Fetch(Statement("SELECT current_setting('lock_timeout')"))
        await Batch((Boundary.ROLLBACK,))
        return found

    async with opened(POSTGRES_ASYNC["asyncpg"](postgres_dsn, 5.0)) as backend:
        [[found]] = await backend.flow(with_connection(find))
    assert found == expected
