"""What both faces share: how they are made, how routes and consumers are declared, and their workers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, TypeVar, Unpack

from onefold._kernel.effects import Flow
from onefold._kernel.events import Event, Listener, tell
from onefold._kernel.lanes import TaskLane, ThreadLane
from onefold._kernel.plain import PlainTransaction
from onefold._kernel.ports import AsyncDatabase, Broker, Database
from onefold._kernel.runners import run_async
from onefold._kernel.transaction import Transaction
from onefold.brokers.connect import BrokerGiven, broker_of
from onefold.errors import ConfigurationError
from onefold.face.tables import migrate_embedded
from onefold.http.install import Layer
from onefold.http.policy import Policy, Principal, Settings
from onefold.http.shedding import Shedding
from onefold.idempotency.sealing import Sealer
from onefold.inbox.model import Consumer, Order
from onefold.outbox.report import retry_topics
from onefold.outbox.write import Outbox
from onefold.worker.consumer import Consuming
from onefold.worker.relay import Relay
from onefold.worker.settings import ConsumerSettings, RelaySettings, chosen

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
D = TypeVar("D", Database[Any], AsyncDatabase[Any])


def _both(first: Listener | None, second: Listener | None) -> Listener | None:
    if first is None or second is None:
        return first or second

    def each(event: Event) -> None:
        tell(first, event)
        tell(second, event)

    return each


class Face(Generic[D]):
    """What both faces share: they are made alike, and their routes are declared alike."""

    def _open(self, database: object) -> D:
        raise NotImplementedError

    def _wakes(self) -> tuple[Callable[[], None], ...]:
        """What is called after events were committed, besides a relay in this process. Other relays poll."""
        return ()

    def __init__(
        self,
        database: object,
        *,
        source: str | None = None,
        broker: BrokerGiven | None = None,
        principal: Principal | None = None,
        defaults: Settings | None = None,
        sealer: Sealer | None = None,
        listener: Listener | None = None,
        pages: str | None = "/onefold",
        development: bool = False,
        event_bytes_max: int = 512 * 1024,
        shedding: Shedding | None = None,
    ) -> None:
        migrate_embedded(database)
        self._database: D = self._open(database)
        self._outbox = Outbox(dialect=self._database.dialect, source=source, event_bytes_max=event_bytes_max)
        self._outbox.committed.extend(self._wakes())
        # SQLite's one write lock is taken by whoever touches the connection, not by everyone who might.
        self._plain = PlainTransaction(lazily=self._database.dialect == "sqlite")
        self._broker = broker
        self._consumers: list[Consumer] = []
        self._layer = Layer(
            dialect=self._database.dialect,
            plain=self._plain,
            outbox=self._outbox.outgoing,
            principal=principal,
            defaults=defaults,
            sealer=sealer,
            listener=listener,
            pages=pages,
            development=development,
            shedding=shedding,
        )

    def idempotent(self, **settings: Unpack[Settings]) -> Callable[[F], F]:
        """Mark a handler: its requests happen once. Goes below the framework's own route decorator."""
        return self._layer.marker(settings)

    def policy(self, **settings: Unpack[Settings]) -> Policy:
        """The policy the same settings give, for routes that are written down instead of decorated."""
        return self._layer.policy(settings)

    def consumer(
        self, name: str, *, topic: str | Sequence[str], order: Order = "none", **settings: Unpack[ConsumerSettings]
    ) -> Callable[[F], F]:
        """Mark the handler of a consumer: `handler(message, tx)` or `handler(message)`, which handles each message of
        the topic (or topics) once. `name` is its identity, at the broker and in the ledger."""
        topics = (topic,) if isinstance(topic, str) else tuple(topic)

        def mark(function: F) -> F:
            self._consumers.append(Consumer(name=name, topics=topics, handler=function, order=order, **settings))
            return function

        return mark

    @property
    def consumers(self) -> tuple[Consumer, ...]:
        """The consumers marked so far."""
        return tuple(self._consumers)

    @property
    def broker(self) -> BrokerGiven | None:
        """The broker as it was given."""
        return self._broker

    async def ask(self, question: Callable[[str], Flow[T]]) -> T:
        """Run one of onefold's flows, a function of the dialect, over this database: `await once.ask(report)`."""
        raise NotImplementedError

    async def relay(
        self, stop: asyncio.Event, *, listener: Listener | None = None, **settings: Unpack[RelaySettings]
    ) -> None:
        """Publish what is in the outbox until told to stop. `listener` hears of it beside the application's own."""
        database = self._for_workers()
        heard_by = _both(self._layer.listener, listener)
        relay = Relay(database, self._broker_for(database), listener=heard_by, **settings)
        self._outbox.committed.append(relay.signal.set)
        try:
            await relay.run(stop)
        finally:
            self._outbox.committed.remove(relay.signal.set)

    async def consume(
        self,
        stop: asyncio.Event,
        *,
        only: Collection[str] = (),
        begun: Callable[[Consuming], object] | None = None,
        listener: Listener | None = None,
    ) -> None:
        """Run the consumers (or only those named) until told to stop. `begun` gets them, to ask whether they live;
        `listener` hears of it beside the application's own."""
        database = self._for_workers()
        consuming = Consuming(
            database,
            self._broker_for(database),
            chosen(self._consumers, only),
            transaction=self._new_transaction,
            listener=_both(self._layer.listener, listener),
        )
        if begun is not None:
            begun(consuming)
        await consuming.run(stop)

    def _new_transaction(self, lane: ThreadLane[Any] | TaskLane[Any]) -> Transaction[Any]:
        return Transaction(lane, self._outbox.outgoing)

    def _for_workers(self) -> AsyncDatabase[Any]:
        raise NotImplementedError

    def _broker_for(self, database: AsyncDatabase[Any]) -> Broker:
        given = self._broker
        if given is None:
            if database.dialect != "sqlite":
                raise ConfigurationError(
                    "there is no broker: give Onefold one, for example broker='nats://localhost:4222', or "
                    "broker='local' to have the database itself deliver"
                )
            given = "local"

        async def awaited(topics: Sequence[str]) -> None:
            await run_async(retry_topics(database.dialect, topics), TaskLane(database))

        return broker_of(given, database, awaited)
