"""What the server's log gets to see of a claim that it refuses: neither the key nor where the call goes."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from onefold._app.migrations import MIGRATIONS
from onefold._client.journal.flow import Journal
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.runners import run_async
from onefold.db._migrations import migrate
from onefold.errors import OnefoldError
from onefold.testing.servers import PrivatePostgres
from tests.db.test_server_log import OPENED, log_of

REFUSING = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the journal is closed'; END $$",
    "CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON onefold_intent FOR EACH ROW EXECUTE FUNCTION refuse()",
)


@pytest.fixture(scope="module")
def talkative() -> Iterator[PrivatePostgres]:
    with PrivatePostgres(settings={"log_min_error_statement": "error"}) as server:
        yield server


@pytest.mark.parametrize("name", OPENED)
async def test_a_refused_claim_leaves_no_key_in_the_log(talkative: PrivatePostgres, name: str) -> None:
    dsn = talkative.fresh_database()
    journal = Journal("postgres", new_key=lambda: "hunter2-key")
    async with OPENED[name](dsn) as (database, _):
        await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
        known = await run_async(journal.claim("pay:1", b"f" * 16, "POST hunter2-target"), TaskExecutor(database))
        with psycopg.connect(dsn, autocommit=True) as connection:
            for sql in REFUSING:
                connection.execute(sql.encode())
        before = len(log_of(talkative))
        for intent in ("pay:1", "pay:2"):  # a known intent, and a new one
            with pytest.raises(OnefoldError):
                await run_async(journal.claim(intent, b"f" * 16, "POST hunter2-target"), TaskExecutor(database))
        with pytest.raises(OnefoldError):
            await run_async(journal.leave("pay:1", "hunter2-reason"), TaskExecutor(database))
    assert known.key == "hunter2-key"
    log = log_of(talkative)[before:]
    assert "the journal is closed" in log
    assert "STATEMENT:" in log
    assert "hunter2" not in log
