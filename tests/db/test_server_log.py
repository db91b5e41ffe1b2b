"""What the server's log gets to see of our values where a statement or a COMMIT is refused: nothing.

The planted secrets are an answer's body and headers, an event's data and key, and the value of a statement that goes
alone. A client's key is none of them: a server stores digests of it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from onefold._app.migrations import MIGRATIONS
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.model import Answer, Ask, Replay, Run
from onefold._kernel.effects import Statement
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._outbox.write import Outbox
from onefold.db._migrations import migrate
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import OnefoldError
from onefold.testing.servers import PrivatePostgres
from tests.db.test_tenants import DRIVERS

SECRETS = ("hunter2-body", "hunter2-header", "hunter2-event", "hunter2-stream", "hunter2-letter")
ANSWER = Answer(201, b'{"x": "hunter2-header"}', b"hunter2-body")
PENDING = (
    "CREATE TABLE parent (id int PRIMARY KEY)",
    "CREATE TABLE child (parent int REFERENCES parent DEFERRABLE INITIALLY DEFERRED)",
)


@pytest.fixture(scope="module")
def talkative() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(settings={"log_min_error_statement": "error"}) as server:
        yield server


def log_of(server: PrivatePostgres) -> str:
    return (server.directory / "log").read_text(errors="replace")


def leaks(log: str) -> list[str]:
    """The secrets that the log tells, as text or as Postgres writes bytes."""
    return [secret for secret in SECRETS if secret in log or secret.encode().hex() in log]


@asynccontextmanager
async def without_cache(dsn: str) -> AsyncIterator[Any]:
    """As for PgBouncer: nothing is prepared for later."""
    async with asyncpg.create_pool(dsn, min_size=0, max_size=2, statement_cache_size=0) as pool:
        yield AsyncpgDatabase(pool), lambda handle, sql: handle.execute(sql)


OPENED = {**DRIVERS, "asyncpg without statement cache": without_cache}


async def settled(database: AsyncDatabase[Any], execute: Any, ask: Ask, *statements: str) -> Any:
    executor: TaskExecutor[Any] = TaskExecutor(database)
    claim = await run_async(LockedStore().claim(ask), executor)
    assert isinstance(claim, Run)
    for sql in statements:
        await execute(executor.connection.handle, sql)
    outgoing = Outbox(dialect="postgres", source="shop").new_buffer()
    for key in ("hunter2-stream", None):
        outgoing.add("paid", {"x": "hunter2-event"}, key=key, headers={}, content_type=None, not_before=None)
    return await run_async(LockedStore().settle(ask, claim, ANSWER, keep_rows=True, also=outgoing.flush()), executor)


@pytest.mark.parametrize("name", OPENED)
async def test_a_refused_settle_leaves_no_value_in_the_log(talkative: PrivatePostgres, name: str) -> None:
    dsn = talkative.fresh_database()
    with psycopg.connect(dsn, autocommit=True) as connection:
        for sql in PENDING:
            connection.execute(sql.encode())
    before = len(log_of(talkative))
    ask = Ask(b"k" * 16, b"f" * 32, "POST /payments", 30.0, 1e6)
    async with OPENED[name](dsn) as (database, execute):
        await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
        for number in range(2):  # with statements that the session has not seen yet, and with those that it has
            with pytest.raises(OnefoldError):  # COMMIT fails
                await settled(database, execute, ask, "INSERT INTO child VALUES (1)")
            assert await settled(database, execute, ask._replace(digest=b"o" * 16 + bytes([number]))) is None
        steal = (
            "INSERT INTO onefold_record VALUES ('\\x6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b6b', "
            f"'\\x{'66' * 32}', 'POST /payments', 1, 201, '{{}}', 'theirs', now() + interval '1 day')"
        )
        # The INSERT loses its race, as it would to a request whose lock was lost.
        other = await asyncpg.connect(dsn)

        async def steal_it(handle: Any, sql: str) -> None:
            await other.execute(sql)

        lost_to = await settled(database, steal_it, ask, steal)
        await other.close()
        assert isinstance(lost_to, Replay)
        executor: TaskExecutor[Any] = TaskExecutor(database)
        await executor.acquire()
        with pytest.raises(OnefoldError):  # a statement that goes alone
            await executor.batch((Statement("SELECT 1/0 WHERE $1::text <> ''", ("hunter2-letter",)),))
        await executor.discard()
    log = log_of(talkative)[before:]
    assert "violates foreign key constraint" in log
    assert "duplicate key value" in log
    assert "STATEMENT:" in log  # it does tell what was refused
    assert leaks(log) == []


async def test_the_search_finds_a_value_that_is_written_into_the_text(talkative: PrivatePostgres) -> None:
    """The control."""
    before = len(log_of(talkative))
    connection = await asyncpg.connect(talkative.fresh_database())
    with pytest.raises(asyncpg.PostgresError):
        await connection.execute(f"SELECT 1/0, '\\x{b'hunter2-body'.hex()}', 'hunter2-event'")
    await connection.close()
    assert leaks(log_of(talkative)[before:]) == ["hunter2-body", "hunter2-event"]
