"""A relay that stands still holds up no other, wherever it does so: at every place where it waits for the server, also
when that has answered, and where the server cannot even write its answer, because nobody reads it.

asyncpg asks a session to parse a statement that is new to it, and sends the values after the answer: so there is a wait
in the middle of a statement, where the server takes a transaction for busy and no time-out of idle ones runs.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import asyncpg
import pytest

from onefold._kernel.clock import wall_ms
from onefold._kernel.ids import new_id
from onefold._outbox.endpoint_copies import EndpointsOf
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession
from onefold._outbox.schema import BUCKETS
from onefold.db.asyncpg import AsyncpgDatabase
from onefold.errors import StoreError
from onefold.testing.servers import PrivatePostgres
from tests.chaos.places import until
from tests.outbox.relaying import Stage
from tests.support.patience import PATIENCE_S

LEASE_S = 2.0

BLOCKED = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'ClientWrite'"


@pytest.fixture(params=["postgres_16", "postgres"])
def server(request: pytest.FixtureRequest) -> PrivatePostgres:
    found: PrivatePostgres = request.getfixturevalue(request.param)
    return found


@pytest.fixture
async def dsn(server: PrivatePostgres) -> AsyncIterator[str]:
    dsn = server.fresh_database()
    async with anew(dsn) as stage:
        await stage.migrate()
    yield dsn
    server.drop_database(dsn)


@asynccontextmanager
async def anew(dsn: str) -> AsyncIterator[Stage]:
    """With sessions that know no statement yet."""
    stage = Stage(AsyncpgDatabase(dsn))
    try:
        yield stage
    finally:
        await stage.database.close()


class Standing:
    """Work that stands still at its n-th wait, until it may go on."""

    def __init__(self, work: Coroutine[Any, Any, Any], at: int) -> None:
        self._work = work
        self._left = at
        self.stands = asyncio.Event()
        self.goes_on = asyncio.Event()

    def __await__(self) -> Generator[Any, Any, None]:
        resume: Callable[[Any], Any] = self._work.send
        answer: Any = None
        while True:
            try:
                waits_for = resume(answer)
            except StopIteration:
                return
            self._left -= 1
            if self._left == 0:
                self.stands.set()
                yield from self.goes_on.wait().__await__()
            try:
                resume, answer = self._work.send, (yield waits_for)
            except BaseException as error:
                resume, answer = self._work.throw, error

    async def run(self) -> None:
        await self

    @asynccontextmanager
    async def standing(self) -> AsyncIterator[bool]:
        """Whether it stands. It goes on when the block ends; that it is too late then is its own trouble."""
        running = asyncio.create_task(self.run())
        stands = asyncio.create_task(self.stands.wait())
        await asyncio.wait((running, stands), return_when=asyncio.FIRST_COMPLETED)
        stands.cancel()
        try:
            yield not running.done()
        finally:
            self.goes_on.set()
            with suppress(StoreError):
                await running


async def enter(stage: Stage, session: RelaySession) -> None:
    await stage.run(session.enter())


async def renew_and_rebalance(stage: Stage, session: RelaySession) -> None:
    await stage.run(session.renew_and_rebalance())


async def tick(stage: Stage, session: RelaySession) -> None:
    await stage.run(session.tick())


async def tour(stage: Stage, session: RelaySession) -> None:
    await stage.run(session.tick(probing=True))


async def leave(stage: Stage, session: RelaySession) -> None:
    await stage.run(session.leave())


async def copy(stage: Stage, session: RelaySession) -> None:
    """A tick whose events go to endpoints."""
    await tick(stage, session)


def new_session(stage: Stage, *, copies: bool = False, lease_s: float = LEASE_S) -> RelaySession:
    settings = RelayConfig(lease_s=lease_s)
    aims: EndpointsOf | None = (lambda message: ("one", "two")) if copies else None
    return RelaySession(new_id(wall_ms()), stage.dialect, settings, random.Random(0).random, aims)


@pytest.mark.parametrize("work", [enter, renew_and_rebalance, tick, tour, leave, copy])
async def test_a_relay_that_stands_still_at_any_wait_is_replaced_when_its_lease_is_over(
    dsn: str, work: Callable[[Stage, RelaySession], Coroutine[Any, Any, None]]
) -> None:
    for at in count(1):
        async with anew(dsn) as stage, anew(dsn) as others, asyncio.timeout(PATIENCE_S):
            await others.write((f"{at}-1", "a"), (f"{at}-2", "a"), (f"{at}-3", "b"), (f"{at}-4", None))
            session = new_session(others, copies=work is copy)
            if work is not enter:
                await others.run(session.enter())
            async with Standing(work(stage, session), at).standing() as stands:
                if not stands:
                    break
                # A machine that is busy may need longer than a lease for its transactions.
                successor = new_session(others, copies=work is copy, lease_s=PATIENCE_S)
                await replace(session, successor, others)
                await others.drain(successor)
                assert await others.waiting() == 0
                await others.run(successor.leave())
    assert at > 4, "it never stood still"


async def test_a_relay_that_does_not_read_the_answer_to_its_claim_is_replaced_when_its_lease_is_over(dsn: str) -> None:
    """The server blocks while it writes more than sockets hold: no time-out of its own ends that, and the claim is not
    committed."""
    async with anew(dsn) as others, asyncio.timeout(PATIENCE_S):
        pool = asyncpg.create_pool(dsn, min_size=1, max_size=1)
        async with pool:
            stage = Stage(AsyncpgDatabase(pool))
            session = new_session(stage)
            await stage.run(session.enter())
            await stage.run(session.tick())  # the session knows the statement
            for number in range(40):
                await others.write((str(number) * 250_000, None))
            async with pool.acquire() as connection:
                transport: Any = connection._transport  # type: ignore[attr-defined]
            transport.pause_reading()
            claiming = asyncio.create_task(stage.run(session.tick()))
            assert await until(lambda: others.fetch(BLOCKED), within_s=PATIENCE_S)
            successor = new_session(others, lease_s=PATIENCE_S)
            await replace(session, successor, others)
            await others.drain(successor)
            assert await others.waiting() == 0
            transport.resume_reading()
            await claiming  # what was sent twice is absorbed by the inbox
            # Its claim was committed after all, and so its lease renewed; but its buckets are another's.
            assert (await stage.run(session.renew_and_rebalance())).buckets == 0


async def replace(former: RelaySession, successor: RelaySession, stage: Stage) -> None:
    """Have the successor get all buckets: the lease of the former is over, or will be soon."""
    await stage.execute(f"""
        UPDATE onefold_relay SET leased_until = <past> WHERE relay = (
            SELECT relay FROM onefold_relay WHERE relay = '{former.relay}' FOR UPDATE SKIP LOCKED)
    """)
    await stage.run(successor.enter())
    held = f"SELECT count(*) FROM onefold_bucket WHERE relay = '{successor.relay}'"
    # It had its row locked: its lease ends by itself. Or it was about to give them back, and has only done so now.
    while (await stage.fetch(held))[0][0] < BUCKETS:
        await asyncio.sleep(0.1)
        assert await stage.run(successor.renew_and_rebalance()) is not None
