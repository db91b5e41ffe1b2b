"""I/O as data: what a flow may ask for, and nothing else.

A flow is an `async def` that awaits effects only. It never sees a loop, a driver or a clock, so the same
lines serve threads and asyncio, a test can answer them from a script, and a crash can be put before and
after every one of them. There is no concurrency inside a flow.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold._kernel.messages import Confirm, Message

    Confirms: TypeAlias = Sequence[Confirm]

T = TypeVar("T")

Value: TypeAlias = int | str | bytes | None
Row: TypeAlias = tuple[Any, ...]
Flow: TypeAlias = Coroutine[Any, Any, T]


class Statement(NamedTuple):
    """One SQL statement (`sql`) in its dialect's own placeholders ($1 for Postgres, ?1 for SQLite) and its `values`."""

    sql: str
    values: tuple[Value, ...] = ()
    brief: bool = False
    """A read of one row by its key: a driver that has a thread for waiting may do it where it is."""


class HandlerStatement(NamedTuple):
    """A statement for the user's own tables, in the same placeholders. Its values are whatever the driver takes, and
    what it refuses it refuses as if the handler had executed it."""

    sql: str
    values: tuple[Any, ...] = ()


class NamedRows(NamedTuple):
    """What a statement of the handler's came back with. The names may be missing where there is no row."""

    columns: tuple[str, ...]
    rows: list[Row]


class Boundary(Enum):
    """The edges of a transaction. They may stand between statements of a batch."""

    __hash__ = object.__hash__  # an Enum's own is written in Python, and drivers look batches up by their items

    #: A transaction of our own statements: READ COMMITTED whatever the default, for flows that need a snapshot per
    #: statement.
    BEGIN = "begin"
    #: A transaction with the user's statements, at the level that the engine, the session, the role or the database has
    #: by default: never lowered. SQLite has one level, which is the strictest.
    BEGIN_AS_CHOSEN = "begin as chosen"
    BEGIN_REPEATABLE_READ = "begin repeatable read"
    BEGIN_SERIALIZABLE = "begin serializable"
    #: A transaction whose loss in a power cut is harmless (a lease), and that its flow can try again: drivers may
    #: spare the disk flush, and may give up soon (StoreBusy) on a lock that is held elsewhere.
    BEGIN_LIGHT = "begin light"
    COMMIT = "commit"
    ROLLBACK = "rollback"
    #: The savepoint of the code that began the transaction. It has one name and nests: the last two act on the
    #: innermost.
    SAVEPOINT = "savepoint"
    ROLLBACK_TO_SAVEPOINT = "rollback to savepoint"
    RELEASE_SAVEPOINT = "release savepoint"


class Nested(NamedTuple):
    """A boundary of one of the handler's savepoints. Each has a number, and by it a name of its own: one that is left
    open, or ended out of turn, is never taken for another, nor for that of the code that began the transaction."""

    boundary: Boundary
    number: int


#: Refused in a transaction that is aborted, and gone with whatever undoes the handler's work.
WHOLE: Final = Nested(Boundary.SAVEPOINT, 0)

#: What a batch is made of.
BatchItem: TypeAlias = Statement | Boundary | Nested

#: How strictly transactions are kept apart, in the words of SQL.
Isolation: TypeAlias = Literal["read committed", "repeatable read", "serializable"]

_BEGINS: Final = {
    None: Boundary.BEGIN_AS_CHOSEN,
    "read committed": Boundary.BEGIN,
    "repeatable read": Boundary.BEGIN_REPEATABLE_READ,
    "serializable": Boundary.BEGIN_SERIALIZABLE,
}


def begin_at(isolation: Isolation | None) -> Boundary:
    """The beginning of a transaction with the user's statements. None: at the level they have without us."""
    return _BEGINS[isolation]


def check_isolation(isolation: Isolation | None) -> Isolation | None:
    """The isolation level as it was given; another value is refused with a list of the levels."""
    if isolation not in _BEGINS:
        levels = ", ".join(repr(level) for level in _BEGINS if level is not None)
        raise ConfigurationError(
            f"isolation={isolation!r} is not one of {levels}; None keeps what the engine or the database has by default"
        )
    return isolation


class Effect(Generic[T]):
    """Something a flow wants done: a verb of the executor (see `ports.py`), and its argument, if it has one.
    Awaiting it hands it to the runner, which answers or throws.

    Not frozen, as values elsewhere are: freezing would triple the price of making one, and every request makes several.
    """

    __slots__ = ()

    verb: ClassVar[str]
    argument: Any = None

    def __await__(self) -> Generator[Effect[T], T, T]:
        return (yield self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Effect) and type(self) is type(other) and self.argument == other.argument

    def __repr__(self) -> str:
        return f"{type(self).__name__}({'' if self.argument is None else repr(self.argument)})"


class Batch(Effect[int]):
    """Statements and boundaries in order, in as few round trips as the driver can. Stops at the first error.

    The answer is how many rows the last item returned or changed (0 for a boundary): all that a merged
    round trip can return on every driver. A flow that needs rows uses Fetch.
    """

    __slots__ = ("argument",)
    verb = "batch"

    def __init__(self, items: tuple[BatchItem, ...]) -> None:
        self.argument = items


class Fetch(Effect[list[Row]]):
    """One statement and all its rows. Outside a transaction what it writes is committed with its answer."""

    __slots__ = ("argument",)
    verb = "fetch"

    def __init__(self, statement: Statement) -> None:
        self.argument = statement


class Query(Effect[NamedRows]):
    """One statement on the handle, in the transaction, as if the handler had executed it: with its role and limits, and
    with the codecs and adapters that the application has given its connections. Failures are onefold's errors."""

    __slots__ = ("argument",)
    verb = "query"

    def __init__(self, statement: HandlerStatement) -> None:
        self.argument = statement


class Acquire(Effect[None]):
    """Have a connection: take one from the pool unless the executor holds one already."""

    __slots__ = ()
    verb = "acquire"


class Release(Effect[None]):
    """Give the connection back to its pool. It must be outside a transaction."""

    __slots__ = ()
    verb = "release"


class ReleaseCommitted(Release):
    """COMMIT was answered: note that for the transaction of the executor, then give the connection back. An
    interruption while it goes back finds the outcome known."""

    __slots__ = ()
    verb = "release_committed"


class Discard(Effect[None]):
    """Throw the connection away: its state is unknown, and the server rolls back what it held."""

    __slots__ = ()
    verb = "discard"


class Sleep(Effect[None]):
    """Wait. Flows release their connection before they do."""

    __slots__ = ("argument",)
    verb = "sleep"

    def __init__(self, seconds: float) -> None:
        self.argument = seconds


class Now(Effect[float]):
    """Seconds on a monotonic clock: for bounding waits, never for what is stored."""

    __slots__ = ()
    verb = "now"


class Call(Effect[Any]):
    """Call the user's function; on an asyncio executor its awaitable result is awaited."""

    __slots__ = ("argument",)
    verb = "call"

    def __init__(self, function: Callable[[], Any]) -> None:
        self.argument = function


class Publish(Effect["Confirms"]):
    """Publish messages to the broker, all at once; the outcome of each, in order. No transaction may be open."""

    __slots__ = ("argument",)
    verb = "publish"

    def __init__(self, messages: Sequence[Message]) -> None:
        self.argument = messages
