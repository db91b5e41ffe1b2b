"""The application's own sessions, inside a transaction of onefold's.

A session is made by the application's factory: its class, options, binds and listeners are what they are. What joins it
to the transaction is laid over the instance only. Wherever it would take a connection of onefold's engine, it gets the
transaction's (`get_bind`, which SQLAlchemy documents as the place to choose one), and works there on a savepoint: its
`commit()` and `rollback()` end that savepoint and nothing else. Its `after_commit` listeners would be called with the
savepoint, when a refusal or a failed COMMIT can still undo everything; they are held back, and called once, after the
real COMMIT. What the session rolls back, also a nested part of it, takes the events and commit hooks asked for
meanwhile with it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias, cast

from sqlalchemy import Connection, Engine, event, exc
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, SessionTransaction, scoped_session, sessionmaker

from onefold._kernel.pending_work import Mark, PendingWork
from onefold._kernel.transaction import Transaction
from onefold.db.sqlalchemy._engine_events import holder_of
from onefold.db.sqlalchemy._isolation import check_chosen_level
from onefold.db.sqlalchemy._table_writes import SqlalchemyTable
from onefold.errors import ConfigurationError, ProgrammerError, TransactionMisused

AnySession: TypeAlias = Session | AsyncSession
Factory: TypeAlias = Callable[[], AnySession]
#: Calls what may block, on a thread where it must.
Blocking: TypeAlias = Callable[[Callable[[], Any]], Any]

_JOINED = "onefold.joined"

_CLOSED = (
    "the request's session was closed (close(), remove(), reset(), the end of a `with` block) while it still had work "
    "that was neither committed nor rolled back, so that the work is lost. Nothing of the request is kept: call "
    "commit() before, or leave the session open; onefold writes what it holds when the handler returns, and closes it"
)

_ENDED_INSIDE = (
    "session.commit(), rollback() or close() was called inside a tx.savepoint() block, and ended work from before the "
    "block too. Nothing of the transaction is kept: leave the block instead (raise to undo it), or use "
    "session.begin_nested()"
)


def tx_of(session: AnySession) -> Transaction[Any]:
    """The transaction that a session has joined, to publish beside it: `tx_of(session).publish("order.placed", {})`."""
    joined = session.info.get(_JOINED)
    if isinstance(joined, JoinedSession):
        return joined.tx
    raise ProgrammerError(
        "this session is in no transaction of onefold's, so there is nothing to publish or to wait for with it: take "
        "it from SessionTx, AsyncSessionTx, current_session(), a consumer's parameter or tx.session()"
    )


def is_joined(session: Session) -> bool:
    """Whether a session works, or has worked, inside a transaction of ours."""
    return _JOINED in session.info


class SqlalchemySessions:
    """Sessions of one application: by its factory, or plain ones where it gave none."""

    def __init__(self, engine: Engine | AsyncEngine, factory: Factory | None) -> None:
        self._engine = engine
        self._kind: type[AnySession] = AsyncSession if isinstance(engine, AsyncEngine) else Session
        #: A registry goes on with the session when we are done with it.
        self._lends = isinstance(factory, scoped_session)
        self._factory: Factory = factory or functools.partial(self._kind, expire_on_commit=False)
        if isinstance(factory, sessionmaker | async_sessionmaker):
            self._check_kind(factory.class_)
        elif not callable(self._factory):
            raise ConfigurationError(
                f"session_factory={factory!r} cannot be called; give a sessionmaker, or a function that returns a new "
                "session"
            )
        _listen()

    @property
    def kind(self) -> str:
        return self._kind.__name__

    def join(self, tx: Transaction[Any], pending: PendingWork, blocking: Blocking) -> AnySession:
        """A session inside the transaction, for as long as that lasts."""
        session = self._make()
        inner = _inner(session)
        if inner.in_transaction():
            raise ProgrammerError(
                "session_factory returned a session that is in a transaction already, on a connection of its own; it "
                "must return a session that was not used yet"
            )
        if inner.twophase:
            raise ConfigurationError("session_factory makes sessions with twophase=True; onefold ends transactions")
        joined = JoinedSession(tx, pending, blocking, session, _sync(self._engine), lent=self._lends)
        pending.joined.append(joined)
        return session

    def table(self, tx: Transaction[Any], given: object, blocking: Blocking) -> SqlalchemyTable:
        """A Table, or a mapped class, for writes in the transaction."""
        return SqlalchemyTable(tx, given, blocking, asynchronous=self._kind is AsyncSession)

    def own(self) -> AnySession:
        """A session with a transaction of its own, where there is none to join. Its user commits, and closes it."""
        session = self._make()
        if _inner(session).bind is None:
            session.bind = self._engine
            _inner(session).bind = _sync(self._engine)
        return session

    def _make(self) -> AnySession:
        session = self._factory()
        self._check_kind(type(session))
        return session

    def _check_kind(self, made: type[object]) -> None:
        if not issubclass(made, self._kind):
            needs = "AsyncOnefold needs an async_sessionmaker"
            if self._kind is Session:
                needs = "Onefold needs a sessionmaker"
            raise ConfigurationError(
                f"session_factory makes {made.__module__}.{made.__qualname__}, not {self.kind}: {needs}"
            )


class JoinedSession:
    """One session inside one transaction: see `Joined` in the kernel."""

    def __init__(
        self,
        tx: Transaction[Any],
        pending: PendingWork,
        blocking: Blocking,
        session: AnySession,
        engine: Engine,
        *,
        lent: bool,
    ) -> None:
        inner = _inner(session)
        self.tx = tx
        self._pending = pending
        self._blocking = blocking
        self._session: Any = session
        self._inner: Any = inner
        self._engine = engine
        self._lent = lent
        self._over = False
        #: Whether there is work that a rollback of the transaction undoes: in a savepoint that is open, or released.
        self._open = self._released = False
        #: Where events and hooks stood when the session's work began, and each nested part of it.
        self._since: dict[SessionTransaction | None, Mark] = {None: pending.mark()}
        #: Whether what it held was written when the handler returned, and why it could not be.
        self._written = False
        self._failure: Exception | None = None
        #: The connection's count of writing statements when the savepoint that is open began.
        self._writes: int | None = None
        #: The isolation level that the application chose for it, when the transaction is known to have that.
        self._level: str | None = None
        self._mode = inner.join_transaction_mode
        inner.join_transaction_mode = "create_savepoint"
        inner.info[_JOINED] = self
        event.listen(inner, "after_commit", _ignore)  # so that the session has listeners of its own to be held back
        dispatch = cast("Any", inner.dispatch)  # not kept: it would be a ring, and left to the garbage collector
        self._after_commit: Any = dispatch.after_commit
        dispatch.after_commit = _HeldListeners(self._after_commit, self._note_commit)
        self._get_bind: Any = inner.get_bind
        vars(inner)["get_bind"] = self._bind
        self._close: Any = inner.close
        for name in ("close", "reset"):
            if hasattr(inner, name):
                setattr(inner, name, functools.partial(self._closing, getattr(inner, name)))

    def _leave(self) -> None:
        """Take off what was laid over the session."""
        self._inner.__dict__.pop("get_bind", None)
        cast("Any", self._inner.dispatch).after_commit = self._after_commit
        event.remove(self._inner, "after_commit", _ignore)
        self._inner.info.pop(_JOINED, None)
        self._inner.join_transaction_mode = self._mode

    # --- the handler's savepoints ------------------------------------------------------------------------

    def begin_part(self) -> Any:
        return self._perform_here(self._begin_part)

    def end_part(self, part: SessionTransaction | None, *, keep: bool) -> Any:
        return self._perform_here(functools.partial(self._end_part, part, keep))

    def _begin_part(self) -> SessionTransaction:
        # The session's own savepoint must be outside of the block's, which would take it away with its end.
        self._inner.connection(bind_arguments={"bind": self._connection(self._engine)})
        part: SessionTransaction = self._inner.begin_nested()
        return part

    def _end_part(self, part: SessionTransaction | None, keep: bool) -> None:
        if part is None:
            if keep:
                self._write()
            else:
                self._inner.rollback()
                self._inner.expire_all()  # what a commit() inside of the block wrote is gone too
            return
        innermost = self._inner.get_nested_transaction()
        while innermost is not None and innermost is not part:
            innermost = innermost.parent
        if innermost is None:
            raise TransactionMisused(_ENDED_INSIDE)
        if keep:
            part.commit()
        else:
            part.rollback()

    # --- the end of the transaction ----------------------------------------------------------------------

    def write(self) -> Any:
        return self._perform_here(self._write_early)

    def before_end(self, keep_rows: bool) -> Any:
        return self._perform(self._write_rest if keep_rows else self._close)

    def after_end(self, kept: bool | None) -> Any:
        return self._perform(functools.partial(self._conclude, kept))

    def _perform(self, work: Callable[[], None]) -> Any:
        if isinstance(self._session, AsyncSession):
            return self._session.run_sync(lambda _: work())
        return self._blocking(work)

    def _perform_here(self, work: Callable[[], Any]) -> Any:
        """On the thread of the caller, as its own calls of the session."""
        return self._session.run_sync(lambda _: work()) if isinstance(self._session, AsyncSession) else work()

    def _write_early(self) -> None:
        try:
            self._write()
        except Exception as failure:  # a refusal (4xx) would not have written it, and is still to be known
            self._failure = self._failure or failure
        self._written = True

    def _write_rest(self) -> None:
        if self._failure is not None:
            raise self._failure
        if not self._written or self._inner.in_transaction():
            self._write()

    def _closing(self, close: Callable[[], None]) -> None:
        """The application closes the session: what it has not written by now is lost."""
        if self._inner is not None and self._failure is None and self._has_work():
            self._failure = TransactionMisused(_CLOSED)
        close()

    def _has_work(self) -> bool:
        inner = self._inner
        if inner.new or inner.deleted or any(inner.is_modified(changed) for changed in inner.dirty):
            return True
        return self._writes is not None and self._count_writes() > self._writes

    def _count_writes(self) -> int:
        handle = self.tx.connection
        holder = holder_of(handle if isinstance(handle, Connection) else handle.sync_connection)
        return 0 if holder is None else holder.writes

    def _write(self) -> None:
        # Listeners read what was written: nothing is expired before they have been called.
        expires, self._inner.expire_on_commit = self._inner.expire_on_commit, False
        try:
            self._inner.commit()
        finally:
            self._inner.expire_on_commit = expires

    def _conclude(self, kept: bool | None) -> None:
        # A commit() of the handler's may have expired what a listener reads: it is read again, with a connection of its
        # own, which the session gives back when it is closed.
        interrupted = self._inner.in_transaction()
        self._over = True
        try:
            if kept:
                self._after_commit(self._inner)
            elif kept is False and (self._open or self._released):
                self._inner.dispatch.after_rollback(self._inner)
        finally:
            if not interrupted:  # else its connection was thrown away, and nothing may be sent through it
                self._close()
            self._over = False
            for name in ("close", "reset"):
                self._inner.__dict__.pop(name, None)
            if self._lent:
                self._leave()
            # Others stay as they are, so that using them after the end is refused. The two must not keep each other
            # from being freed.
            self._inner = self._session = self._get_bind = self._after_commit = self._close = None
            self._failure = None
            self._since.clear()

    # --- called by the session ---------------------------------------------------------------------------

    def _bind(self, *args: Any, **kwargs: Any) -> Engine | Connection:
        if self._inner is None:
            _ = self.tx.connection  # refuses: it is over
        try:
            found: Engine | Connection = self._get_bind(*args, **kwargs)
        except exc.UnboundExecutionError:
            found = self._engine
        return self._connection(found) if found.engine.pool is self._engine.pool and not self._over else found

    def _connection(self, found: Engine | Connection) -> Connection:
        handle = self.tx.connection
        connection: Connection = handle if isinstance(handle, Connection) else handle.sync_connection
        if isinstance(found, Engine):  # with options of its own, perhaps: schema_translate_map
            has, chosen = connection.get_execution_options(), found.get_execution_options()
            level = chosen.get("isolation_level")
            if level not in (None, self._level):
                check_chosen_level(connection, level)
                self._level = level
            new = {name: value for name, value in chosen.items() if name not in (*has, "isolation_level")}
            if new:
                connection.execution_options(**new)
        if self._writes is None and (holder := holder_of(connection)) is not None:
            self._writes = holder.writes
        return connection

    def _note_commit(self) -> None:
        if self._inner is not None and not self._inner.in_nested_transaction():
            self._released, self._open = self._released or self._open, False

    def undone(self, inner: Session) -> None:
        if not inner.in_nested_transaction():
            self._open = False

    def note_part_begin(self, part: SessionTransaction) -> None:
        self._open = True
        self._since[part] = self._pending.mark() if part.nested else self._since.get(None, self._pending.mark())

    def note_part_end(self, part: SessionTransaction) -> None:
        if not part.nested:
            self._since[None] = self._pending.mark()
            if part.parent is None:  # else it is that of a flush
                self._writes = None

    def part_undone(self, part: SessionTransaction) -> None:  # comes after the end
        self._pending.retract(self._since.get(part, self._pending.mark()))
        self.note_part_end(part)


def _listen() -> None:
    """Hear of all sessions: a listener of each session's own would cost more than its statements."""
    if not event.contains(Session, "after_rollback", _undone):
        event.listen(Session, "after_rollback", _undone)
        event.listen(Session, "after_transaction_create", _on_part_begin)
        event.listen(Session, "after_transaction_end", _on_part_end)
        event.listen(Session, "after_soft_rollback", _part_undone)


def _undone(session: Session) -> None:
    if (joined := session.info.get(_JOINED)) is not None:
        joined.undone(session)


def _on_part_begin(session: Session, part: SessionTransaction) -> None:
    if (joined := session.info.get(_JOINED)) is not None:
        joined.note_part_begin(part)


def _on_part_end(session: Session, part: SessionTransaction) -> None:
    if (joined := session.info.get(_JOINED)) is not None:
        joined.note_part_end(part)


def _part_undone(session: Session, part: SessionTransaction) -> None:
    if (joined := session.info.get(_JOINED)) is not None:
        joined.part_undone(part)


class _HeldListeners:
    """Stands before a session's `after_commit` listeners: listeners are added, and not called."""

    def __init__(self, listeners: Any, called: Callable[[], None]) -> None:
        self._listeners = listeners
        self._called = called

    def __call__(self, *_: object, **__: object) -> None:
        self._called()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listeners, name)


def _ignore(_: Session) -> None:
    pass


def _inner(session: AnySession) -> Session:
    return session.sync_session if isinstance(session, AsyncSession) else session


def _sync(engine: Engine | AsyncEngine) -> Engine:
    return engine.sync_engine if isinstance(engine, AsyncEngine) else engine
