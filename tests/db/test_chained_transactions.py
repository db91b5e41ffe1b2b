"""A `once.transaction()` block whose connection is in another transaction by now, on every driver of Postgres."""

from __future__ import annotations

import pytest

from onefold import AsyncOnefold
from onefold.errors import TransactionMisused
from tests.db.drivers import POSTGRES_ASYNC


@pytest.mark.parametrize("driver", POSTGRES_ASYNC)
@pytest.mark.parametrize("ending", ["COMMIT AND CHAIN", "ROLLBACK AND CHAIN"])
async def test_a_block_that_ends_its_transaction_is_told_so_and_its_events_stay(
    driver: str, ending: str, postgres_dsn: str
) -> None:
    async with POSTGRES_ASYNC[driver](postgres_dsn, 60.0) as subject:
        once = AsyncOnefold(subject.database, source="shop")
        await once.migrate()

        async def end_it() -> None:
            async with once.transaction() as tx:
                await subject.execute(tx.connection, "CREATE TABLE orders (item text)")
                await subject.execute(tx.connection, ending)
                await tx.publish("order.placed", {})

        with pytest.raises(TransactionMisused, match="committed or rolled back its transaction by itself"):
            await end_it()
        async with once.transaction() as tx:  # refused if there is an event; the rows of the first are as they were
            await subject.execute(
                tx.connection,
                "SELECT 1 / (CASE WHEN EXISTS (SELECT FROM onefold_outbox) THEN 0 ELSE 1 END)",
            )
            await subject.execute(tx.connection, "CREATE TABLE IF NOT EXISTS orders (item text)")


@pytest.mark.parametrize("driver", POSTGRES_ASYNC)
async def test_a_block_may_be_read_only_and_take_another_role(driver: str, postgres_dsn: str) -> None:
    async with POSTGRES_ASYNC[driver](postgres_dsn, 60.0) as subject:
        once = AsyncOnefold(subject.database, source="shop")
        await once.migrate()
        async with once.transaction() as tx:
            await subject.execute(tx.connection, "SET TRANSACTION READ ONLY")
            await subject.execute(tx.connection, "SET LOCAL ROLE pg_read_all_stats")
