"""The inbox over every driver: its statements are theirs too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext, suppress
from typing import Any

import pytest

from onefold._inbox.discard_and_skip import skip
from onefold._inbox.failed_messages import DEATHS_MAX
from onefold._inbox.handler_transaction import HandlerLostConnection
from onefold._inbox.in_hand import give_up
from onefold._inbox.redrive import Filter, cancel, preview, redrive
from onefold._inbox.retention import reap
from onefold._kernel.audit import list_audit
from onefold._kernel.checkout import rollback_and_release
from onefold._kernel.effects import Acquire, Batch, Boundary, Statement
from onefold._kernel.messages import Message
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.telemetry import DeadLettered, Duplicate, Failed, Handled, Parked
from tests.db.drivers import POSTGRES_ASYNC, SQLITE_ASYNC, OpenAsync
from tests.inbox.backends import Backend, create_tables, delivery, message


class DrivenBackend(Backend):
    """A backend whose handlers write as their driver would have it."""

    execute: Any = None

    async def write(self, tx: Transaction[Any], name: str) -> None:
        await self.execute(tx.connection, f"INSERT INTO effects VALUES ('{name}')")


@asynccontextmanager
async def opened(open_driver: OpenAsync, address: str) -> AsyncIterator[DrivenBackend]:
    async with open_driver(address, 5.0) as subject:
        database: Any = subject.database
        backend = DrivenBackend(database)
        backend.execute = subject.execute
        yield backend


@pytest.fixture(params=[*SQLITE_ASYNC, *POSTGRES_ASYNC])
async def backend(request: pytest.FixtureRequest) -> AsyncIterator[Backend]:
    if request.param in SQLITE_ASYNC:
        driver, address = SQLITE_ASYNC[request.param], str(request.getfixturevalue("sqlite_path"))
        create_tables(address)
    else:
        driver, address = POSTGRES_ASYNC[request.param], request.getfixturevalue("inbox_dsn")
    async with opened(driver, address) as backend:
        yield backend


async def test_messages_are_handled_parked_failed_and_redriven(backend: Backend) -> None:
    async def handler(given: Message, tx: Transaction[Any]) -> None:
        await backend.handler(given, tx)
        if given.id == "k2":
            raise RuntimeError("once")

    inbox = backend.inbox(handler, order="strict", attempts=1)
    given = [message(f"k{number}", key="k", version=number) for number in (1, 2, 3)]
    events = [await backend.deliver(inbox, one, redelivered=one.id == "k3") for one in (*given, given[0])]
    assert [type(event) for event in events] == [Handled, DeadLettered, Parked, Duplicate]
    chosen = Filter(consumer="billing", reason="once", ids=("k2",))
    assert (await backend.flow(preview(backend.dialect, chosen))).first == ["k2"]
    job = await backend.flow(redrive(backend.dialect, chosen, actor="ada"))
    await backend.flow(cancel(backend.dialect, job.id, actor="ada"))
    assert (await backend.failed_messages())["k2"].state == "dead"
    await backend.flow(skip(backend.dialect, "billing", "k2", actor="ada"))
    assert len(await backend.flow(list_audit(backend.dialect))) == 3
    assert [type(event) for event in await backend.run_due(inbox)] == [Handled]
    assert await backend.effects() == ["k1", "k3"]
    assert await backend.flow(reap(backend.dialect, inbox.consumer.name, inbox.consumer.retention_s)) == 0


class CutOff:
    """A handler whose connection is ended by the server, so many times."""

    def __init__(self, backend: Backend, times: int, *, notices: bool = True) -> None:
        self.backend, self.times, self.notices = backend, times, notices

    async def handle(self, given: Message, tx: Transaction[Any]) -> None:
        assert isinstance(self.backend, DrivenBackend)
        await self.backend.handler(given, tx)
        if self.times:
            self.times -= 1
            with nullcontext() if self.notices else suppress(Exception):
                await self.backend.execute(tx.connection, "SELECT pg_terminate_backend(pg_backend_pid())")


@pytest.mark.parametrize("backend", POSTGRES_ASYNC, indirect=True)
async def test_a_connection_that_is_lost_inside_the_handler_is_no_failure_of_the_message(backend: Backend) -> None:
    """The database was away: the delivery is given back, and what was kept is started again, alone."""
    inbox = backend.inbox(CutOff(backend, times=2).handle, attempts=1)
    with pytest.raises(HandlerLostConnection, match="the connection was lost while the handler of consumer 'billing'"):
        await backend.deliver(inbox, message())
    with pytest.raises(HandlerLostConnection):
        await backend.deliver(inbox, message(), redelivered=True)
    await backend.flow(give_up(inbox))
    kept = (await backend.failed_messages())["m1"]
    assert (kept.state, kept.started, kept.failed) == ("waiting", 1, 0)
    assert [type(event) for event in await backend.run_due(inbox)] == [Handled]
    assert (backend.calls, await backend.effects()) == (["m1", "m1", "m1"], ["m1"])


@pytest.mark.parametrize("notices", [True, False])
@pytest.mark.parametrize("backend", POSTGRES_ASYNC, indirect=True)
async def test_a_handler_that_costs_its_connection_each_time_makes_a_dead_letter(
    backend: Backend, notices: bool
) -> None:
    """Also one that passes over the error, or that has none: it is seen at COMMIT."""
    inbox = backend.inbox(CutOff(backend, times=100, notices=notices).handle)
    with pytest.raises(HandlerLostConnection):
        await backend.deliver(inbox, message(), redelivered=True)
    for _ in range(DEATHS_MAX - 1):
        await backend.flow(give_up(inbox))
        with pytest.raises(HandlerLostConnection):
            await backend.run_due(inbox)
    await backend.flow(give_up(inbox))
    assert await backend.run_due(inbox) == []
    assert len(backend.calls) == DEATHS_MAX
    dead = (await backend.failed_messages())["m1"]
    assert dead.state == "dead"
    assert "a process, or its connection to the database, died, 3 times" in dead.reason


@pytest.mark.parametrize("backend", POSTGRES_ASYNC, indirect=True)
async def test_the_lease_counts_from_where_the_transaction_began(backend: Backend) -> None:
    """It waits for its stream, which another process has. What the handler then lacks is time, and no database."""
    assert isinstance(backend, DrivenBackend)

    async def sleep(given: Message, tx: Transaction[Any]) -> None:
        await backend.handler(given, tx)
        await asyncio.sleep(0.7)  # the lease ends in the middle of it

    inbox = backend.inbox(sleep, order="strict", lease_s=1.0)
    given = [message(f"k{number}", key="k", version=number) for number in (1, 2)]
    assert isinstance(await backend.deliver(backend.inbox(order="strict"), given[0]), Handled)
    executor, _ = backend.executor()
    await run_async(_lock_streams(), executor)
    waiting = asyncio.create_task(backend.deliver(inbox, given[1]))
    await asyncio.sleep(0.5)
    await run_async(rollback_and_release(), executor)
    failed = await waiting
    assert isinstance(failed, Failed)
    assert "took longer than lease_s=1" in failed.reason


async def _lock_streams() -> None:
    await Acquire()
    await Batch((Boundary.BEGIN, Statement("SELECT 1 FROM onefold_progress FOR UPDATE")))


async def test_batches_and_failed_messages(backend: Backend) -> None:
    async def handler(given: list[Message], tx: Transaction[Any]) -> None:
        for one in given:
            await backend.handler(one, tx)
        if backend.calls.count("m3") == 1:
            raise RuntimeError

    inbox = backend.inbox(handler, batch=10)
    executor, tx = backend.executor()
    assert await run_async(inbox.handle_batch([delivery(message(name)) for name in ("m1", "m2")], tx), executor)
    assert isinstance(await backend.deliver(inbox, message("m3")), Failed)
    await backend.hours_pass()
    assert [type(event) for event in await backend.run_due(inbox)] == [Handled]
    assert (await backend.effects(), await backend.ledger()) == (["m1", "m2", "m3"], ["m1", "m2", "m3"])
