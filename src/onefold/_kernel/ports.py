"""What the kernel needs from the world, as Protocols: a database, its connections, an executor for one request, what
joins its transaction (events, sessions), a broker.

Each port comes in two colours with the same verbs. A driver knows these verbs and no feature.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable
from uuid import UUID

from onefold._kernel.effects import BatchItem, Flow, HandlerStatement, NamedRows, Row, Statement

if TYPE_CHECKING:
    from onefold._kernel.messages import Confirm, Delivery, Message
    from onefold._kernel.pending_work import PendingWork
    from onefold._kernel.table_writes import WritableTable
    from onefold._kernel.transaction import Transaction

H_co = TypeVar("H_co", covariant=True)

#: The usual cause of a pool that has nothing left to give, and the way out.
TWO_CONNECTIONS = (
    "Usual cause: a handler or a dependency (authentication, for example) takes a second connection of the same pool "
    "while its request holds one, and such requests wait for each other. Have it use the request's own "
    "(tx.connection, tx.session(), RequestSession); else make the pool larger than the number of requests at a time"
)


class Connection(Protocol[H_co]):
    """One checked-out connection. `batch` and `fetch` raise onefold's errors, never a vendor's.

    Outside a transaction every statement, also one that is fetched, is a transaction of its own: what it wrote is
    committed when its answer is there, and when it fails nothing of it is left. Neither leaves a transaction open.
    """

    @property
    def handle(self) -> H_co:
        """The driver's own connection, inside the open transaction: what user code works with."""
        ...

    def batch(self, items: Sequence[BatchItem]) -> int:
        """Execute all `items` in their order, in as few round trips as there can be, and stop at the first error. How
        many rows the last of them changed."""
        ...

    def fetch(self, statement: Statement) -> list[Row]:
        """The rows of a `statement`."""
        ...

    def release(self) -> None:
        """Give it back, in no transaction: what was not committed is rolled back. It is called once. Where that fails,
        it is closed here if the pool is known not to have it: it is not discarded after this has raised."""
        ...

    def discard(self) -> None:
        """Close it, and let the next caller have another: its state is not known."""
        ...


class AsyncConnection(Protocol[H_co]):
    """`Connection` for asyncio."""

    @property
    def handle(self) -> H_co:
        """The driver's own connection, inside the open transaction: what user code works with."""
        ...

    async def batch(self, items: Sequence[BatchItem]) -> int:
        """Execute all `items` in their order, in as few round trips as there can be, and stop at the first error. How
        many rows the last of them changed."""
        ...

    async def fetch(self, statement: Statement) -> list[Row]:
        """The rows of a `statement`."""
        ...

    async def release(self) -> None:
        """Give it back, in no transaction: what was not committed is rolled back. It is called once. Where that fails,
        it is closed here if the pool is known not to have it: it is not discarded after this has raised."""
        ...

    async def discard(self) -> None:
        """Close it, and let the next caller have another: its state is not known."""
        ...


@runtime_checkable
class Queryable(Protocol):
    """A connection that can execute for the handler what `tx.insert_once` and its siblings need. Outside of the ports
    above: a driver of the user's own may do without."""

    def query(self, statement: HandlerStatement) -> Any:
        """The NamedRows, on asyncio to be awaited: see `Query` in `effects.py`."""
        ...


class Database(Protocol[H_co]):
    """Where connections come from. `dialect` names the statement set that features use: postgres or sqlite."""

    @property
    def dialect(self) -> str:
        """postgres, or sqlite."""
        ...

    def acquire(self) -> Connection[H_co]:
        """A connection, in no transaction. Raises PoolExhausted where none is free in time, StoreUnavailable."""
        ...

    def close(self) -> None:
        """Close what was opened here. A pool or an engine that was given stays open."""
        ...


class AsyncDatabase(Protocol[H_co]):
    """`Database` for asyncio."""

    @property
    def dialect(self) -> str:
        """postgres, or sqlite."""
        ...

    async def acquire(self) -> AsyncConnection[H_co]:
        """A connection, in no transaction. Raises PoolExhausted where none is free in time, StoreUnavailable."""
        ...

    async def close(self) -> None:
        """Close what was opened here. A pool or an engine that was given stays open."""
        ...


class Executor(Protocol):
    """One request's way to the world: at most one connection at a time, plus waiting, time and user calls. Each verb
    answers the effect of its name (see `effects.py`)."""

    def batch(self, items: Sequence[BatchItem]) -> int: ...
    def fetch(self, statement: Statement) -> list[Row]: ...
    def query(self, statement: HandlerStatement) -> NamedRows: ...
    def acquire(self) -> None: ...
    def release(self) -> None: ...
    def release_committed(self) -> None: ...
    def discard(self) -> None: ...
    def sleep(self, seconds: float) -> None: ...
    def now(self) -> float: ...
    def call(self, function: Callable[[], Any]) -> Any: ...
    def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]: ...
    def abandon(self) -> None: ...


class AsyncExecutor(Protocol):
    """`Executor` for asyncio."""

    async def batch(self, items: Sequence[BatchItem]) -> int: ...
    async def fetch(self, statement: Statement) -> list[Row]: ...
    async def query(self, statement: HandlerStatement) -> NamedRows: ...
    async def acquire(self) -> None: ...
    async def release(self) -> None: ...
    async def release_committed(self) -> None: ...
    async def discard(self) -> None: ...
    async def sleep(self, seconds: float) -> None: ...
    async def now(self) -> float: ...
    async def call(self, function: Callable[[], Any]) -> Any: ...
    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]: ...
    def abandon(self) -> None: ...


class Outgoing(Protocol):
    """The events of one transaction, until COMMIT. See `_outbox/write.py`."""

    def __len__(self) -> int: ...
    def add(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | UUID | None,
        headers: Mapping[str, str],
        content_type: str | None,
        not_before: datetime | None,
        request: tuple[bytes, str] | None,
    ) -> str: ...
    def cancel(self, event_id: str) -> bool | tuple[BatchItem, ...]: ...
    def cut(self, length: int) -> None: ...
    def flush(self) -> tuple[Statement, ...]: ...
    def announce(self) -> None: ...


class Joined(Protocol):
    """What works inside the transaction and must be notified of its end: a session.

    What its methods return is awaited where it can be.
    """

    def write(self) -> Any:
        """The handler has returned: write what is held back now, where the handler ran. Whatever comes next may close
        it. A failure is raised by `before_end`, where the answer still has to be kept."""
        ...

    def begin_part(self) -> Any:
        """A savepoint is about to be set: write what is held back in front of it. The answer is for `end_part`."""
        ...

    def end_part(self, part: Any, *, keep: bool) -> Any:
        """The savepoint is about to be released, or rolled back: write, or forget, what came since. None for the part:
        it joined inside of it."""
        ...

    def before_end(self, keep_rows: bool) -> Any:
        """Write what is still held back, or let go of it. Called again with False if the end fails."""
        ...

    def after_end(self, kept: bool | None) -> Any:
        """The transaction is over and its connection gone. None: it is not known whether the rows were kept."""
        ...


class Sessions(Protocol):
    """The application's sessions. See `db/sqlalchemy/_sessions.py`."""

    @property
    def kind(self) -> str:
        """Session or AsyncSession."""
        ...

    def join(self, tx: Transaction[Any], pending: PendingWork, blocking: Callable[[Callable[[], Any]], Any]) -> Any:
        """A session inside the transaction, for as long as that lasts. `blocking` calls what may block."""
        ...

    def table(self, tx: Transaction[Any], given: object, blocking: Callable[[Callable[[], Any]], Any]) -> WritableTable:
        """A Table, or a mapped class, for writes in the transaction. Raises ProgrammerError where it is neither."""
        ...

    def own(self) -> Any:
        """A session with a transaction of its own, where there is none to join. Its user commits, and closes it."""
        ...


class SpeaksDialect(Protocol):
    """What knows the dialect of its database."""

    @property
    def dialect(self) -> str: ...


class NaturalWrites(Protocol):
    """Makes flows of the natural writes of a transaction: see `_natural/writes.py`. Wrong arguments are refused by the
    call itself, before anything is executed."""

    @property
    def tables(self) -> Mapping[str, WritableTable]:
        """The tables that were used before."""
        ...

    def table(self, name: str, executor: SpeaksDialect) -> WritableTable:
        """The table of this name, written in SQL."""
        ...

    def insert_once(
        self, table: WritableTable, values: Mapping[str, Any], *,
        on: str | Sequence[str], compare: bool | str | Sequence[str], among: Mapping[str, Any] | None,
    ) -> Callable[[], Flow[Any]]: ...  # fmt: skip
    def transition(
        self, table: WritableTable, *, where: Mapping[str, Any], state: str, come_from: object, to: object,
        version: str | None, expected_version: int | None, also: Mapping[str, Any] | None,
    ) -> Callable[[], Flow[Any]]: ...  # fmt: skip
    def ledger_entry(
        self, table: WritableTable, values: Mapping[str, Any], *,
        on: str | Sequence[str], compare: bool | str | Sequence[str], balance: WritableTable | None,
        where: Mapping[str, Any] | None, add: Mapping[str, Any] | None, executor: SpeaksDialect,
        in_part: Callable[[Callable[[], Flow[Any]]], Flow[Any]],
        or_nothing: Callable[[Callable[[], Flow[Any]]], Flow[Any]],
    ) -> Callable[[], Flow[Any]]: ...  # fmt: skip
    def lock_row(
        self, table: WritableTable, *, where: Mapping[str, Any], executor: SpeaksDialect, part: Callable[[], int]
    ) -> Callable[[], Flow[Any]]: ...
    def exclusive(
        self, executor: SpeaksDialect, parts: tuple[Any, ...], *, wait_s: float, part: Callable[[], int], writing: bool
    ) -> Callable[[], Flow[None]]: ...


class Sealer(Protocol):
    """Whatever can close a value for storage and open it again. `context` must match on both sides."""

    def seal(self, plain: bytes, context: bytes) -> bytes: ...
    def unseal(self, sealed: bytes, context: bytes) -> bytes: ...


class Subscription(Protocol):
    """A consumer's end of a broker. What was received and neither acknowledged nor given back is given back by
    `close`, or by the broker when the process dies."""

    async def receive(self, limit: int, wait_s: float) -> Sequence[Delivery]:
        """At most `limit` deliveries, in the broker's order; none after `wait_s`. Raises BrokerUnavailable."""
        ...

    async def ack(self, deliveries: Sequence[Delivery]) -> None:
        """These `deliveries` are done with: the broker may forget them for this consumer."""
        ...

    async def give_back(self, deliveries: Sequence[Delivery]) -> None:
        """These `deliveries` were not handled: the broker delivers them again, to the next process that asks."""
        ...

    async def keep(self, deliveries: Sequence[Delivery]) -> None:
        """These `deliveries` are still being worked on: do not deliver them again yet."""
        ...

    async def close(self) -> None:
        """Receive nothing more. What is in hand and neither acknowledged nor given back is given back."""
        ...


class Broker(Protocol):
    """Where events go, and where consumers get them. Asyncio only: brokers are spoken to by workers."""

    @property
    def keep_every_s(self) -> float:
        """How often `keep` must be called for what is being worked on."""
        ...

    @property
    def redelivery_s(self) -> float:
        """For how long after its publication the broker may deliver a message again."""
        ...

    async def open(self) -> None:
        """Connect. Raises ConfigurationError where a setting could lose messages, BrokerUnavailable."""
        ...

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        """Send all `messages` at once and wait for every confirm; one answer per message, in order. The order in which
        messages of one call arrive is not promised: who needs it calls twice."""
        ...

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> Subscription:
        """Processes that subscribe under one `consumer` name share its messages; each name gets every message of its
        `topics`. Those that the name has had before stay: see `ManagesSubscriptions`."""
        ...

    async def close(self) -> None:
        """Disconnect. What was received and not acknowledged is given out again."""
        ...


@runtime_checkable
class MatchesPatterns(Protocol):
    """A broker whose consumers may subscribe to patterns of topics: see `_kernel/topics.py` for what they stand for. A
    message that several patterns of a consumer stand for comes to it once, and with the topic that it was sent to."""

    @property
    def matches_patterns(self) -> bool:
        """Whether its consumers may do so."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionSeen:
    """What a broker keeps for a consumer, whether a process of it is running or not."""

    consumer: str
    """The name that its processes subscribe under."""
    topics: tuple[str, ...] | None
    """What it is subscribed to. None where the broker cannot list them."""
    waiting: int | None
    """Messages that it has not acknowledged. None where the broker cannot count them."""
    attached: int | None = None
    """How many processes are connected to it now. None where the broker does not report that."""


@runtime_checkable
class ManagesSubscriptions(Protocol):
    """A broker that keeps something for a consumer while no process of it runs, and has calls to stop that. Kafka
    does not: a group gets the topics that its members ask for, and the topic's retention ends the rest."""

    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        """End the subscription of the `consumer` to these `topics`: it gets nothing that is published from now on, nor
        what waits there, where the broker can select that by topic. Topics that it does not have are passed over."""
        ...

    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        """All subscriptions, where the broker can list them; else those of the consumers with these `names`."""
        ...

    async def remove(self, consumer: str) -> int | None:
        """End a `consumer`: drop what waits for it, and keep nothing more for it. How many messages waited; None: the
        broker keeps nothing for it. Raises ConsumerActive where processes of it are connected."""
        ...
