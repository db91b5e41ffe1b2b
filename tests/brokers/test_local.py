"""The local broker on Postgres: what it has confirmed is there after a crash of the server."""

from __future__ import annotations

from onefold._app.migrations import MIGRATIONS
from onefold._kernel.executors import TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.runners import run_async
from onefold.brokers.local import LocalBroker
from onefold.db._migrations import migrate
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.testing.servers import PrivatePostgres


async def test_what_was_confirmed_survives_a_crash_of_the_server() -> None:
    """A relay that outlives the server marks what was confirmed, and forgets it, when the server is back."""
    # What does not wait for the disk is written so often; the server dies sooner than that.
    with PrivatePostgres(settings={"wal_writer_delay": "10s"}) as server:
        dsn = server.fresh_database()
        database = AsyncpgDatabase(dsn)
        await run_async(migrate("postgres", MIGRATIONS["postgres"]), TaskExecutor(database))
        broker = LocalBroker(database)
        await broker.subscribe("billing", ["orders"])
        sent = [Message(id=f"m{number}", source="shop", topic="orders", data=b"{}") for number in range(3)]
        assert await broker.publish(sent) == [None] * 3
        server.kill()
        server.restart()
        await database.close()
        again = AsyncpgDatabase(dsn)
        found = await LocalBroker(again).subscribe("billing", ["orders"])
        assert sorted(each.message.id for each in await found.receive(10, 0.1) if each.message) == ["m0", "m1", "m2"]
        await again.close()
