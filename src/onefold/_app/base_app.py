"""What both apps share: how they are made, how routes and consumers are declared, and their workers."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Never, TypeVar, Unpack

from onefold._app.described import Described, describe_database, list_topics, name_of
from onefold._app.observing import ActivityHistory, writes_activity
from onefold._app.recurring_events import RecurringEvents
from onefold._app.route_marks import RouteMarks
from onefold._app.work_blocks import WorkBlocks
from onefold._http.guarded_request import current_request
from onefold._http.install import Layer
from onefold._http.reaper import EVERY_S
from onefold._http.route_policy import SETTINGS_OF_ROUTES, Authorize, Principal, Settings
from onefold._idempotency.encryption import Sealer
from onefold._kernel.arguments import named_arguments
from onefold._kernel.current_transaction import current_transaction
from onefold._kernel.effects import Flow, Isolation, check_isolation
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.messages import Delivery
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.plain_transaction import PlainTransaction
from onefold._kernel.ports import AsyncDatabase, Broker, Database, Sessions
from onefold._kernel.runners import run_async
from onefold._kernel.telemetry import Listener, Listeners, are_listeners, join
from onefold._kernel.tracing import tracer_of
from onefold._kernel.typos import refuse_unknown
from onefold._kernel.wakeup_signals import DELIVERY_CHANNEL, OUTBOX_CHANNEL, Wakeups
from onefold._natural import natural_writes
from onefold._outbox.write import Outbox
from onefold._policy.quota import Quota
from onefold._worker.doorbell import doorbell_of
from onefold._worker.ledger_reaper import LedgerReaper
from onefold._worker.wakeup import Notifier, ThreadNotifier
from onefold._worker.worker_settings import ConsumerSettings, RelaySettings, select_consumers
from onefold.brokers._adapters import BrokerGiven, broker_of, check_broker, check_patterns
from onefold.db._drivers import dialect_of
from onefold.errors import ConfigurationError, ProgrammerError

# What only some applications need is imported when they first need it: by methods.
if TYPE_CHECKING:
    from onefold._http.shedding import Shedding
    from onefold._idempotency.cache.answer_cache import CacheSettings
    from onefold._inbox.consumer import Consumer, Order
    from onefold._inbox.handling_flows import HandlingFlows
    from onefold._worker.consumer_runner import ConsumerRunner
    from onefold._worker.embedded import Work
    from onefold._worker.relay_loop import Relay

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
_CONSUMER_SETTINGS = ("topic", "order", *ConsumerSettings.__annotations__)
D = TypeVar("D", Database[Any], AsyncDatabase[Any])

_DATABASES = "a SQLite file ('app.db'), a URL (postgresql://...), or a pool or an engine of your driver"


def _migrate_embedded(database: object) -> None:
    """A SQLite file given by its path is ours to prepare. Servers are migrated on purpose: `onefold migrate`."""
    if isinstance(database, str | Path) and dialect_of(database) == "sqlite":
        from onefold._app.migrations import migrate_embedded

        migrate_embedded(database)


class BaseOnefold(RouteMarks, RecurringEvents, Described, WorkBlocks, ActivityHistory, Generic[D]):
    """What both apps share: they are made alike, and their routes are declared alike."""

    #: Whether handlers are awaited.
    _asynchronous: ClassVar[bool]

    _notifier: Notifier | ThreadNotifier

    def _open(self, database: object) -> D:
        raise NotImplementedError

    def _make_wake(self) -> Callable[[], None] | None:
        """The function that notifies relays of other processes of committed events. None: they poll."""
        return self._notifier.notify if self._database.dialect == "postgres" else self._make_ring(OUTBOX_CHANNEL)

    def _make_ring(self, channel: str) -> Callable[[], None] | None:
        """The function that wakes listeners to a channel of the same SQLite file, in other processes. None: it is no
        file."""
        doorbell, notifier = doorbell_of(self._database, channel), self._notifier
        return None if doorbell is None else lambda: doorbell.ring(notifier.sender)

    @named_arguments(hints={"database": _DATABASES})
    def __init__(
        self,
        database: object,
        *,
        source: str | None = None,
        broker: BrokerGiven | None = None,
        session_factory: Callable[[], Any] | None = None,
        principal: Principal | None = None,
        authorize: Authorize | None = None,
        defaults: Settings | None = None,
        isolation: Isolation | None = None,
        sealer: Sealer | None = None,
        listener: Listeners | None = None,
        pages: str | None = "/onefold",
        development: bool = False,
        event_bytes_max: int = 512 * 1024,
        shedding: Shedding | None = None,
        quota: Quota | None = None,
        cache: CacheSettings | None = None,
        earlier_records: bool | None = None,
        unsealed_answers: bool = False,
        reap_every_s: float | None = EVERY_S,
        activity: bool = False,
        **unknown: Never,
    ) -> None:
        """`quota`: of one principal, on all routes together that have none of their own. `cache`: committed answers,
        before the database. `earlier_records`: find keys of onefold 0.1, and of before a route was given its
        `operation`; None: those of 0.1 only if it may have used this database. `unsealed_answers`: read answers from
        before there was a `sealer`, for one retention: who can write the table can write them. `reap_every_s`: how
        often an ASGI application deletes what expired; None: never. `activity`: counts per minute, for the console."""
        self._check_arguments(unknown, broker, listener)
        _migrate_embedded(database)
        self._database: D = self._open(database)
        dialect, tracer = self._database.dialect, tracer_of(listener)
        self._outbox = Outbox(dialect=dialect, source=source, event_bytes_max=event_bytes_max, tracer=tracer)
        self._prepare(session_factory, isolation, broker, activity)
        self._description: str = describe_database(database, source)
        self._layer = Layer(
            name=repr(self),
            dialect=self._database.dialect,
            plain=self._plain,
            make_stepped=functools.partial(self._make_stepped, sealer, unsealed_answers),
            outbox=self._outbox.new_buffer,
            sessions=self._sessions,
            principal=principal,
            authorize=authorize,
            defaults=defaults if isolation is None else {"isolation": isolation, **(defaults or {})},
            quota=quota,
            cache=cache,
            sealer=sealer,
            listener=join(listener, self._activity),
            pages=pages,
            development=development,
            asynchronous=self._asynchronous,
            shedding=shedding,
            earlier_records=earlier_records,
            unsealed_answers=unsealed_answers,
            reap_every_s=reap_every_s,
        )
        self._end_making(development)

    def _check_arguments(self, unknown: Collection[str], broker: object, listener: object) -> None:
        """Refuse arguments that can only be mistakes, at construction."""
        parameters = inspect.signature(BaseOnefold).parameters.values()
        names = [parameter.name for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]
        refuse_unknown(unknown, names, type(self).__name__, SETTINGS_OF_ROUTES)
        check_broker(broker)
        if not are_listeners(listener):
            raise ConfigurationError(f"listener={listener!r} must be a function of one event, a list of them, or None")

    def _prepare(
        self, factory: Callable[[], Any] | None, isolation: Isolation | None, broker: BrokerGiven | None, activity: bool
    ) -> None:
        # SQLite's one write lock is taken by handlers that touch the connection, not by all that might.
        self._plain = PlainTransaction(lazily=self._database.dialect == "sqlite")
        self._sessions, self._isolation = self._sessions_of(factory), check_isolation(isolation)
        if (wake := self._make_wake()) is not None:
            self._outbox.committed.append(wake)
        self._consumers, self._recurring, self._published = [], [], []
        self._broker, self._wakeups, self._natural = broker, Wakeups(), natural_writes()
        self._ledger = LedgerReaper(self._database.dialect)
        self._begin_activity(activity)

    def _end_making(self, development: bool) -> None:
        self._layer.reaping.at_shutdown = self._write_activity
        self._development = development
        if development and (guard := getattr(self._database, "guard", None)) is not None:
            guard(self._layer.operation_inside)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._description})"

    @named_arguments("once.consumer")
    def consumer(
        self, name: str, *, topic: str | Sequence[str], order: Order = "none", **settings: Unpack[ConsumerSettings]
    ) -> Callable[[F], F]:
        """Mark the handler of a consumer, which handles each message of the topic (or topics) once: `handler(message)`,
        `handler(message, tx)` or, with a second parameter of a SQLAlchemy session's type, `handler(message, session)`.
        Its first parameter may be annotated with a type of data (`order: Order`, a pydantic model), and others with
        `Annotated[T, Depends(function)]`. `name` is its identity, at the broker and in the ledger."""
        from onefold._inbox.consumer import Consumer
        from onefold._worker.pydantic_payloads import PydanticPayload

        refuse_unknown(settings, _CONSUMER_SETTINGS, f"consumer {name!r}")
        topics = list_topics(topic)
        given: ConsumerSettings = {"isolation": self._isolation, **settings}

        def mark(function: F) -> F:
            consumer = Consumer(
                name=name, topics=topics, handler=function, order=order, payload_of=PydanticPayload, **given
            )
            for other in self._consumers:
                if other.name == name:
                    raise ConfigurationError(
                        f"two consumers are named {name!r}, {name_of(other.handler)} and {name_of(function)}: "
                        "they would share their messages. Give each a name of its own, or one handler both topics"
                    )
            self._check_session(consumer)
            self._check_handler(consumer)
            check_patterns(self._broker, name, topics)
            self._consumers.append(consumer)
            return function

        return mark

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers marked so far."""
        return tuple(self._consumers)

    @property
    def broker(self) -> BrokerGiven | None:
        """The broker, as passed to the constructor."""
        return self._broker

    @writes_activity
    async def relay(
        self,
        stop: asyncio.Event,
        *,
        begun: Callable[[Relay], object] | None = None,
        listener: Listener | None = None,
        **settings: Unpack[RelaySettings],
    ) -> None:
        """Publish the outbox until `stop` is set. `begun` gets the relay, for its health; `listener` gets its events
        beside the application's own."""
        from onefold._worker.relay_loop import Relay

        database = self._for_workers()
        listeners = join(self._layer.listener, listener)
        timetable = self._timetable()
        sender, broker = self._notifier.sender, self._broker_for(database)
        relay = Relay(database, broker, sender=sender, listener=listeners, timetable=timetable, **settings)
        self._outbox.committed.append(relay.signal.set)
        if begun is not None:
            begun(relay)
        try:
            await relay.run(stop)
        finally:
            self._outbox.committed.remove(relay.signal.set)

    @writes_activity
    async def consume(
        self,
        stop: asyncio.Event,
        *,
        only: Collection[str] = (),
        begun: Callable[[ConsumerRunner], object] | None = None,
        subscribed: Callable[[], None] | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Run the consumers (or only those named) until `stop` is set. `begun` gets them, for their health;
        `subscribed` is called when they receive all that is published from then on; `listener` gets their events beside
        the application's own."""
        from onefold._worker.consumer_runner import ConsumerRunner
        from onefold._worker.notify_listener import listening
        from onefold.brokers.local import LocalBroker

        database = self._for_workers()
        broker = self._broker_for(database)
        consuming = ConsumerRunner(
            database,
            broker,
            select_consumers(self._consumers, only),
            transaction=self._new_transaction,
            steps=self._message_steps(),
            listener=join(self._layer.listener, listener),
            wakeups=broker.wakeups if isinstance(broker, LocalBroker) else None,
        )
        if begun is not None:
            begun(consuming)
        if isinstance(broker, LocalBroker):
            wakeups, sender = broker.wakeups, broker.wakeups.sender
            async with listening(database, wakeups.set, channel=DELIVERY_CHANNEL, sender=sender, wakeups=wakeups):
                await consuming.run(stop, subscribed)
        else:
            await consuming.run(stop, subscribed)

    def _consuming(self, only: Collection[str]) -> Work:
        select_consumers(self._consumers, only)
        return lambda stop, begun: self.consume(stop, only=only, subscribed=begun)

    def _check_outside(self, what: str) -> None:
        """A handler has its transaction. A second one would commit apart from it: kept though the handler fails, and
        again when it is repeated."""
        guarded, tx = current_request.get(), current_transaction.get()
        tx = guarded.tx if guarded is not None and tx is None else tx
        if tx is not None and tx.is_open_for(self._outbox.new_buffer):
            handler = "a consumer's handler or a phase" if guarded is None else f"the handler of {guarded.operation}"
            raise ProgrammerError(
                f"{what} was called inside {handler}: what is written there would commit apart from the handler's "
                "own transaction. Use that one: tx, which a consumer gets as its second parameter, FastAPI as a "
                "parameter of type Tx (onefold.fastapi), and Flask from current_transaction() "
                "(onefold.flask); tx.savepoint() is for a part that may fail alone"
            )

    def _handling_flows(
        self,
        consumer: str,
        message_id: str,
        source: str | None,
        lease_s: float,
        dead_letter_on: tuple[type[Exception], ...],
        delivery: Delivery | None,
    ) -> HandlingFlows:
        from onefold._inbox.handling_flows import HandlingFlows

        return HandlingFlows(
            self._database.dialect,
            consumer,
            message_id,
            source=source,
            lease_s=lease_s,
            isolation=self._isolation,
            dead_letter_on=dead_letter_on,
            delivery=delivery,
            listener=self._layer.listener,
        )

    def _ledger_chore(self, consumer: str, retention_s: float) -> Flow[None] | None:
        """A flow that deletes expired ledger rows, if it is due. For a consumer with a worker, that does it."""
        if any(declared.name == consumer for declared in self._consumers):
            return None
        return self._ledger.due(consumer, retention_s, self._layer.listener)

    def _new_transaction(self, executor: ThreadExecutor[Any] | TaskExecutor[Any]) -> OwnedTransaction[Any]:
        tx = OwnedTransaction(executor, self._outbox.new_buffer, self._sessions, self._natural)
        tx.development = self._development
        return tx

    def _check_session(self, consumer: Consumer) -> None:
        has = None if self._sessions is None else self._sessions.kind
        if (session_type := consumer.signature.session) not in (None, has):
            offers = f"it has sessions of type {has}" if has else "its database is not a SQLAlchemy engine"
            raise ConfigurationError(
                f"the handler of consumer {consumer.name!r} takes a session of type {session_type}, which this "
                f"{type(self).__name__} cannot give: {offers}"
            )

    def _sessions_of(self, factory: Callable[[], Any] | None) -> Sessions | None:
        make: Callable[[Any], Sessions] | None = getattr(self._database, "sessions", None)
        if make is None and factory is not None:
            raise ConfigurationError(
                "session_factory is given, but the database is not a SQLAlchemy engine, so that sessions cannot share "
                "its transactions: pass the engine that the sessions are bound to instead"
            )
        return None if make is None else make(factory)

    def _for_workers(self) -> AsyncDatabase[Any]:
        raise NotImplementedError

    def _broker_for(self, database: AsyncDatabase[Any]) -> Broker:
        broker = self._broker
        if broker is None:
            if database.dialect != "sqlite":
                raise ConfigurationError(
                    "there is no broker: give Onefold one, for example broker='nats://localhost:4222', or "
                    "broker='local' to have the database itself deliver"
                )
            broker = "local"

        async def retry_awaited(topics: Sequence[str]) -> None:
            from onefold._outbox.status_report import retry_topics

            await run_async(retry_topics(database.dialect, topics), TaskExecutor(database))

        self._wakeups.sender = self._notifier.sender
        if (ring := self._make_ring(DELIVERY_CHANNEL)) is not None:
            self._wakeups.notify_others = ring
        return broker_of(broker, database, retry_awaited, self._wakeups)


async def run_flow(once: BaseOnefold[Any], make_flow: Callable[[str], Flow[T]]) -> T:
    """Run a flow, made by a function of the dialect, over an application's database: `await run_flow(once, report)`."""
    database = once._for_workers()
    return await run_async(make_flow(database.dialect), TaskExecutor(database))


async def with_broker(once: BaseOnefold[Any], work: Callable[[AsyncDatabase[Any], Broker], Awaitable[T]]) -> T:
    """Do something with an application's database and its broker, which is open for as long."""
    database = once._for_workers()
    broker = once._broker_for(database)
    try:
        await broker.open()
        return await work(database, broker)
    finally:
        await broker.close()
