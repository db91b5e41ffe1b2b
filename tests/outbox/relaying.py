"""What tests of the relay share: an outbox in a real database, and a broker that does what a test tells it."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onefold._kernel.checkout import with_connection
from onefold._kernel.clock import wall_ms
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Flow, Row, Statement
from onefold._kernel.executors import BrokerExecutor, TaskExecutor
from onefold._kernel.ids import new_id
from onefold._kernel.messages import Confirm, Message
from onefold._kernel.ports import AsyncDatabase, Broker, Subscription
from onefold._kernel.runners import run_async
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession
from onefold._outbox.schema import MIGRATIONS
from onefold._outbox.write import Outbox
from onefold.db._migrations import migrate
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.sqlite import async_sqlite
from onefold.errors import BrokerUnavailable, MessageRefused


class ScriptedBroker:
    """Takes every message, unless `answer` says otherwise. `calls` is what each call of publish brought."""

    keep_every_s = 10.0
    redelivery_s = 60.0

    def __init__(self) -> None:
        self.calls: list[list[Message]] = []
        #: What the broker has, in the order it took it; a duplicate is there twice.
        self.taken: list[Message] = []
        self.answer: Callable[[Message], Confirm] = lambda message: None
        #: Awaited before a call is answered.
        self.before: Callable[[], Awaitable[None]] | None = None
        self.opened = self.closed = 0

    async def open(self) -> None:
        self.opened += 1

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        self.calls.append(list(messages))
        if self.before is not None:
            await self.before()
        confirms = [self.answer(message) for message in messages]
        self.taken += [message for message, confirm in zip(messages, confirms, strict=True) if confirm is None]
        return confirms

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        raise NotImplementedError("relays do not subscribe")

    async def close(self) -> None:
        self.closed += 1

    @property
    def names(self) -> list[str]:
        """The data of what was taken."""
        return [message.data.decode() for message in self.taken]

    def first_versions(self) -> dict[str, list[int]]:
        """By key, the versions in the order of their first arrival."""
        found: dict[str, list[int]] = defaultdict(list)
        for message in self.taken:
            if message.key is not None and message.version is not None and message.version not in found[message.key]:
                found[message.key].append(message.version)
        return dict(found)


def refusing(*names: str) -> ScriptedBroker:
    """A broker that refuses what has this data."""
    broker = ScriptedBroker()
    broker.answer = lambda message: MessageRefused("too large") if message.data.decode() in names else None
    return broker


def down() -> ScriptedBroker:
    """A broker that takes nothing."""
    broker = ScriptedBroker()
    broker.answer = lambda message: BrokerUnavailable("nobody answers")
    return broker


class Stage:
    """A migrated outbox."""

    def __init__(self, database: AsyncDatabase[Any]) -> None:
        self.database = database
        self.dialect = database.dialect
        self.broker = ScriptedBroker()
        self.outbox = Outbox(dialect=self.dialect, source="tests")

    async def run(self, flow: Flow[Any], broker: Broker | None = None) -> Any:
        return await run_async(flow, BrokerExecutor(self.database, broker or self.broker))

    async def migrate(self) -> None:
        await run_async(migrate(self.dialect, MIGRATIONS[self.dialect]), TaskExecutor(self.database))

    async def write(self, *events: tuple[str, str | None], topic: str = "t", **more: Any) -> list[str]:
        """Events of (data, key) in one transaction; their ids."""
        outgoing = self.outbox.new_buffer()
        given: dict[str, Any] = {"headers": {}, "content_type": "text/plain", "not_before": None} | more
        ids = [outgoing.add(topic, data.encode(), key=key, **given) for data, key in events]
        await self.batch(Boundary.BEGIN, *outgoing.flush(), Boundary.COMMIT)
        outgoing.announce()
        return ids

    async def batch(self, *items: BatchItem) -> None:
        async def work() -> None:
            await Batch(items)

        await self.run(with_connection(work))

    async def execute(self, sql: str) -> None:
        """Postgres's SQL, with what differs on SQLite replaced."""
        await self.batch(Boundary.BEGIN, Statement(self._said(sql)), Boundary.COMMIT)

    async def fetch(self, sql: str) -> list[Row]:
        async def work() -> list[Row]:
            return await Fetch(Statement(self._said(sql)))

        rows: list[Row] = await self.run(with_connection(work))
        return [tuple(row) for row in rows]

    async def waiting(self) -> int:
        [(count,)] = await self.fetch("SELECT count(*) FROM onefold_outbox WHERE published_at IS NULL")
        return int(count)

    def session(self, *, seed: int = 0, **settings: Any) -> RelaySession:
        draw = random.Random(seed).random
        return RelaySession(new_id(wall_ms()), self.dialect, RelayConfig(**settings), draw)

    async def entered(self, **settings: Any) -> RelaySession:
        session = self.session(**settings)
        await self.run(session.enter())
        return session

    async def drain(self, session: RelaySession, *, ticks_max: int = 1000) -> None:
        """Tick until there is nothing to claim."""
        for _ in range(ticks_max):
            if (await self.run(session.tick())).claimed == 0:
                return
        raise AssertionError(f"after {ticks_max} ticks there is still something to claim")

    async def expire(self, session: RelaySession) -> None:
        """Its lease has run out."""
        await self.execute(f"UPDATE onefold_relay SET leased_until = <past> WHERE relay = '{session.relay}'")

    async def make_due(self) -> None:
        await self.execute("UPDATE onefold_outbox SET due_at = <past> WHERE due_at IS NOT NULL AND due_at < <never>")

    def _said(self, sql: str) -> str:
        words = {"<past>": "now() - interval '1 hour'", "<never>": "'infinity'", "<now>": "now()"}
        if self.dialect == "sqlite":
            words = {"<past>": "1", "<never>": str(2**62), "<now>": "strftime('%s', 'now') * 1000"}
            words |= {
                name: f"{name}_ms" for name in ("due_at", "published_at", "written_at", "leased_until", "died_at")
            }
        for word, meaning in words.items():
            sql = sql.replace(word, meaning)
        return sql


@asynccontextmanager
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """An outbox in the database that the fixture's parameter names."""
    given = request.getfixturevalue("sqlite_path" if request.param == "sqlite" else "postgres_dsn")
    stage = Stage(async_sqlite(given) if request.param == "sqlite" else AsyncpgDatabase(given))
    await stage.migrate()
    yield stage
    await stage.database.close()
