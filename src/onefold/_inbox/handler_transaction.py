"""Running a handler: its work and what goes with it are committed together, or the error is returned.

The proof in front of COMMIT is what finds a transaction that the handler has ended or broken: COMMIT alone would answer
a broken one with a silent rollback.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from onefold._inbox.consumer import Consumer
from onefold._inbox.handler_call import Invocation, InvocationCloser, Performs
from onefold._inbox.sql.statements import Statements
from onefold._kernel.checkout import discard_on_error, rollback_and_release, with_connection
from onefold._kernel.current_transaction import current_transaction
from onefold._kernel.effects import (
    Acquire,
    Batch,
    Boundary,
    Call,
    Discard,
    Fetch,
    Flow,
    Now,
    ReleaseCommitted,
    Row,
    Statement,
)
from onefold._kernel.handler_errors import COMMITTED_BY_HANDLER, translate_refusal
from onefold._kernel.messages import Message, pick_carried
from onefold._kernel.owned_transaction import OwnedTransaction, close_sessions, commit, undo
from onefold.errors import (
    ConnectionLost,
    OnefoldError,
    ProgrammerError,
    SerializationFailed,
    StoreError,
    TransactionMisused,
)

T = TypeVar("T")

_log = logging.getLogger("onefold.consumer")


class HandlerTookTooLong(OnefoldError):
    """The transaction of a message ran out of its lease, or its handler of its time."""

    @classmethod
    def of(cls, consumer: Consumer, setting: str, seconds: float, more: str = "") -> HandlerTookTooLong:
        stepped = consumer.signature.works_in_steps
        undone = "what its steps have recorded stays" if stepped else "its transaction was rolled back"
        return cls(
            f"the handler of consumer {consumer.name!r} took longer than {setting}={seconds:g}, and {undone}{more}. "
            f"Make it quicker, or raise {setting}"
        )


class HandlerLostConnection(ConnectionLost):
    """The connection of a message's transaction was lost while its handler ran. The database was away, unless that
    happens each time."""


async def begin_transaction(opening: Callable[[], Flow[T]]) -> tuple[T, float]:
    """Have a connection, and a transaction on it by `opening`: its answer, and when that began. The server counts the
    lease from then on, also while the transaction waits for a lock."""
    await Acquire()
    began_at = await Now()
    return await discard_on_error(opening), began_at


class AnswerCheck:
    """Refuses what a handler returns, and logs that once."""

    def __init__(self, consumer: str) -> None:
        self._consumer = consumer
        self._is_logged = False

    def __call__(self, answer: object) -> None:
        if answer is None:
            return
        error = ProgrammerError(
            f"the handler of consumer {self._consumer!r} returned {answer!r:.200}; a handler returns None, and "
            "raises to say that it failed"
        )
        if not self._is_logged:
            self._is_logged = True
            _log.error("%s", error)
        raise error


class HandlerTransaction:
    """How one consumer's handler is run, in a transaction that has begun. `perform` calls it."""

    def __init__(self, consumer: Consumer, sql: Statements, perform: Performs) -> None:
        self._consumer = consumer
        self._sql = sql
        self._perform = perform
        self._check = AnswerCheck(consumer.name)
        self._session, self._opens = consumer.signature.session, consumer.signature.opens

    async def run(
        self,
        lookup: Statement,
        messages: list[Message],
        tx: OwnedTransaction[Any],
        after: tuple[Statement, ...],
        began_at: float,
    ) -> Exception | None:
        """Call the handler and commit. Returns the error that the handler's work is undone for. StoreError: not known.
        `lookup` returns a row if it was committed, and `began_at` is when the transaction began."""
        return await self._run(lookup, tx, lambda: self._call(messages, tx), lambda: after, began_at)

    async def run_each(
        self,
        lookup: Statement,
        messages: list[Message],
        tx: OwnedTransaction[Any],
        settle: Callable[[int], tuple[Statement, ...]],
        time_s: float,
        began_at: float,
    ) -> Exception | None:
        """`run` that calls the handler for one message after the other; none is begun after `time_s`. `settle` gets how
        many there were, and answers what goes in front of COMMIT."""
        count = 0

        async def call() -> None:
            nonlocal count
            over_at = await Now() + time_s
            for message in messages:
                if count and await Now() >= over_at:
                    break
                await self._call([message], tx)
                count += 1

        return await self._run(lookup, tx, call, lambda: settle(count), began_at)

    async def _call(self, messages: list[Message], tx: OwnedTransaction[Any]) -> None:
        tx.carry(functools.partial(_carry, messages))
        if not self._consumer.is_async:
            tx.forbid_awaiting()
        invocation = Invocation(self._consumer, messages, tx, tx.session() if self._session else None)
        if self._opens:
            tx.pending.joined.append(InvocationCloser(invocation, self._perform))
        self._check(await Call(functools.partial(self._perform, invocation, invocation.run)))

    async def _run(
        self,
        lookup: Statement,
        tx: OwnedTransaction[Any],
        call: Callable[[], Flow[None]],
        after: Callable[[], tuple[Statement, ...]],
        began_at: float,
    ) -> Exception | None:
        tx.open(f"consumer {self._consumer.name!r}")
        try:
            token = current_transaction.set(tx)
            try:
                await call()
            finally:
                current_transaction.reset(token)
            tx.check_end()
            await close_sessions(tx, True)
            tx.check_executed(f"the handler of consumer {self._consumer.name!r} returned")
        except Exception as error:
            return await self._undo(tx, error, began_at)
        try:
            await commit(tx, functools.partial(self._commit, lookup, after, began_at))
        except Exception as error:
            # What cannot be serialised has failed as it might have in the handler: it is tried again, and counted.
            if isinstance(error, StoreError) and not isinstance(error, SerializationFailed):
                raise
            return translate_refusal(error)
        return None

    async def _commit(
        self,
        lookup: Statement,
        after: Callable[[], tuple[Statement, ...]],
        began_at: float,
        events: tuple[Statement, ...],
    ) -> None:
        try:
            # First the proof that the transaction is still ours: nothing else may be written outside of it.
            await Batch((self._sql.proof, *events, *after(), Boundary.COMMIT))
        except ConnectionLost as error:
            await Discard()
            committed = await self._is_committed(lookup)
            if committed is None:
                raise
            if not committed:
                if await Now() - began_at >= self._consumer.lease_s:
                    raise HandlerTookTooLong.of(self._consumer, "lease_s", self._consumer.lease_s) from error
                # Its handler may have noticed nothing, or have passed it over.
                raise self._lost_connection(error) from error
        except Exception:
            await Discard()
            raise
        else:
            await ReleaseCommitted()

    async def _undo(self, tx: OwnedTransaction[Any], error: Exception, began_at: float) -> Exception:
        """Roll back. The error that the message has failed with; HandlerLostConnection: it is not judged."""
        for joined in tx.joined:
            if isinstance(joined, InvocationCloser):
                joined.invocation.error = error
        if isinstance(error, HandlerTookTooLong):
            # It was interrupted in the middle of something, or still runs on its thread: its connection is not used.
            tx.end()
            await Discard()
            await tx.conclude(False)
            return error
        ended, lost = await undo(tx, functools.partial(self._roll_back, tx))
        # The server ends the connection of a transaction that outlasts its lease: that is the handler's doing.
        if lost is not None and await Now() - began_at < self._consumer.lease_s:
            raise self._lost_connection(lost) from error
        if ended:
            misused = TransactionMisused(COMMITTED_BY_HANDLER)
            misused.__cause__ = error
            return misused
        return error

    def _lost_connection(self, lost: ConnectionLost) -> HandlerLostConnection:
        return HandlerLostConnection(
            f"the connection was lost while the handler of consumer {self._consumer.name!r} ran: {lost}"
        )

    async def _roll_back(self, tx: OwnedTransaction[Any]) -> tuple[bool, ConnectionLost | None]:
        """Whether the handler has ended the transaction by itself, and how its connection was found to be lost."""
        ended, lost = 0, None
        if tx.touched:
            try:
                ended = await Batch((self._sql.ended,))
            except ConnectionLost as error:
                lost = error
            except OnefoldError:
                pass  # aborted: the server has undone it, or does so now
        return ended > 0, await rollback_and_release() or lost

    async def _is_committed(self, lookup: Statement) -> bool | None:
        """Whether the rows of a COMMIT without an answer are there. None: not known, because the database does not
        answer; the ledger decides when the message is delivered again."""
        try:
            rows = await with_connection(lambda: _rows(lookup))
        except StoreError:
            return None
        return bool(rows)


def _carry(messages: Sequence[Message]) -> dict[str, str]:
    """Trace and correlation go on where there is one message they can come from."""
    return pick_carried(messages[0].headers) if len(messages) == 1 else {}


async def _rows(statement: Statement) -> list[Row]:
    return await Fetch(statement)
