"""Tables and rows: the business row that everybody writes, and the outbox that a team writes without onefold."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import asyncpg

from onefold import AsyncOnefold

if TYPE_CHECKING:  # it brings all that is compared along, which processes of one's own would wait for
    from benchmarks.messages.comparison import Grounds

Connection: TypeAlias = "asyncpg.pool.PoolConnectionProxy[asyncpg.Record]"
Pool: TypeAlias = "asyncpg.Pool[asyncpg.Record]"

#: As large as asyncpg makes them when it is not told otherwise.
POOL_SIZE: Final = 10

SOURCE: Final = "shop"
TOPIC: Final = "order.placed"
ACCOUNT: Final = "acct_4711"
ORDER: Final = {
    "account": ACCOUNT,
    "currency": "EUR",
    "lines": [{"article": "A-1001", "pieces": 2, "cents": 1999}, {"article": "B-2002", "pieces": 1, "cents": 4950}],
    "ship_to": {"street": "Am Kanal 7", "zip": "10963", "city": "Berlin", "country": "DE"},
}
ORDER_BYTES: Final = json.dumps(ORDER, separators=(",", ":")).encode()

BUSINESS_TABLE: Final = (
    "CREATE TABLE orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, account text NOT NULL, "
    "body bytea NOT NULL)"
)
BUSINESS_INSERT: Final = "INSERT INTO orders (account, body) VALUES ($1, $2)"
BUSINESS_INSERT_MANY: Final = "INSERT INTO orders (account, body) SELECT * FROM unnest($1::text[], $2::bytea[])"

#: With the index that makes polling it cheap.
PLAIN_TABLES: Final = (
    "CREATE TABLE plain_outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, event_id text NOT NULL, "
    "topic text NOT NULL, key text, payload bytea NOT NULL, created_at timestamptz NOT NULL DEFAULT now(), "
    "published_at timestamptz)",
    "CREATE INDEX plain_outbox_pending ON plain_outbox (id) WHERE published_at IS NULL",
)
PLAIN_INSERT: Final = "INSERT INTO plain_outbox (event_id, topic, key, payload) VALUES ($1, $2, $3, $4)"
PLAIN_FILL: Final = (
    "INSERT INTO plain_outbox (event_id, topic, key, payload) "
    "SELECT gen_random_uuid()::text, $1, 'order-' || n, $2 FROM generate_series(1, $3::integer) AS n"
)

#: What chooses the key of an event.
Keys: TypeAlias = Callable[[], str | None]

_chance: Final = random.Random(4711)


def uniform() -> str:
    return f"order-{_chance.randrange(10_000)}"


def hot() -> str:
    return f"order-{_chance.randrange(8)}"


def none() -> None:
    return None


async def fresh_place(grounds: Grounds) -> str:
    """A database with everybody's tables."""
    dsn = f"{grounds.postgres.fresh_database()}?sslmode=disable"
    once = AsyncOnefold(dsn)
    await once.migrate()
    await once.close()
    connection = await asyncpg.connect(dsn)
    for table in (BUSINESS_TABLE, *PLAIN_TABLES):
        await connection.execute(table)
    await connection.close()
    return dsn


@asynccontextmanager
async def fresh_pool(grounds: Grounds) -> AsyncIterator[Pool]:
    """A pool over a database of its own."""
    async with asyncpg.create_pool(await fresh_place(grounds), min_size=POOL_SIZE, max_size=POOL_SIZE) as pool:
        yield pool


async def publish_all(once: AsyncOnefold, count: int, keys: Keys, *, per_transaction: int = 500) -> None:
    """A backlog, written as applications write it."""
    for start in range(0, count, per_transaction):
        async with once.transaction() as tx:
            for _ in range(min(per_transaction, count - start)):
                await tx.publish(TOPIC, ORDER, key=keys())


async def count_of(pool: Pool, table: str, condition: str = "true") -> int:
    found: Any = await pool.fetchval(f"SELECT count(*) FROM {table} WHERE {condition}")
    return int(found)


def insist(what: str, found: int, expected: int) -> None:
    """Nobody is fast by being wrong."""
    if found != expected:
        raise SystemExit(f"{what}: there are {found}, and there should be {expected}")
