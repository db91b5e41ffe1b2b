"""The parts of a deployment on Postgres, each doing everything it ever does there: for tests of what it needs there."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from onefold import AsyncOnefold
from onefold._kernel.borrow import borrowing
from onefold._kernel.effects import Batch, Flow, Statement
from onefold._kernel.events import DeadLettered, Failed, InboxEvent
from onefold._kernel.lanes import BrokerLane, TaskLane
from onefold._kernel.messages import Message
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.brokers.local import LocalBroker
from onefold.client.journal import Journal, counts, forget, intent_of, intents
from onefold.errors import StatementRefused
from onefold.idempotency.locked import LockedStore
from onefold.idempotency.model import Answer, Ask, InFlight, Mismatch, Replay, Run
from onefold.inbox import letters, members, pausing, redrive
from onefold.inbox.flow import Inbox
from onefold.inbox.model import Consumer, Order
from onefold.inbox.retention import reap
from onefold.outbox import report
from onefold.outbox.recurring import Recurring, Timetable, schedules
from onefold.outbox.relay import Carrier, Settings, release_due
from onefold.outbox.retention import forget as forget_published
from onefold.outbox.sql import STATEMENTS
from onefold.outbox.write import Outbox
from onefold.worker import wakeup
from tests.inbox.worlds import delivery, message

Part = Callable[[AsyncDatabase[Any]], Awaitable[None]]

_ANSWER = Answer(201, b"{}", b"done")


async def _run(database: AsyncDatabase[Any], flow: Flow[Any]) -> Any:
    return await run_async(flow, TaskLane(database))


async def _count(statement: Statement) -> int:
    return await Batch((statement,))


async def requests(database: AsyncDatabase[Any]) -> None:
    """Requests with keys of every fate, at every isolation level that their transactions claim differently."""
    store = LockedStore()
    plain = Ask(b"k" * 16, b"k" * 32, "POST /payments", 30.0, 1e9)
    dated = plain._replace(digest=b"d" * 16, key_ms=1_700_000_000_000)
    for ask in (plain, dated, plain._replace(digest=b"s" * 16, isolation="serializable")):
        lane: TaskLane[Any] = TaskLane(database)
        claim = await run_async(store.claim(ask), lane)
        assert isinstance(claim, Run)
        assert isinstance(await _run(database, LockedStore().claim(ask)), InFlight)
        assert isinstance(await _run(database, store.claim(ask._replace(fingerprint=b"g" * 32))), Mismatch)
        assert (await _run(database, store.status(ask.digest))).state == "in_flight"
        assert await run_async(store.settle(ask, claim, _ANSWER, keep_rows=True), lane) is None
        assert (await _run(database, store.status(ask.digest))).state == "done"
        for other in (store, LockedStore()):  # one that remembers the key, and one that does not
            assert isinstance(await _run(database, other.claim(ask)), Replay)
    brief = Ask(b"b" * 16, b"b" * 32, "POST /payments", 30.0, 0.001)
    for _ in range(2):  # the second finds the first one's record expired
        lane = TaskLane(database)
        while not isinstance(claim := await run_async(LockedStore().claim(brief), lane), Run):
            pass  # for a millisecond
        assert await run_async(store.settle(brief, claim, _ANSWER, keep_rows=False), lane) is None


async def reaper(database: AsyncDatabase[Any]) -> None:
    """What is past its retention is deleted. There is one such record, of a request."""
    while await _run(database, LockedStore().reap(100)) != 1:
        pass  # for a millisecond


async def events(database: AsyncDatabase[Any]) -> None:
    """Events of every kind."""
    once = AsyncOnefold(database, source="shop")
    for _ in range(2):
        async with once.transaction() as tx:
            await tx.publish("placed", {"n": 1}, key="ord-1")
            await tx.publish("placed", {"n": 2})
            await tx.publish("unheard", {"n": 3}, key="ord-1")
            await tx.publish("placed", {"n": 4}, not_before=datetime.now(UTC))
    await once._notifier.close()
    await _run(database, borrowing(lambda: _count(Statement(wakeup._NOTIFY, ("a sender",)))))


async def cancellations(database: AsyncDatabase[Any]) -> None:
    """Delayed events are taken back, in a transaction and by hand."""
    once = AsyncOnefold(database, source="shop")
    async with once.transaction() as tx:
        assert await tx.cancel("no such id") is False
    await once._notifier.close()
    assert await _run(database, report.cancel("postgres", ["no such id"])) == 0


async def clock(database: AsyncDatabase[Any]) -> None:
    """Recurring events are published when they are due, a millisecond after they were noted; their rule changes."""
    draft = partial(Outbox(dialect="postgres", source="shop").draft, "ticked", 1, key="all", headers={})
    for rule in ("former", "latter"):
        tick = Recurring(
            name="tick",
            rule=rule,
            after=lambda ms: ms + 1,
            draft=lambda event_id, due_ms: draft(event_id=event_id, time_ms=due_ms),
        )
        timetable = Timetable("postgres", "shop", [tick])
        fired: int | None = None
        while await _run(database, timetable.fire()) is None or fired is None:
            [seen] = await _run(database, schedules("postgres"))
            fired = seen.fired_ms


async def relay(database: AsyncDatabase[Any], broker: LocalBroker | None = None) -> None:
    """Two relays, one of which dies; and what operators ask of an outbox. Without a broker they use the database."""
    broker = broker or LocalBroker(database)

    async def live(flow: Flow[Any]) -> Any:
        return await run_async(flow, BrokerLane(database, broker))

    dead = Carrier("a", "postgres", Settings(), random.random)
    await live(dead.enter())
    assert await live(borrowing(lambda: dead._claim(2)))
    assert await live(borrowing(lambda: _count(STATEMENTS["postgres"].renew("a", 0.0))))
    carrier = Carrier("b", "postgres", Settings(keep_published_s=1), random.random)
    await live(carrier.enter())
    assert (await live(carrier.tend())).buckets == 64
    await live(release_due("postgres"))
    failures = 0
    while (sent := await live(carrier.tick())).claimed:
        failures += len(sent.failures)
    assert failures
    found = await live(report.report("postgres"))
    for stopped in found.stopped:
        if "StatementRefused" in (stopped.error or ""):
            raise StatementRefused(stopped.error)  # it would count as the broker's refusal of an event
    assert await live(report.retry("postgres", [found.stopped[0].id])) == 1
    await live(carrier.tick())
    assert await live(report.retry_topics("postgres", ["unheard"])) == 1
    plain = Carrier("b", "postgres", Settings(), random.random)
    await live(plain.tick())
    found = await live(report.report("postgres"))
    assert await live(report.discard("postgres", [found.stopped[0].id])) == 1
    assert await live(plain.tick())
    assert await live(forget_published("postgres", keep_s=0.0))
    await live(carrier.leave())


async def subscriber(database: AsyncDatabase[Any], *others: str) -> None:
    """A consumer's end of the local broker. `others` are topics besides the one that there may be messages of."""

    async def awaited(topics: Sequence[str]) -> None:
        await _run(database, report.retry_topics("postgres", topics))

    broker = LocalBroker(database, awaited=awaited)
    await broker.unsubscribe("billing", ["dropped"])
    subscription = await broker.subscribe("billing", ["placed", *others])
    if received := await subscription.receive(10, 0.0):
        await subscription.keep(received)
        await subscription.give_back(received[:1])
        await subscription.ack(received[1:])


class _Failed(Exception):
    pass


async def consumers(database: AsyncDatabase[Any]) -> None:
    """Messages of every fate, in every order."""
    orders: tuple[Order, ...] = ("none", "latest", "strict")
    for order in orders:
        await _consumer(database, order)
    await _batches(database)
    for process in ("a", "b"):
        await _run(database, members.register("postgres", "strict", process, ["t"]))
    await _run(database, members.leave("postgres", "strict", "a"))
    standing = members.judge(await _run(database, members.members("postgres", "strict")))
    await _run(database, members.forget("postgres", "strict", standing.outdated))


async def _consumer(database: AsyncDatabase[Any], order: Order) -> None:
    fails = {"m2"}

    async def handle(message: Message, tx: Transaction[Any]) -> None:
        if message.id in fails:
            raise _Failed(message.id)
        await tx.publish("billed", {}, key="k")

    consumer = Consumer(name=order, topics=("t",), handler=handle, order=order, attempts=1, baseline_wait_s=0.0)
    inbox = Inbox(consumer, "postgres", draw=lambda: 0.0)
    outbox = Outbox(dialect="postgres", source="shop")

    async def hand(flow: Callable[[Transaction[Any]], Flow[InboxEvent]]) -> None:
        lane: TaskLane[Any] = TaskLane(database)
        found = await run_async(flow(Transaction(lane, outbox.outgoing)), lane)
        if isinstance(found, Failed | DeadLettered) and "StatementRefused" in found.reason:
            raise StatementRefused(found.reason)  # it would count as the handler's own failure

    for name, version, again in (
        ("m1", 1, False),
        ("m1", 1, False),
        ("m2", 2, False),
        ("m4", 4, True),
        ("m0", 0, False),
    ):
        given = delivery(message(name, key="k", version=version), redelivered=again)
        await hand(lambda tx, given=given: inbox.handle(given, tx))  # type: ignore[misc]
    for suspects in (False, True):
        await _run(database, letters.next_due(inbox))
        for letter in await _run(database, letters.take(inbox, 10, suspects=suspects)):
            await hand(lambda tx, letter=letter: inbox.run_letter(letter, tx))  # type: ignore[misc]
    await _run(database, borrowing(lambda: _count(inbox.sql.unstart(order, "m2"))))
    await _run(database, borrowing(lambda: _count(inbox.sql.bury(order, "died", 0))))
    await _run(database, reap("postgres", consumer.name, consumer.retention_s))
    await _run(database, pausing.pauses("postgres", consumer.name))


async def _batches(database: AsyncDatabase[Any]) -> None:
    inbox = Inbox(
        Consumer(name="batch", topics=("t",), handler=lambda messages, tx: None, batch=2), "postgres", draw=lambda: 0.0
    )
    lane: TaskLane[Any] = TaskLane(database)
    given = [delivery(message(name)) for name in ("m1", "m2")]
    assert await run_async(inbox.handle_batch(given, Transaction(lane)), lane)


async def operators(database: AsyncDatabase[Any]) -> None:
    """What people do with dead letters. There are some, of the consumer `strict`."""
    chosen = redrive.Filter(consumer="strict", topic="order.placed", reason="m", since=datetime(2020, 1, 1, tzinfo=UTC))
    await _run(database, letters.tallied("postgres"))
    dead = [letter.id for letter in await _run(database, letters.listed("postgres", "strict"))]
    assert dead
    await _run(database, redrive.preview("postgres", chosen))
    job = await _run(database, redrive.redrive("postgres", chosen, actor="ada"))
    await _run(database, redrive.job_of("postgres", job.id))
    await _run(database, redrive.cancel("postgres", job.id, actor="ada"))
    await _run(database, redrive.skip("postgres", "strict", "m2", actor="ada"))
    await _run(database, redrive.discard("postgres", "strict", tuple(dead), actor="ada", force=True))
    assert await _run(database, redrive.audited("postgres"))


async def administrators(database: AsyncDatabase[Any]) -> None:
    """The end of a consumer. There is one, `none`."""
    assert await _run(database, pausing.pause("postgres", "strict", "ada"))
    assert await _run(database, pausing.resume("postgres", "strict", "ada"))
    await _run(database, members.members("postgres"))
    assert "strict" in await _run(database, members.named("postgres"))
    await _run(database, members.end("postgres", "none", "ada", "by the test"))


async def client(database: AsyncDatabase[Any]) -> None:
    """A journal of intents."""
    journal = Journal("postgres", retention_s=1000.0)
    for intent in ("one", "two", "one"):
        await _run(database, journal.claim(intent, b"f" * 32, "POST /x"))
    await _run(database, journal.leave("one", "time-out"))
    await _run(database, journal.resolve("two", 201))
    for unresolved_only in (False, True):
        assert await _run(database, intents("postgres", unresolved_only=unresolved_only))
    assert await _run(database, intent_of("postgres", "one"))
    await _run(database, counts("postgres"))
    await _run(database, journal.sweep())
    assert await _run(database, forget("postgres", "one"))


#: In an order in which each finds what it needs.
PARTS: Final[dict[str, Part]] = {
    "requests": requests,
    "reaper": reaper,
    "events": events,
    "subscriber": subscriber,
    "relay": relay,
    "subscriber again": subscriber,
    "consumers": consumers,
    "operators": operators,
    "administrators": administrators,
    "client": client,
}
