"""Order and completeness while everything happens at once: overlapping writers, four relays, refusals, takeovers.

The same storm, carried by a textbook loop over SKIP LOCKED, must be seen to break the order: a storm that would not
show that proves nothing.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import pairwise

import asyncpg
import pytest

from onefold._kernel.effects import Boundary
from onefold._kernel.messages import Confirm, Message
from onefold._outbox.claimed_rows import COLUMNS, read
from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.relay_session import RelaySession
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import MessageRefused
from tests.outbox.relaying import ScriptedBroker, Stage
from tests.support.patience import PATIENCE_S

KEYS = 12
TRANSACTIONS = 40
WRITERS = 4
RELAYS = 4


class Storm:
    """Writers, and relays of some kind, until everything that was written has arrived."""

    def __init__(self, stage: Stage, pool: asyncpg.Pool[asyncpg.Record], seed: int) -> None:
        self.stage = stage
        self.pool = pool
        self.chance = random.Random(seed)
        self.broker = ScriptedBroker()
        self.broker.before = self.dawdle
        self.written: set[str] = set()
        self.relays: dict[str, RelaySession] = {}
        self.takeovers = 0
        self.stood_still = False
        self.writing = True

    async def dawdle(self) -> None:
        for _ in range(self.chance.randrange(40)):
            await asyncio.sleep(0)

    async def write(self) -> None:
        """Transactions that overlap: each takes its time between its events and its COMMIT."""
        for _ in range(TRANSACTIONS):
            outgoing = self.stage.outbox.new_buffer()
            ids = []
            for _ in range(self.chance.randint(1, 4)):
                key = f"k{self.chance.randrange(KEYS)}"
                ids.append(outgoing.add("t", "x", key=key, headers={}, content_type=None, not_before=None))
            connection = await self.stage.database.acquire()
            await connection.batch((Boundary.BEGIN,))
            for statement in outgoing.flush():
                await connection.batch((statement,))
                await self.dawdle()
            await connection.batch((Boundary.COMMIT,))
            await connection.release()
            self.written.update(ids)

    async def carry(self) -> None:
        """A relay's life after life."""
        while not self.done:
            session = self.stage.session(seed=self.chance.randrange(1000), batch_max=640)
            await self.stage.run(session.enter())
            self.relays[session.relay] = session
            while not session.expired:
                if self.done:
                    return
                if self.chance.random() < 0.3:
                    await self.stage.run(session.renew_and_rebalance())
                await self.stage.run(session.tick(), self.broker)
            self.takeovers += session.expired
            del self.relays[session.relay]

    async def trouble(self) -> None:
        """Leases run out under relays that are at work, and what was refused is due again at once."""
        while not self.done:
            if self.relays and self.chance.random() < 0.2:
                session = self.relays[self.chance.choice(sorted(self.relays))]
                session._leased_at = float("-inf")
                await self.stage.expire(session)
            await self.stage.make_due()
            await self.stage.run(make_due_claimable("postgres"))

    @property
    def done(self) -> bool:
        return not self.writing and self.written <= {message.id for message in self.broker.taken}

    async def rage(self, carry: Callable[[], Awaitable[None]], *, trouble: bool) -> None:
        async def write_all() -> None:
            await asyncio.gather(*(self.write() for _ in range(WRITERS)))
            self.writing = False

        async with asyncio.timeout(PATIENCE_S):
            others = [self.trouble()] if trouble else []
            await asyncio.gather(write_all(), *others, *(carry() for _ in range(RELAYS)))

    def inversions(self) -> int:
        """How many first arrivals came after a later version of their key."""
        return sum(
            earlier > later
            for versions in self.broker.first_versions().values()
            for earlier, later in pairwise(versions)
        )

    async def be_overtaken(self, messages: list[Message]) -> None:
        """StreamPosition still until another relay has published a later version of one of these keys."""
        mine = {message.key: message.version or 0 for message in messages if message.key}

        def is_overtaken() -> bool:
            return any((later.version or 0) > mine.get(later.key or "", 1 << 62) for later in self.broker.taken)

        while not is_overtaken():  # noqa: ASYNC110
            await asyncio.sleep(0.01)

    async def carry_with_skip_locked(self) -> None:
        """What every tutorial does."""
        claim = f"""
            SELECT bucket, {COLUMNS} FROM onefold_outbox WHERE published_at IS NULL AND due_at IS NULL
            ORDER BY position LIMIT 10 FOR UPDATE SKIP LOCKED
        """
        while not self.done:
            async with self.pool.acquire() as connection, connection.transaction():
                rows = [read(tuple(row)) for row in await connection.fetch(claim)]
                messages = [row.message for row in rows if isinstance(row.message, Message)]
                if not self.stood_still and any(message.key for message in messages):
                    self.stood_still = True
                    await self.be_overtaken(messages)
                await self.broker.publish(messages)
                positions = [row.position for row in rows]
                await connection.execute("DELETE FROM onefold_outbox WHERE position = ANY ($1)", positions)


@pytest.fixture
async def pool(postgres_dsn: str) -> AsyncIterator[asyncpg.Pool[asyncpg.Record]]:
    async with asyncpg.create_pool(postgres_dsn, min_size=0, max_size=16) as pool:
        yield pool


@pytest.fixture
async def stage(pool: asyncpg.Pool[asyncpg.Record]) -> Stage:
    stage = Stage(AsyncpgDatabase(pool))
    await stage.migrate()
    return stage


@pytest.mark.parametrize("seed", range(3))
async def test_in_a_storm_nothing_is_lost_and_every_key_arrives_in_order(
    stage: Stage, pool: asyncpg.Pool[asyncpg.Record], seed: int
) -> None:
    storm = Storm(stage, pool, seed)

    def answer(message: Message) -> Confirm:
        return MessageRefused("not today") if storm.chance.random() < 0.01 else None

    storm.broker.answer = answer
    await storm.rage(storm.carry, trouble=True)
    versions = storm.broker.first_versions()
    assert {key: found for key, found in versions.items() if found != list(range(1, len(found) + 1))} == {}
    assert storm.takeovers > 0
    assert {message.id for message in storm.broker.taken} == storm.written
    assert await stage.waiting() == 0


async def test_control_a_textbook_loop_over_skip_locked_breaks_the_order(
    stage: Stage, pool: asyncpg.Pool[asyncpg.Record]
) -> None:
    storm = Storm(stage, pool, seed=1)
    await storm.rage(storm.carry_with_skip_locked, trouble=False)
    assert storm.inversions() > 0
