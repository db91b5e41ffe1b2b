"""The transaction as its owner has it: the request, consumer or block that begins it, and ends it once.

Its user has the same object as a `Transaction`, and can neither begin nor end it.

Theory of its end, the same wherever it was begun (in a request, a consumer, a block). Sessions write what they hold
back, or let go of it. Then the transaction is refused to its user, committed or rolled back, and concluded: hooks are
called, sessions are let go of, once. Which hooks are called follows from what COMMIT's failure says of the rows: where
that is not known, neither kind is.

An interruption (cancellation, KeyboardInterrupt) may strike anywhere in between: the flow is closed where it stands.
The executor, which is abandoned then, knows the transaction it leads to, and concludes it with what was known at that
moment: rolled back before COMMIT was sent, unknown from then on, and how it ended once that was answered. That is noted
before the connection is given back (`ReleaseCommitted`): nothing can be awaited, and so interrupted, in between.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from onefold._kernel.effects import Call, Flow, Statement
from onefold._kernel.end_hooks import Due
from onefold._kernel.executors import TaskExecutor, ThreadExecutor, name_of
from onefold._kernel.handler_errors import nothing_executed_error
from onefold._kernel.pending_work import PendingWork
from onefold._kernel.ports import Joined, NaturalWrites, Outgoing, Sessions
from onefold._kernel.transaction import ENDED, Transaction, no_outbox
from onefold.errors import ConnectionLost, OutcomeUnknowable, OutcomeUnknown, StoreUnavailable, TransactionMisused

H = TypeVar("H")
T = TypeVar("T")

_log = logging.getLogger("onefold.transaction")

_UNDER_WAY = (
    "the handler returned while tx.ledger_entry was still under way, in a task or a thread that it has left behind: "
    "its entry may be there without its addition. Nothing of the transaction is kept: await the task, or join the "
    "thread, before the handler returns"
)


class OwnedTransaction(Transaction[H]):
    """A transaction with its beginning and its end."""

    def __init__(
        self,
        executor: ThreadExecutor[H] | TaskExecutor[H],
        outbox: Callable[[], Outgoing] = no_outbox,
        sessions: Sessions | None = None,
        natural: Callable[[], NaturalWrites] | None = None,
    ) -> None:
        super().__init__(executor, outbox, sessions, natural)
        #: What it is called in the log: its operation, or its consumer.
        self.name = "a transaction"
        #: Whether its rows are kept, as far as is known now. None: not known, because COMMIT was sent.
        self.kept: bool | None = False
        #: Whether its COMMIT was answered: from then on a record that went with it is stored.
        self.settled = False
        #: Whether to report what its user seems to have forgotten.
        self.development = False
        #: Puts a time limit around a hook, where a hook that hangs would hold up others.
        self.limit_hook: Callable[[Callable[[], Any]], Callable[[], Any]] | None = None

    @property
    def executor(self) -> ThreadExecutor[H] | TaskExecutor[H]:
        """What has its connection."""
        return self._executor

    @property
    def touched(self) -> bool:
        """Whether its user may have written something."""
        return self._touched

    @property
    def pending(self) -> PendingWork:
        """What waits for its end."""
        return self._work()

    @property
    def joined(self) -> Sequence[Joined]:
        """The sessions that work inside of it."""
        return () if self._pending is None else self._pending.joined

    @property
    def is_idle(self) -> bool:
        """Whether its user was given the connection, and has had nothing executed on it: what is not awaited is not
        executed. Where a driver does not report that, something was."""
        return self._handed and not getattr(self._executor.connection, "executed", True)

    def carry(self, headers: Callable[[], Mapping[str, str]], request: tuple[bytes, str] | None = None) -> None:
        """Have its events carry on these headers of what caused it: trace, correlation; and name the request that they
        are of, by the digest of its record and its key."""
        self._carried, self._request = headers, request

    def forbid_awaiting(self) -> None:
        """Its user is a plain `def`, which cannot await."""
        self._in_plain_def = True

    def note_commit(self) -> None:
        """COMMIT was answered: the relay of this process may publish the events. A second call does nothing."""
        self.settled = True
        if self.kept is None:
            self.kept = True
            if self._pending is not None:
                self._pending.announce()

    def open(
        self,
        name: str,
        headers: Callable[[], Mapping[str, str]] | None = None,
        request: tuple[bytes, str] | None = None,
    ) -> None:
        """It has begun, for this operation or consumer. The rest is for `carry`, where that was not called before."""
        self.name = name
        if headers is not None:
            self._carried, self._request = headers, request
        self._over = None
        self._executor.transaction = self

    def end(self, kept: bool | None = False) -> None:
        """The request is about to be settled or released: the connection is not the handler's any more. `kept` is what
        is known of its rows until `conclude`: None where COMMIT is sent next."""
        self._over = ENDED
        self.kept = kept

    def interrupt(self) -> Callable[[], Flow[None]] | None:
        """Its executor is abandoned, wherever it stands. What is left to do concludes it with what is known now."""
        self._over = ENDED
        return functools.partial(self.conclude, self.kept) if self._pending else None

    async def conclude(self, kept: bool | None) -> None:
        """It has ended and its connection is given back: call the hooks, let go of the sessions.

        What a hook raises cannot change what is committed, nor the answer. None: the outcome is not known, so that
        neither kind of hook would be true. Interrupted in a hook, it goes on with the next: each is called once.
        """
        self.kept, self._session = kept, None
        if kept is None and self._pending:
            _log.warning(
                "%s: it is not known whether its transaction was committed; neither its commit nor its rollback hooks "
                "are called", self.name,
            )  # fmt: skip
        while self._pending and (call := self._take_call(self._pending, kept)) is not None:
            try:
                await Call(call)
            except Exception:
                ended = "COMMIT" if kept else "rollback"
                _log.exception("%s: a hook after %s failed (%s); the %s stands", self.name, ended, name_of(call), ended)
        self._executor.transaction = None  # neither must keep the other from being freed

    def _take_call(self, pending: PendingWork, kept: bool | None) -> Callable[[], Any] | None:
        """What is to be called next, now that it has ended like this. It is forgotten: nothing is called twice."""
        due = Due.BOTH if kept is None else Due.COMMIT if kept else Due.ROLLBACK
        if (hook := pending.take_hook(due)) is not None:
            return hook if self.limit_hook is None else self.limit_hook(hook)
        return functools.partial(pending.joined.pop().after_end, kept) if pending.joined else None

    def flush_events(self) -> tuple[Statement, ...]:
        """What writes its events, to go in front of COMMIT."""
        return () if self._pending is None else self._pending.flush()

    def is_open_for(self, outbox: Callable[[], Outgoing]) -> bool:
        """Whether a handler is inside of it at this moment, and its events go to this outbox: it is this Onefold's."""
        return self._over is None and self._outbox == outbox

    def deny(self, error: StoreUnavailable) -> None:
        """The route runs without its store, as it is configured to: there is no transaction to offer."""
        self._over = error

    def refuse_with(self, why: str) -> None:
        """It is not begun: a user who touches it gets this reason as the error."""
        self._over = why

    @property
    def is_open(self) -> bool:
        return self._over is None

    def check_end(self, *, keep_rows: bool = True) -> None:
        """Called before it is settled: raises TransactionMisused where a savepoint, a call that was not awaited, or one
        that is half done forbids that."""
        self._closing = True
        if self._under_way and keep_rows:
            raise TransactionMisused(_UNDER_WAY)
        if self._savepoints is not None:
            self._savepoints.check_end(keep_rows=keep_rows)
        if self._calls is not None and keep_rows:
            self._calls.check_end()

    def check_executed(self, whose: str) -> None:
        """Called when its sessions are closed: raises TransactionMisused, in development, where nothing was executed on
        the connection that its user took."""
        if self.development and self.is_idle:
            raise nothing_executed_error(whose, "Leave tx.connection alone where nothing is to be written")


async def close_sessions(tx: OwnedTransaction[Any], keep_rows: bool) -> None:
    """The transaction is about to end: have what joined it write what it holds back, or let go of it."""
    for joined in reversed(tx.joined):
        await Call(functools.partial(joined.before_end, keep_rows))


def is_kept(_: object) -> bool:
    """A COMMIT that was answered has kept the rows."""
    return True


async def commit(
    tx: OwnedTransaction[Any],
    work: Callable[[tuple[Statement, ...]], Flow[T]],
    *,
    keep_rows: bool = True,
    rows_kept: Callable[[T], bool | None] = is_kept,
) -> T:
    """Have `work` commit, and conclude. It is given what writes the events, none where the rows are not kept;
    `rows_kept` says of its answer whether they were."""
    tx.end(None if keep_rows else False)
    try:
        answer = await work(tx.flush_events() if keep_rows else ())
    except Exception as error:
        await tx.conclude(_judge_failed_commit(error) if tx.kept is None else tx.kept)
        raise
    outcome = rows_kept(answer)
    if outcome and not tx.settled:  # by another way than ReleaseCommitted, which has noted it
        tx.note_commit()
    await tx.conclude(outcome if keep_rows else False)
    return answer


async def undo(tx: OwnedTransaction[Any], work: Callable[[], Flow[T]]) -> T:
    """Have `work` roll back, and conclude."""
    try:
        await close_sessions(tx, False)
    except Exception:
        _log.warning("%s: a session could not be closed; its connection rolls back", tx.name, exc_info=True)
    tx.end()
    try:
        answer = await work()
    except Exception:
        await tx.conclude(False)
        raise
    await tx.conclude(False)
    return answer


def _judge_failed_commit(error: Exception) -> bool | None:
    """Whether the rows of a transaction whose COMMIT failed like this were kept. None: not known."""
    return None if isinstance(error, ConnectionLost | OutcomeUnknown | OutcomeUnknowable) else False
