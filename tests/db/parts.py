"""The parts of a deployment on Postgres, each doing everything it ever does there: for tests of what it needs there."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from onefold import AsyncOnefold, StepOptions
from onefold._client.journal.flow import Journal
from onefold._client.journal.queries import counts, forget, intent_of, intents
from onefold._console import key_search
from onefold._idempotency import stored_keys
from onefold._idempotency.cache.cached_store import read_database_id
from onefold._idempotency.locked_store import LockedStore
from onefold._idempotency.model import Answer, Ask, InFlight, Mismatch, Replay, Run
from onefold._inbox import discard_and_skip, failed_messages, pausing, redrive, registry
from onefold._inbox.consumer import Consumer, Order
from onefold._inbox.handling import Inbox
from onefold._inbox.retention import reap
from onefold._kernel.audit import list_audit
from onefold._kernel.checkout import run_batch, with_connection
from onefold._kernel.effects import Batch, Boundary, Flow, Statement
from onefold._kernel.executors import BrokerExecutor, TaskExecutor
from onefold._kernel.messages import Message
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.ports import AsyncDatabase
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry.consumer_events import InboxEvent
from onefold._kernel.transaction import Transaction
from onefold._observe.activity import statements as activity_statements
from onefold._observe.activity.history import last_hour, read_activity
from onefold._observe.activity.writing import forget_activity
from onefold._outbox import status_report
from onefold._outbox.due_events import make_due_claimable
from onefold._outbox.relay_config import RelayConfig
from onefold._outbox.relay_session import RelaySession
from onefold._outbox.retention import forget as forget_published
from onefold._outbox.schedules import Recurring, Timetable, schedules
from onefold._outbox.sql import STATEMENTS
from onefold._outbox.write import Outbox
from onefold._saga import effect_rows
from onefold._steps import unfinished_works
from onefold._steps.message_work import forget_message
from onefold._steps.model import RecordedStep, WorkAsk
from onefold._steps.works import Works
from onefold._worker import wakeup
from onefold.brokers.local import LocalBroker
from onefold.errors import StatementRefused
from onefold.telemetry import DeadLettered, Failed
from tests.inbox.backends import delivery, message
from tests.support.patience import PATIENCE_S

Part = Callable[[AsyncDatabase[Any]], Awaitable[None]]

_ANSWER = Answer(201, b"{}", b"done")


async def _run(database: AsyncDatabase[Any], flow: Flow[Any]) -> Any:
    return await run_async(flow, TaskExecutor(database))


async def _count(statement: Statement) -> int:
    return await Batch((statement,))


async def requests(database: AsyncDatabase[Any]) -> None:
    """Requests with keys of every fate, at every isolation level that their transactions claim differently."""
    store = LockedStore()
    plain = Ask(b"k" * 16, b"k" * 32, "POST /payments", 30.0, 1e9)
    dated = plain._replace(digest=b"d" * 16, key_ms=1_700_000_000_000)
    for ask in (plain, dated, plain._replace(digest=b"s" * 16, isolation="serializable")):
        executor: TaskExecutor[Any] = TaskExecutor(database)
        claim = await run_async(store.claim(ask), executor)
        assert isinstance(claim, Run)
        assert isinstance(await _run(database, LockedStore().claim(ask)), InFlight)
        assert isinstance(await _run(database, store.claim(ask._replace(fingerprint=b"g" * 32))), Mismatch)
        assert (await _run(database, store.status(ask.digest))).state == "in_flight"
        assert await run_async(store.settle(ask, claim, _ANSWER, keep_rows=True), executor) is None
        assert (await _run(database, store.status(ask.digest))).state == "done"
        for other in (store, LockedStore()):  # one that remembers the key, and one that does not
            assert isinstance(await _run(database, other.claim(ask)), Replay)
    brief = Ask(b"b" * 16, b"b" * 32, "POST /payments", 30.0, 0.001)
    for _ in range(2):  # the second finds the first one's record expired
        executor = TaskExecutor(database)
        while not isinstance(claim := await run_async(LockedStore().claim(brief), executor), Run):
            pass  # for a millisecond
        assert await run_async(store.settle(brief, claim, _ANSWER, keep_rows=False), executor) is None


async def reaper(database: AsyncDatabase[Any]) -> None:
    """What is past its retention is deleted. There is one record of a request, and one work."""
    async with asyncio.timeout(PATIENCE_S):
        while await _run(database, LockedStore().reap(100)) != 1:
            pass  # for a millisecond
        while await _run(database, Works("postgres").reap(100)) != 1:
            pass


async def steps(database: AsyncDatabase[Any]) -> None:
    """Works that end, fail before and after their first step, and are gone on with."""
    once = AsyncOnefold(database, source="shop")

    async def step(*_: object) -> None: ...

    async with once.work("import") as work:
        await work.phase("first", step)
        await work.call(StepOptions("second", repeatable=False), step)
        await work.finish(step)
    await once._notifier.close()
    works = Works("postgres")
    for name in ("unbegun", "left", "left"):
        held = await _run(database, works.claim(WorkAsk(name.encode(), "work", name, b"", 60, 60)))
        if name == "left":
            record = works.sql.record(held, RecordedStep(0, "first", "call", "done", b""))
            await _run(database, with_connection(partial(_count, record)))
        # Not `give_back`, which goes on where it is refused.
        await _run(
            database, with_connection(partial(run_batch, Boundary.BEGIN, *works.sql.give_back(held), Boundary.COMMIT))
        )
    held = await _run(database, works.claim(WorkAsk(b"settled", "request", "settled", b"", 60, 60)))
    for statement in works.sql.forget(held):
        await _run(database, with_connection(partial(_count, statement)))
    held = await _run(database, works.claim(WorkAsk(b"parked", "work", "parked", b"", 60, 60)))
    await _run(database, works.park(held, "for a person"))


async def finished_works(database: AsyncDatabase[Any]) -> None:
    """One that is past its retention."""
    works = Works("postgres")
    held = await _run(database, works.claim(WorkAsk(b"finished", "work", "finished", b"", 60, 0.001)))
    record = works.sql.record(held, RecordedStep(0, "first", "phase", "done", b""))
    for statement in (record, *works.sql.finish(held, None, 0.001)):
        await _run(database, with_connection(partial(_count, statement)))


async def effects(database: AsyncDatabase[Any]) -> None:
    """Steps of sagas: one that applies and is undone, and one that comes after its compensation."""
    for flow, *rest in (
        (effect_rows.claim, "order-1:reserve"),
        (effect_rows.keep, "order-1:reserve", "{}"),
        (effect_rows.claim, "order-1:reserve"),
        (effect_rows.entomb, "order-1:reserve"),
        (effect_rows.entomb, "order-1:charge"),
        (effect_rows.claim, "order-1:charge"),
        (effect_rows.forget, 0, 10),
    ):
        await _run(database, with_connection(partial(flow, "postgres", *rest)))


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
    await _run(database, with_connection(lambda: _count(Statement(wakeup._NOTIFY, ("a sender",)))))


async def cancellations(database: AsyncDatabase[Any]) -> None:
    """Delayed events are taken back, in a transaction and by hand."""
    once = AsyncOnefold(database, source="shop")
    async with once.transaction() as tx:
        assert await tx.cancel("no such id") is False
    await once._notifier.close()
    assert await _run(database, status_report.cancel("postgres", ["no such id"])) == 0


async def clock(database: AsyncDatabase[Any]) -> None:
    """Recurring events are published when they are due, a millisecond after they were noted; their rule changes."""
    make_event = partial(Outbox(dialect="postgres", source="shop").make_event, "ticked", 1, key="all", headers={})
    for rule in ("former", "latter"):
        tick = Recurring(
            name="tick",
            rule=rule,
            after=lambda ms: ms + 1,
            make_event=lambda event_id, due_ms: make_event(event_id=event_id, time_ms=due_ms),
        )
        timetable = Timetable("postgres", "shop", [tick])
        fired: int | None = None
        while await _run(database, timetable.fire()) is None or fired is None:
            [seen] = await _run(database, schedules("postgres"))
            fired = seen.fired_ms


async def answer_cache(database: AsyncDatabase[Any]) -> None:
    """A shared cache learns which database its answers are of."""
    assert await _run(database, read_database_id("postgres"))


async def activity(database: AsyncDatabase[Any]) -> None:
    """Counts are written, again, read, and deleted when they are past their time."""
    sql = activity_statements.STATEMENTS["postgres"]
    for amount in (1, 2):
        rows = [
            activity_statements.Count(60, since_s, "onefold.duplicates", '["http"]', amount)
            for since_s in (0, int(time.time()))
        ]
        await _run(database, with_connection(partial(run_batch, sql.write("a", rows))))
    await _run(database, read_activity("postgres", last_hour(int(time.time()))))
    assert await _run(database, forget_activity("postgres")) == 1


async def relay(database: AsyncDatabase[Any], broker: LocalBroker | None = None) -> None:
    """Two relays, one of which dies; and what operators ask of an outbox. Without a broker they use the database."""
    broker = broker or LocalBroker(database)

    async def live(flow: Flow[Any]) -> Any:
        return await run_async(flow, BrokerExecutor(database, broker))

    dead = RelaySession("a", "postgres", RelayConfig(), random.random)
    await live(dead.enter())
    assert await live(with_connection(lambda: dead._claim(2)))
    assert await live(with_connection(lambda: _count(STATEMENTS["postgres"].renew("a", 0.0))))
    session = RelaySession("b", "postgres", RelayConfig(keep_published_s=1), random.random)
    await live(session.enter())
    assert (await live(session.renew_and_rebalance())).buckets == 64
    await live(make_due_claimable("postgres"))
    failures = 0
    while (sent := await live(session.tick())).claimed:
        failures += len(sent.failures)
    assert failures
    found = await live(status_report.report("postgres"))
    for stopped in found.stopped:
        if "StatementRefused" in (stopped.error or ""):
            raise StatementRefused(stopped.error)  # it would count as the broker's refusal of an event
    assert await live(status_report.retry("postgres", [found.stopped[0].id])) == 1
    await live(session.tick())
    assert await live(status_report.retry_topics("postgres", ["unheard"])) == 1
    plain = RelaySession("b", "postgres", RelayConfig(), random.random)
    await live(plain.tick())
    found = await live(status_report.report("postgres"))
    assert await live(status_report.discard("postgres", [found.stopped[0].id])) == 1
    assert await live(plain.tick())
    assert await live(forget_published("postgres", keep_s=0.0))
    await live(session.leave())


async def subscriber(database: AsyncDatabase[Any], *others: str) -> None:
    """A consumer's end of the local broker. `others` are topics besides the one that there may be messages of."""

    async def awaited(topics: Sequence[str]) -> None:
        await _run(database, status_report.retry_topics("postgres", topics))

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
        await _run(database, registry.register("postgres", "strict", process, ["t"]))
    await _run(database, registry.note_ended("postgres", "strict", "a"))
    standing = registry.judge(await _run(database, registry.list_processes("postgres", "strict")))
    await _run(database, registry.forget("postgres", "strict", standing.outdated))


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
        executor: TaskExecutor[Any] = TaskExecutor(database)
        found = await run_async(flow(OwnedTransaction(executor, outbox.new_buffer)), executor)
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
        await _run(database, failed_messages.next_due(inbox))
        for failed_message in await _run(database, failed_messages.take(inbox, 10, suspects=suspects)):
            await hand(lambda tx, failed_message=failed_message: inbox.run_failed(failed_message, tx))  # type: ignore[misc]
    await _run(database, with_connection(lambda: _count(inbox.sql.kill_suspects(order, "died", 0))))
    await _run(database, reap("postgres", consumer.name, consumer.retention_s))
    await _run(database, pausing.pauses("postgres", consumer.name))


async def _batches(database: AsyncDatabase[Any]) -> None:
    inbox = Inbox(
        Consumer(name="batch", topics=("t",), handler=lambda messages, tx: None, batch=2), "postgres", draw=lambda: 0.0
    )
    executor: TaskExecutor[Any] = TaskExecutor(database)
    given = [delivery(message(name)) for name in ("m1", "m2")]
    assert await run_async(inbox.handle_batch(given, OwnedTransaction(executor)), executor)


async def operators(database: AsyncDatabase[Any]) -> None:
    """What people do with dead letters. There are some, of the consumer `strict`."""
    chosen = redrive.Filter(consumer="strict", topic="order.placed", reason="m", since=datetime(2020, 1, 1, tzinfo=UTC))
    await _run(database, failed_messages.count_failed("postgres"))
    dead = [
        failed_message.id for failed_message in await _run(database, failed_messages.list_failed("postgres", "strict"))
    ]
    assert dead
    await _run(database, redrive.preview("postgres", chosen))
    job = await _run(database, redrive.redrive("postgres", chosen, actor="ada"))
    await _run(database, redrive.job_of("postgres", job.id))
    await _run(database, redrive.cancel("postgres", job.id, actor="ada"))
    await _run(database, discard_and_skip.skip("postgres", "strict", "m2", actor="ada"))
    forget = partial(forget_message, "postgres")
    await _run(
        database, discard_and_skip.discard("postgres", "strict", tuple(dead), actor="ada", force=True, forget=forget)
    )
    assert await _run(database, list_audit("postgres"))


async def administrators(database: AsyncDatabase[Any]) -> None:
    """The end of a consumer. There is one, `none`."""
    assert await _run(database, pausing.pause("postgres", "strict", "ada"))
    assert await _run(database, pausing.resume("postgres", "strict", "ada"))
    await _run(database, registry.list_processes("postgres"))
    assert "strict" in await _run(database, registry.list_consumers("postgres"))
    await _run(database, registry.end("postgres", "none", "ada", "by the test"))


async def keys(database: AsyncDatabase[Any]) -> None:
    """What people do with works that were begun and not finished, of which there are two, and with a stored answer."""
    for key in (await _run(database, stored_keys.list_keys("postgres"))).keys:
        names = (bytes.fromhex(key.id),)
        await _run(database, key_search.look_up("postgres", names))
        assert await _run(database, stored_keys.erase("postgres", names, actor="ada", why="refunded"))
        assert (await _run(database, key_search.look_up("postgres", names))).erased is not None
    first, second = await _run(database, unfinished_works.list_works("postgres"))
    work, _ = await _run(database, unfinished_works.show_work("postgres", first.id))
    await _run(database, unfinished_works.resume("postgres", work.id, actor="ada", result=b"\x007"))
    await _run(database, unfinished_works.resume("postgres", second.id, actor="ada", again=True))
    await _run(database, unfinished_works.release("postgres", work.id, actor="ada"))


async def left_works(database: AsyncDatabase[Any]) -> None:
    """Two works that were left in the middle of a call."""
    works = Works("postgres")
    for digest in (b"1" * 16, b"2" * 16):
        held = await _run(database, works.claim(WorkAsk(digest, "request", "POST /rides", b"f", 60.0, 60.0)))
        started = works.sql.record(held, RecordedStep(0, "charge", "call", "started", None))
        await _run(database, with_connection(partial(_count, started)))
        await _run(database, works.park(held, "outcome unknown: charge"))


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
    "finished works": finished_works,
    "reaper": reaper,
    "left works": left_works,
    "keys": keys,
    "steps": steps,
    "effects": effects,
    "cancellations": cancellations,
    "clock": clock,
    "events": events,
    "subscriber": subscriber,
    "relay": relay,
    "subscriber again": subscriber,
    "consumers": consumers,
    "operators": operators,
    "administrators": administrators,
    "client": client,
}
