"""The transaction as a handler sees it: the driver's own connection, savepoints, and events that leave with COMMIT.

The handler never begins or ends it. It is open from the claim to the settle; before and after, touching it is an
error that says so.

Theory of its end, the same wherever it was begun (in a request, a consumer, a block). Sessions write what they hold
back, or let go of it. Then the transaction is refused to its user, committed or rolled back, and concluded: hooks are
called, sessions are let go of, once. What COMMIT's failure tells of the rows is what hooks are told: where that is not
known, neither kind is called.

An interruption (cancellation, KeyboardInterrupt) may strike anywhere in between: the flow is closed where it stands.
The executor, which is abandoned then, knows the transaction it leads to, and concludes it with what was known at that
moment: rolled back before COMMIT was sent, unknown from then on, and how it ended once that was answered. That is noted
before the connection is given back (`ReleaseCommitted`): nothing can be awaited, and so interrupted, in between.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, Generic, NamedTuple, Never, ParamSpec, TypeVar
from uuid import UUID

from onefold._kernel.arguments import named_arguments
from onefold._kernel.effects import Call, Flow, Statement
from onefold._kernel.end_hooks import Due, Hooks
from onefold._kernel.event_cancellation import Cancels
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, name_of
from onefold._kernel.handler_errors import nothing_executed
from onefold._kernel.ports import Joined, Outgoing, Sessions
from onefold._kernel.savepoints import Savepoint, Savepoints
from onefold.errors import (
    ConfigurationError,
    ConnectionLost,
    MessageInvalid,
    OutcomeUnknowable,
    OutcomeUnknown,
    ProgrammerError,
    StoreUnavailable,
)

H = TypeVar("H")
T = TypeVar("T")
P = ParamSpec("P")

_log = logging.getLogger("onefold.transaction")

_NOT_BEGUN = "the request's transaction has not begun"

_ENDED = (
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


class Mark(NamedTuple):
    """A place in a transaction that its work can be undone to."""

    published: int
    hooks: int


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
    at all."""

    __slots__ = (
        "_cancels", "_executor", "_handed", "_hooks", "_outbox", "_outgoing", "_over", "_savepoints", "_session",
        "_sessions", "carried", "development", "in_plain_def", "joined", "kept", "settled", "touched",
    )  # fmt: skip

    def __init__(
        self,
        executor: ThreadExecutor[H] | TaskExecutor[H],
        outbox: Callable[[], Outgoing] = no_outbox,
        sessions: Sessions | None = None,
    ) -> None:
        self._executor = executor
        self._outbox = outbox
        self._sessions = sessions
        self._session: Any = None
        self._outgoing: Outgoing | None = None
        self._over: StoreUnavailable | str | None = _NOT_BEGUN
        #: Whether its rows are kept, as far as is known now. None: not known, because COMMIT was sent.
        self.kept: bool | None = False
        #: Whether its COMMIT was answered: from then on a record that went with it is stored.
        self.settled = False
        self._savepoints: Savepoints | None = None
        self.touched = self._handed = False
        #: Gives the headers of what caused this transaction that its events carry on: trace, correlation.
        self.carried: Callable[[], Mapping[str, str]] = dict
        self._hooks: Hooks | None = None
        self._cancels: Cancels | None = None
        #: Whether its user cannot await, and whether it is told of what it seems to have forgotten.
        self.in_plain_def = self.development = False
        #: The sessions that work inside this transaction.
        self.joined: list[Joined] = []

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> Never:
        """Asked for by FastAPI, of a parameter that it would read from the request."""
        raise ConfigurationError(NOT_GIVEN)

    @property
    def connection(self) -> H:
        """The driver's own connection, inside the request's transaction."""
        self._check()
        self._check_awaited("tx.connection")
        self.touched = self._handed = True
        return self._executor.connection.handle

    @property
    def is_idle(self) -> bool:
        """Whether its user was given the connection, and has had nothing executed on it: what is not awaited is not
        executed. Where a driver cannot tell, it was."""
        return self._handed and not getattr(self._executor.connection, "executed", True)

    def session(self) -> Any:
        """The application's SQLAlchemy session inside this transaction, always the same one: a Session, or with
        AsyncOnefold an AsyncSession. Its `commit()` is a savepoint; what it holds back is written before COMMIT."""
        self._check()
        if self._session is None:
            if self._sessions is None:
                raise ProgrammerError("sessions need SQLAlchemy: give Onefold an engine, AsyncOnefold an async engine")
            self._session = self._sessions.join(self)
        return self._session

    def savepoint(self) -> Savepoint:
        """`with` (or `async with`) a part that may fail: an exception undoes that part only, and rises. So does an
        interruption, such as a time-out; where a part cannot be undone alone then, nothing of the transaction stays."""
        self._check()
        self.touched = True
        if self._savepoints is None:
            self._savepoints = Savepoints(self._executor)
        return Savepoint(self._savepoints, self)

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
        """Publish an event if and only if this transaction commits; its id.

        Events with the same key are numbered without gaps and arrive in their order. The data is written as JSON;
        bytes need a `content_type`. With `not_before` the event leaves later.
        """
        self._check()
        event_id = self._events().add(
            topic,
            data,
            key=key,
            headers=_all_headers(self.carried(), topic, headers),
            content_type=content_type,
            not_before=not_before,
        )
        return EventId(event_id)

    def cancel(self, event_id: str) -> Any:
        """Take back an event that waits for its `not_before`, or was published in this very transaction, if and only if
        this transaction commits. Whether it was taken back by this: False where it has left, or may be leaving now,
        or was taken back before. With AsyncOnefold to be awaited."""
        self._check()
        self._check_awaited("tx.cancel(...)")
        self.touched = True
        if self._cancels is None:
            self._cancels = Cancels()
        return self._cancels.perform(self._executor, event_id, self._events().cancel(event_id))

    def _events(self) -> Outgoing:
        if self._outgoing is None:
            self._outgoing = self._outbox()
        return self._outgoing

    def after_commit(self, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this once COMMIT has been answered, and never if nothing was committed.

        The answer waits for it; what it raises is logged and changes nothing. Rolled back with the savepoint it was
        asked for in, it is forgotten. A process that dies in between has not called it: see `publish`.
        """
        self._ask_for(Due.COMMIT, functools.partial(function, *args, **kwargs))

    def after_rollback(self, function: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> None:
        """Call this once the rows are rolled back: with the whole transaction, or with the savepoint it was asked for
        in (then after the end of the transaction, however that ends)."""
        self._ask_for(Due.ROLLBACK, functools.partial(function, *args, **kwargs))

    def _ask_for(self, due: Due, call: Callable[[], Any]) -> None:
        self._check()
        if self._hooks is None:
            self._hooks = Hooks()
        self._hooks.add(due, self._executor.as_asked_here(call))

    def blocking(self, function: Callable[[], Any]) -> Any:
        """What a function that may block answers; on asyncio to be awaited, and called on a thread."""
        return self._executor.blocking(function)

    @property
    def outlived(self) -> bool:
        """Whether there is something to do after its end: see `conclude`."""
        return bool(self._hooks or self.joined)

    @property
    def published(self) -> int:
        """How many events wait for COMMIT."""
        return 0 if self._outgoing is None else len(self._outgoing)

    def mark(self) -> Mark:
        """Where its events and hooks stand now."""
        return Mark(self.published, 0 if self._hooks is None else len(self._hooks))

    def retract(self, mark: Mark) -> None:
        """Forget the events and the commit hooks since then: what they told of was rolled back."""
        if self._outgoing is not None:
            self._outgoing.cut(mark.published)
        if self._hooks is not None:
            self._hooks.cut(mark.hooks)

    def flush(self) -> tuple[Statement, ...]:
        """What writes the events, to go in front of COMMIT."""
        return () if self._outgoing is None else self._outgoing.flush()

    def committed(self) -> None:
        """COMMIT was answered: the relay of this process may publish the events. A second call does nothing."""
        self.settled = True
        if self.kept is None:
            self.kept = True
            if self._outgoing is not None and len(self._outgoing):
                self._outgoing.committed()

    def open(self) -> None:
        """The claim was granted."""
        self._over = None
        self._executor.inside = self

    def end(self, kept: bool | None = False) -> None:
        """The request is about to be settled or released: the connection is not the handler's any more. `kept` is what
        is known of its rows until `conclude` tells more: None where COMMIT is sent next."""
        self._over = _ENDED
        self.kept = kept

    def interrupt(self) -> Callable[[], Flow[None]] | None:
        """Its executor is abandoned, wherever it stands. What is left to do concludes it with what is known now."""
        self._over = _ENDED
        return functools.partial(self.conclude, self.kept) if self.outlived else None

    async def conclude(self, kept: bool | None) -> None:
        """It has ended and its connection is given back: call the hooks, let go of the sessions.

        What a hook raises cannot change what is committed, nor the answer. None: the outcome is not known, so that
        neither kind of hook would be true. Interrupted in a hook, it goes on with the next: each is called once.
        """
        self.kept, self._session = kept, None
        if kept is None and self.outlived:
            _log.warning(
                "the outcome of a transaction is not known: neither its commit nor its rollback hooks are called"
            )
        while (call := self._take_call(kept)) is not None:
            try:
                await Call(call)
            except Exception:
                ended = "COMMIT" if kept else "rollback"
                _log.exception("a hook after %s failed (%s); the %s stands", ended, name_of(call), ended)
        self._executor.inside = None  # neither must keep the other from being freed

    def _take_call(self, kept: bool | None) -> Callable[[], Any] | None:
        """What is to be called next, now that it has ended like this. It is forgotten: nothing is called twice."""
        due = Due.BOTH if kept is None else Due.COMMIT if kept else Due.ROLLBACK
        if self._hooks is not None and (hook := self._hooks.take_next(due)) is not None:
            return hook
        return functools.partial(self.joined.pop().after_end, kept) if self.joined else None

    def is_open_for(self, outbox: Callable[[], Outgoing]) -> bool:
        """Whether a handler is inside of it at this moment, and its events go to this outbox: it is this Onefold's."""
        return self._over is None and self._outbox == outbox

    def deny(self, error: StoreUnavailable) -> None:
        """The route runs without its store, because it said so: there is no transaction to offer."""
        self._over = error

    def check_end(self, *, keep_rows: bool = True) -> None:
        """Called before it is settled: raises TransactionMisused where a savepoint, or a cancellation that was not
        awaited, forbids that."""
        if self._savepoints is not None:
            self._savepoints.check_end(keep_rows=keep_rows)
        if self._cancels is not None and keep_rows:
            self._cancels.check_end()

    def check_executed(self, whose: str) -> None:
        """The same, when its sessions are closed. Raises TransactionMisused in development."""
        if self.development and self.is_idle:
            raise nothing_executed(whose, "Leave tx.connection alone where nothing is to be written")

    def _check_awaited(self, what: str) -> None:
        if self.in_plain_def and isinstance(self._executor, TaskExecutor) and self._executor.is_awaited:
            raise ProgrammerError(_PLAIN_DEF.format(what))

    def _check(self) -> None:
        if self._over is not None:
            raise self._over if isinstance(self._over, StoreUnavailable) else ProgrammerError(self._over)
        if self._savepoints is not None:
            self._savepoints.check()


async def close_sessions(tx: Transaction[Any], keep_rows: bool) -> None:
    """The transaction is about to end: have what joined it write what it holds back, or let go of it."""
    for joined in reversed(tx.joined):
        await Call(functools.partial(joined.before_end, keep_rows))


def is_kept(_: object) -> bool:
    """A COMMIT that was answered has kept the rows."""
    return True


async def commit(
    tx: Transaction[Any],
    work: Callable[[tuple[Statement, ...]], Flow[T]],
    *,
    keep_rows: bool = True,
    kept: Callable[[T], bool | None] = is_kept,
) -> T:
    """Have `work` commit, and conclude. It is given what writes the events, none where the rows are not kept; `kept`
    says of its answer whether they were."""
    tx.end(None if keep_rows else False)
    try:
        answer = await work(tx.flush() if keep_rows else ())
    except Exception as error:
        await tx.conclude(_kept_despite(error) if tx.kept is None else tx.kept)
        raise
    outcome = kept(answer)
    if outcome:
        tx.committed()
    await tx.conclude(outcome if keep_rows else False)
    return answer


async def undo(tx: Transaction[Any], work: Callable[[], Flow[T]], *, name: str) -> T:
    """Have `work` roll back, and conclude. `name` says whose session could not be closed, should there be one."""
    try:
        await close_sessions(tx, False)
    except Exception:
        _log.warning("%s: a session could not be closed; its connection rolls back", name, exc_info=True)
    tx.end()
    try:
        answer = await work()
    except Exception:
        await tx.conclude(False)
        raise
    await tx.conclude(False)
    return answer


def _kept_despite(error: Exception) -> bool | None:
    """Whether the rows of a transaction whose COMMIT failed like this were kept. None: not known."""
    return None if isinstance(error, ConnectionLost | OutcomeUnknown | OutcomeUnknowable) else False
