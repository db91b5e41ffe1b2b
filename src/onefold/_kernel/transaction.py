"""The transaction as a handler sees it: the driver's own connection, savepoints, and events that leave with COMMIT.

The handler never begins or ends it (`owned_transaction` does). It is open from the claim to the settle; before and
after, touching it is an error that says so.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Generator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, Never, ParamSpec, TypeVar, overload
from uuid import UUID

from onefold._kernel.arguments import named_arguments
from onefold._kernel.effects import Flow
from onefold._kernel.end_hooks import Due, bind_arguments
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.inside_calls import Exclusive, InsideCall, InsideCalls, OnConnection, run_inside, take_back
from onefold._kernel.pending_work import PendingWork
from onefold._kernel.ports import NaturalWrites, Outgoing, Sessions
from onefold._kernel.savepoints import Savepoint, Savepoints
from onefold._kernel.whole_flows import run_before_end, run_in_part, run_in_savepoint, run_or_doom
from onefold.errors import (
    ConfigurationError,
    MessageInvalid,
    ProgrammerError,
    StoreBusy,
    StoreUnavailable,
    TransactionMisused,
)

if TYPE_CHECKING:
    from onefold._kernel.derive import Part
    from onefold._kernel.table_writes import TableObject, WritableTable
    from onefold._kernel.write_results import EnteredSoon, InsertedSoon, TransitionedSoon

H = TypeVar("H")
M = TypeVar("M")
P = ParamSpec("P")

_NOT_BEGUN = "the request's transaction has not begun"

ENDED = (
    "the transaction is over: its request has been answered, its message handled, or its block has ended. Work that "
    "follows (background tasks, the rest of a stream) needs a connection or a transaction of its own"
)

NOT_GIVEN = (
    "FastAPI gives a handler, and what it depends on, its transaction where the parameter is annotated with Tx: write "
    "`tx: Tx[...]`, with `from onefold.fastapi import Tx`, as in Tx[AsyncSqlite] or Tx[asyncpg.Connection]"
)

_PLAIN_DEF = (
    "the handler is a plain `def`, and {} of AsyncOnefold has to be awaited: nothing would be executed. Write `async "
    "def`, or use Onefold, whose transactions a def can use; tx.publish(...) works in both"
)


class EventId(str):
    """The id of an event. `await` gives it once more, so that async code may write `await tx.publish(...)`."""

    __slots__ = ()

    def __await__(self) -> Generator[None, None, str]:
        yield from ()
        return self


def _all_headers(carried: Mapping[str, str], topic: object, own: object) -> dict[str, str]:
    if own is None:
        return dict(carried)
    if not isinstance(own, Mapping):
        raise MessageInvalid(f"headers={own!r} of an event on {topic!r} must be texts by name, as {{'tenant': 'acme'}}")
    return {**carried, **own}


def no_outbox() -> Outgoing:
    raise ProgrammerError("this transaction was opened without an outbox, so it can publish nothing")


class Transaction(Generic[H]):
    """Everything written through `connection`, and every event, commits together with the key and the response, or not
    at all. onefold makes it, over an `executor`, with what writes its events (`outbox`), gives its session (`sessions`)
    and does its natural writes (`natural`)."""

    def __init__(
        self,
        executor: ThreadExecutor[H] | TaskExecutor[H],
        outbox: Callable[[], Outgoing] = no_outbox,
        sessions: Sessions | None = None,
        natural: Callable[[], NaturalWrites] | None = None,
    ) -> None:
        # Every attribute is set here. Python 3.11 reads a default of the class several times as slowly; and one that
        # the first few dozen instances get only later costs each further instance a dictionary.
        self._executor = executor
        self._outbox, self._natural = outbox, natural
        self._sessions = sessions
        self._session: Any = None
        self._pending: PendingWork | None = None
        self._over: StoreUnavailable | str | None = _NOT_BEGUN
        self._savepoints: Savepoints | None = None
        self._touched = self._handed = False
        #: Whether its user has had something executed by a call of its own: on SQLite it has the write lock then.
        self._begun = False
        #: Gives the headers of what caused this transaction that its events carry on: trace, correlation.
        self._carried: Callable[[], Mapping[str, str]] = dict
        #: The request that it belongs to, where that has a key: the digest of its record, and the key.
        self._request: tuple[bytes, str] | None = None
        self._calls: InsideCalls | None = None
        #: One for each call that must not stay half done and has not ended; whether its end has looked at them.
        self._under_way: list[None] = []
        self._closing = False
        #: Whether its user cannot await.
        self._in_plain_def = False

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Never:
        """Asked for by FastAPI, of a parameter that it would read from the request."""
        raise ConfigurationError(NOT_GIVEN)

    @property
    def connection(self) -> H:
        """The driver's own connection, inside the request's transaction."""
        self._check()
        self._check_awaited("tx.connection")
        self._touched = self._handed = True
        return self._executor.connection.handle

    def session(self) -> Any:
        """The application's SQLAlchemy session inside this transaction, always the same one: a Session, or with
        AsyncOnefold an AsyncSession. Its `commit()` is a savepoint; what it holds back is written before COMMIT."""
        self._check()
        if self._session is None:
            if self._sessions is None:
                raise ProgrammerError("sessions need SQLAlchemy: give Onefold an engine, AsyncOnefold an async engine")
            self._session = self._sessions.join(self, self._work(), self._executor.blocking)
        return self._session

    def savepoint(self) -> Savepoint:
        """`with` (or `async with`) a part that may fail: an exception undoes that part only, and rises. So does an
        interruption, such as a time-out; where a part cannot be undone alone then, nothing of the transaction stays."""
        self._check()
        self._touched = True
        return Savepoint(self._all_savepoints(), self._work())

    @named_arguments("tx.publish")
    def publish(
        self,
        topic: str,
        data: object,
        *,
        key: str | int | UUID | None = None,
        headers: Mapping[str, str] | None = None,
        content_type: str | None = None,
        not_before: datetime | None = None,
    ) -> EventId:
        """Publish an event to a topic if and only if this transaction commits; its id.

        Events with the same key are numbered without gaps and arrive in their order. The data is written as JSON;
        bytes need a `content_type`. `headers` travel with it. With `not_before` the event leaves later. With
        AsyncOnefold it may be awaited; there is nothing to wait for.
        """
        self._check()
        event_id = self._work().events.add(
            topic,
            data,
            key=key,
            headers=_all_headers(self._carried(), topic, headers),
            content_type=content_type,
            not_before=not_before,
            request=self._request,
        )
        return EventId(event_id)

    def cancel(self, event_id: str) -> Any:
        """Take back an event that waits for its `not_before`, or was published in this very transaction, if and only if
        this transaction commits. Whether it was taken back by this: False where it has left, or may be leaving now,
        or was taken back before. With AsyncOnefold to be awaited."""
        self._check()
        items = self._work().events.cancel(event_id)
        return self._perform(f"tx.cancel({event_id!r})", functools.partial(take_back, items), begins=False)

    @overload
    def insert_once(
        self, table: type[M], values: Mapping[str, Any], *,
        on: str | Sequence[str], compare: bool | str | Sequence[str] = False, among: Mapping[str, Any] | None = None,
    ) -> InsertedSoon[M]: ...  # fmt: skip
    @overload
    def insert_once(
        self, table: str | TableObject, values: Mapping[str, Any], *,
        on: str | Sequence[str], compare: bool | str | Sequence[str] = False, among: Mapping[str, Any] | None = None,
    ) -> InsertedSoon[dict[str, Any]]: ...  # fmt: skip
    @named_arguments("tx.insert_once")
    def insert_once(
        self,
        table: Any,
        values: Mapping[str, Any],
        *,
        on: str | Sequence[str],
        compare: bool | str | Sequence[str] = False,
        among: Mapping[str, Any] | None = None,
    ) -> Any:
        """Insert a row unless one with its business key is there: `order, created = await tx.insert_once(...)`.

        The table is its name, a Table or a mapped class of SQLAlchemy; `values`: the row. `on`: the columns of the key,
        which have a unique index; `among`: what holds for the rows of a partial one. `compare`: the rest of the row, or
        these columns, must be the same where it is there, else RowDiffers; "tell": that is an outcome instead.
        """
        natural, into = self._reach(table)
        make = natural.insert_once(into, values, on=on, compare=compare, among=among)
        return self._perform("tx.insert_once(...)", make)

    @overload
    def transition(
        self, table: type[M], *, where: Mapping[str, Any], state: str, come_from: object, to: object,
        version: str | None = None, expected_version: int | None = None, also: Mapping[str, Any] | None = None,
    ) -> TransitionedSoon[M]: ...  # fmt: skip
    @overload
    def transition(
        self, table: str | TableObject, *, where: Mapping[str, Any], state: str, come_from: object, to: object,
        version: str | None = None, expected_version: int | None = None, also: Mapping[str, Any] | None = None,
    ) -> TransitionedSoon[dict[str, Any]]: ...  # fmt: skip
    @named_arguments("tx.transition")
    def transition(
        self,
        table: Any,
        *,
        where: Mapping[str, Any],
        state: str,
        come_from: object,
        to: object,
        version: str | None = None,
        expected_version: int | None = None,
        also: Mapping[str, Any] | None = None,
    ) -> Any:
        """Move one row of a table from a state in `come_from` (one, or a list) to another; what happened, or why not.

        `version` names a column that counts the moves; with `expected_version` the row is moved only where it has that
        one. `also`: values for other columns, written with the move and only then.
        """
        natural, moved = self._reach(table)
        make = natural.transition(
            moved, where=where, state=state, come_from=come_from, to=to, version=version,
            expected_version=expected_version, also=also,
        )  # fmt: skip
        return self._perform("tx.transition(...)", make)

    @named_arguments("tx.ledger_entry")
    def ledger_entry(
        self,
        table: Any,
        values: Mapping[str, Any],
        *,
        on: str | Sequence[str],
        balance: Any = None,
        where: Mapping[str, Any] | None = None,
        add: Mapping[str, Any] | None = None,
        compare: bool | str | Sequence[str] = True,
    ) -> EnteredSoon[Any]:
        """Insert an entry once, and add to a balance if this call has inserted it: what `balance = balance + 100` needs
        to be retried. `values`: the entry, and `on` its id. `add`: numbers by column of the row `where` in the table
        `balance`. Another payload under the same id is RowDiffers, unless `compare` says otherwise."""
        natural, entries = self._reach(table)
        balances = None if balance is None else self._reach(balance)[1]
        in_part = self._in_part if type(table) is str and type(balance) is str else self._in_savepoint
        make = natural.ledger_entry(
            entries, values, on=on, compare=compare, balance=balances, where=where, add=add,
            executor=self._executor, in_part=in_part, or_nothing=self._or_nothing,
        )  # fmt: skip
        answer: EnteredSoon[Any] = self._perform("tx.ledger_entry(...)", make)
        return answer

    @named_arguments("tx.lock_row")
    def lock_row(self, table: Any, *, where: Mapping[str, Any]) -> Any:
        """The row of `table` that `where` names, as it is now, locked until COMMIT or ROLLBACK; with AsyncOnefold to be
        awaited. None: there is none, and until then no other transaction that asks for it this way gets an answer."""
        natural, found = self._reach(table)
        make = natural.lock_row(found, where=where, executor=self._executor, part=self._take_part)
        return self._perform("tx.lock_row(...)", make)

    def exclusive(self, *key: Part, wait_s: float = 5.0) -> Exclusive:
        """`with`, or `async with`, a lock on a natural key, where there is no row to lock yet. Its parts are like those
        of `derive`, and their order matters. The lock stays until COMMIT or ROLLBACK, not until the end of the block;
        StoreBusy where it is not had within `wait_s`."""
        natural = self._natural_writes()
        known = self._savepoints
        writing = self._begun or self._handed or (known is not None and known.edges > 0)
        make = natural.exclusive(self._executor, key, wait_s=wait_s, part=self._take_part, writing=writing)
        return Exclusive("tx.exclusive(...)", functools.partial(self._perform, "tx.exclusive(...)", make))

    def after_commit(self, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this once COMMIT has been answered, and never if nothing was committed.

        The answer waits for it; what it raises is logged and changes nothing. Rolled back with the savepoint it was
        asked for in, it is forgotten. A process that dies in between has not called it: see `publish`.
        """
        self._add_hook(Due.COMMIT, bind_arguments("tx.after_commit", function, args, kwargs))

    def after_rollback(self, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this once the rows are rolled back: with the whole transaction, or with the savepoint it was asked for
        in (then after the end of the transaction, however that ends)."""
        self._add_hook(Due.ROLLBACK, bind_arguments("tx.after_rollback", function, args, kwargs))

    def _add_hook(self, due: Due, call: Callable[[], Any]) -> None:
        self._check()
        self._work().add_hook(due, self._executor.bind_hook(call))

    def _natural_writes(self) -> NaturalWrites:
        if self._over is not None or self._savepoints is not None:
            self._check()
        if self._natural is None:
            raise ProgrammerError("this transaction was not opened by Onefold or AsyncOnefold: it knows no tables")
        return self._natural()

    def _reach(self, given: object) -> tuple[NaturalWrites, WritableTable]:
        """What does natural writes, and the table that one is for."""
        natural = self._natural_writes()
        known = natural.tables.get(given) if given.__class__ is str else None
        return natural, self._find_table(natural, given) if known is None else known

    def _find_table(self, natural: NaturalWrites, given: object) -> WritableTable:
        if isinstance(given, str):
            return natural.table(given, self._executor)
        if self._sessions is None:
            raise ProgrammerError(
                f"table {given!r:.80} must be the name of a table. A Table or a mapped class is for Onefold with a "
                "SQLAlchemy engine"
            )
        executor = self._executor
        here = isinstance(executor, ThreadExecutor) or executor.on_this_thread() is not None
        return self._sessions.table(self, given, operator.call if here else executor.blocking)

    def _perform(self, call: str, make: Callable[[], Flow[Any]], begins: bool = True) -> Any:
        """Run a flow inside of it; on asyncio to be awaited. What has written more than it may (TransactionMisused) is
        never committed, also where its user goes on."""
        if self._over is not None or self._savepoints is not None:
            self._check()
        if self._in_plain_def:
            self._check_awaited(call)
        self._touched = True
        executor = self._executor
        if isinstance(executor, TaskExecutor):
            own = executor.on_this_thread()
            if own is None:
                self._calls = InsideCalls() if self._calls is None else self._calls
                return InsideCall(call, make, self, self._calls, begins)
            executor = OnConnection(own)
        try:
            answer = run_inside(make(), executor)
        except Exception as error:
            self._note_failure(error, begins)
            raise
        self._begun = self._begun or begins
        return answer

    def _note_failure(self, error: Exception, begins: bool) -> None:
        """A call has failed. It had begun all the same, unless it was refused a lock."""
        self._begun = self._begun or (begins and not isinstance(error, StoreBusy))
        if isinstance(error, TransactionMisused):
            self._all_savepoints().doom(str(error))

    def _or_nothing(self, make: Callable[[], Flow[Any]]) -> Flow[Any]:
        return run_before_end(self, functools.partial(run_or_doom, self, make))

    def _in_part(self, make: Callable[[], Flow[Any]]) -> Flow[Any]:
        if self._pending is not None and self._pending.joined:
            return self._in_savepoint(make)
        return run_before_end(self, functools.partial(run_in_part, self._all_savepoints(), make))

    def _in_savepoint(self, make: Callable[[], Flow[Any]]) -> Flow[Any]:
        part = functools.partial(run_in_savepoint, self.savepoint(), self._executor, make)
        return run_before_end(self, part)

    def _take_part(self) -> int:
        return self._all_savepoints().take_number()

    def _work(self) -> PendingWork:
        """What waits for its end."""
        if self._pending is None:
            self._pending = PendingWork(self._outbox)
        return self._pending

    def _all_savepoints(self) -> Savepoints:
        if self._savepoints is None:
            self._savepoints = Savepoints(self._executor)
        return self._savepoints

    def _check_awaited(self, what: str) -> None:
        if self._in_plain_def and isinstance(self._executor, TaskExecutor) and self._executor.is_awaited:
            raise ProgrammerError(_PLAIN_DEF.format(what))

    def _check(self) -> None:
        if self._over is not None:
            raise self._over if isinstance(self._over, StoreUnavailable) else ProgrammerError(self._over)
        if self._savepoints is not None:
            self._savepoints.check()
