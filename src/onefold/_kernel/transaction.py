"""The transaction as a handler sees it: the driver's own connection, savepoints, and events that leave with COMMIT.

The handler never begins or ends it (`owned_transaction` does). It is open from the claim to the settle; before and
after, touching it is an error that says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any, Generic, Never, ParamSpec, TypeVar
from uuid import UUID

from onefold._kernel.arguments import named_arguments
from onefold._kernel.effects import Flow
from onefold._kernel.end_hooks import Due
from onefold._kernel.event_cancellation import Cancels
from onefold._kernel.executors import TaskExecutor, ThreadExecutor
from onefold._kernel.pending_work import PendingWork
from onefold._kernel.ports import Outgoing, Sessions
from onefold._kernel.runners import run, run_async
from onefold._kernel.savepoints import Savepoint, Savepoints
from onefold.errors import ConfigurationError, MessageInvalid, ProgrammerError, StoreUnavailable

H = TypeVar("H")
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
    at all."""

    __slots__ = (
        "_cancels", "_carried", "_executor", "_handed", "_in_plain_def", "_outbox", "_over", "_pending", "_savepoints",
        "_session", "_sessions", "_touched",
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
        self._pending = PendingWork(outbox)
        self._over: StoreUnavailable | str | None = _NOT_BEGUN
        self._savepoints: Savepoints | None = None
        self._touched = self._handed = False
        #: Gives the headers of what caused this transaction that its events carry on: trace, correlation.
        self._carried: Callable[[], Mapping[str, str]] = dict
        self._cancels: Cancels | None = None
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
            self._session = self._sessions.join(self, self._pending, self._executor.blocking)
        return self._session

    def savepoint(self) -> Savepoint:
        """`with` (or `async with`) a part that may fail: an exception undoes that part only, and rises. So does an
        interruption, such as a time-out; where a part cannot be undone alone then, nothing of the transaction stays."""
        self._check()
        self._touched = True
        if self._savepoints is None:
            self._savepoints = Savepoints(self._executor)
        return Savepoint(self._savepoints, self._pending)

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
        bytes need a `content_type`. With `not_before` the event leaves later. With AsyncOnefold it may be awaited;
        there is nothing to wait for.
        """
        self._check()
        event_id = self._pending.events.add(
            topic,
            data,
            key=key,
            headers=_all_headers(self._carried(), topic, headers),
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
        self._touched = True
        if self._cancels is None:
            self._cancels = Cancels()
        return self._cancels.perform(self._executor, event_id, self._pending.events.cancel(event_id))

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
        self._pending.add_hook(due, self._executor.as_asked_here(call))

    def _check_awaited(self, what: str) -> None:
        if self._in_plain_def and isinstance(self._executor, TaskExecutor) and self._executor.is_awaited:
            raise ProgrammerError(_PLAIN_DEF.format(what))

    def _check(self) -> None:
        if self._over is not None:
            raise self._over if isinstance(self._over, StoreUnavailable) else ProgrammerError(self._over)
        if self._savepoints is not None:
            self._savepoints.check()


def perform_inside(tx: Transaction[Any], flow: Flow[Any]) -> Any:
    """Run a flow of onefold on the connection of an open transaction: its statements commit with it. On asyncio to be
    awaited."""
    tx._check()
    tx._touched = True
    if isinstance(tx._executor, ThreadExecutor):
        return run(flow, tx._executor)
    return run_async(flow, tx._executor)
