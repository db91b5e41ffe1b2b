"""Handling a message whose handler works in recorded steps: a transaction is open in its steps, and nowhere else.

Theory of operation. The ledger and the order were looked at; then the work of the message is claimed, which finds it
done, busy elsewhere, or left with steps that are recorded. The handler runs; its end is the ledger row, where its
stream stands and the end of the work, in one transaction: that of `finish`, or one of its own. In a strict stream the
versions behind it wait meanwhile: the stream stands in front of it until then, and its very first version, which has
nothing in front, is kept as a failed message.

A work that is busy elsewhere (the broker has delivered again, or another process has died and its lease still runs) is
kept as a failed message that was not started, and looked at again: nothing is run twice, lost, or counted as a failure.
What fails keeps its recorded steps, and the next attempt goes on behind them. A call whose outcome a person must find
out makes it a dead letter: `onefold keys resume` has it tried again.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from typing import Any, Final, Protocol

from onefold._inbox.consumer import Consumer
from onefold._inbox.handler_call import Invocation, Performs
from onefold._inbox.handler_transaction import AnswerCheck
from onefold._inbox.sql.statements import Statements
from onefold._inbox.stored_message import FailedMessage, StoredMessage, kept_as_started, stream_position, write_held
from onefold._kernel.checkout import fetch_rows, rollback_and_release, run_batch, with_connection
from onefold._kernel.clock import milliseconds, wall_ms
from onefold._kernel.effects import Batch, BatchItem, Boundary, Call, Fetch, Flow, Statement
from onefold._kernel.messages import Message
from onefold._kernel.telemetry.consumer_events import Duplicate, Parked
from onefold.errors import (
    ConfigurationError,
    OutcomeUnknown,
    StoreUnavailable,
    UniqueViolated,
    WorkInProgress,
    WorkParked,
)

_log = logging.getLogger("onefold.consumer")

#: What is busy elsewhere is looked at so often while its lease runs.
_LOOKS: Final = 3

BEGINS_STREAM: Final = "it begins its stream and is being handled: later versions wait for it"

_BUSY: Final = "delivered again while another process was handling it"


class MessageAttempt(Protocol):
    """One attempt at a message, by its work in recorded steps."""

    @property
    def is_over(self) -> bool:
        """Whether its end is committed, and the ledger row with it."""
        ...

    @property
    def is_taken_over(self) -> bool:
        """Whether another process has it."""
        ...

    @property
    def parked(self) -> WorkParked | None:
        """Why it waits for a person, if it does."""
        ...

    def steps(self) -> Any:
        """What the handler gets."""
        ...

    def end(self) -> Flow[None]: ...
    def fail(self) -> Flow[None]: ...

    def forget(self) -> tuple[Statement, ...]:
        """What deletes its work and all that is recorded of it, unless it is being done."""
        ...

    def interrupt(self) -> None:
        """Nothing more may be awaited for it."""
        ...


@dataclass(frozen=True, slots=True)
class MessageEnd:
    """What the end of a message writes, beside the end of its work."""

    unless: tuple[Statement, ...]
    """Refused (RequiredValueMissing) where it was handled."""
    before: tuple[BatchItem, ...]
    """What is locked before its work is."""
    settle: tuple[Statement, ...]
    """The ledger row and what goes with it. Refused where it was handled, or is not in its turn."""
    known: Statement
    """A row: that is committed."""


class StepsForMessages(Protocol):
    """What gives the handlers of an application's consumers their steps."""

    def begin(self, consumer: Consumer, stored: StoredMessage, end: MessageEnd) -> Flow[MessageAttempt]:
        """One attempt at a message. Raises WorkInProgress, WorkParked."""
        ...


class SteppedHandling:
    """How one consumer's handler is run in steps."""

    def __init__(self, consumer: Consumer, sql: Statements, perform: Performs, steps: StepsForMessages | None) -> None:
        if steps is None:
            raise ConfigurationError(
                f"the handler of consumer {consumer.name!r} works in recorded steps, which cannot be given here: run "
                "it by the Onefold or AsyncOnefold that it is declared at"
            )
        self._consumer = consumer
        self._sql = sql
        self._perform = perform
        self._check = AnswerCheck(consumer.name)
        self._steps = steps

    async def run(self, stored: StoredMessage, after: tuple[Statement, ...]) -> Duplicate | Parked | Exception | None:
        """Handle it. An error: it has failed, and its recorded steps stay. Parked: it is busy elsewhere. `after`
        goes with the ledger row. The transaction that found out that it is its turn is ended first. Raises StoreError:
        the store could not record what was done, which is not a failure of the handler."""
        # Of a strict stream it has written where that stands; else a ledger row, which comes with the end.
        if self._consumer.order == "none":
            await rollback_and_release()
        else:
            await with_connection(functools.partial(run_batch, Boundary.COMMIT))
        try:
            work = await self._steps.begin(self._consumer, stored, self._end_of(stored, after))
        except WorkInProgress:
            return await with_connection(functools.partial(self._postpone, stored))
        except WorkParked as parked:
            return parked
        assert stored.message is not None
        error = await self._call(work, stored.message)
        if error is None or work.is_over:
            if error is not None:
                _log.error(
                    "consumer %r: message %s is handled, and its handler raised after work.finish: %s",
                    self._consumer.name, stored.id, error, exc_info=error,
                )  # fmt: skip
            return None
        if work.is_taken_over:
            return await with_connection(functools.partial(self._postpone, stored))
        if isinstance(error, StoreUnavailable | OutcomeUnknown):
            raise error
        if isinstance(stored, FailedMessage):
            await with_connection(functools.partial(self._forget_discarded, stored, work))
        return work.parked or error

    async def finds_id_taken(self, stored: StoredMessage, error: Exception | None) -> bool:
        """Whether its end was refused because another source's message of the same id has ended meanwhile."""
        if not isinstance(error, UniqueViolated):
            return False
        is_failed_message = isinstance(stored, FailedMessage)
        conflict = self._sql.id_conflict(self._consumer.name, stored.identity, kept=is_failed_message)
        return bool(await with_connection(functools.partial(fetch_rows, conflict)))

    def begins_stream(self, stored: StoredMessage) -> bool:
        """Whether it is the first version of a strict stream. Nothing stands in front of those behind it until it has
        ended, so it is kept as a failed message, which they wait for."""
        return self._consumer.order == "strict" and stream_position(stored)[2] == 1

    def _end_of(self, stored: StoredMessage, after: tuple[Statement, ...]) -> MessageEnd:
        sql, name, who = self._sql, self._consumer.name, stored.identity
        at = None if self._consumer.order == "none" else stream_position(stored)
        return MessageEnd(
            unless=(sql.stepped.unless_handled(name, who),),
            before=() if at is None else (sql.lock(name, at[0]),),
            # A delivery of it that came meanwhile is kept as a failed message.
            settle=(sql.stepped.settle(name, who, at), sql.stepped.drop_kept(name, who), *after),
            known=sql.handled(name, who),
        )

    async def _call(self, work: MessageAttempt, message: Message) -> Exception | None:
        invocation = Invocation(self._consumer, [message], steps=work.steps())
        try:
            answer = await Call(functools.partial(self._perform, invocation, invocation.run))
            self._check(answer)
            await work.end()
        except Exception as error:
            invocation.error = error
            await work.fail()
        except BaseException:
            work.interrupt()
            raise
        if self._consumer.signature.opens:
            await self._close(invocation, kept=work.is_over)
        return invocation.error

    async def _close(self, invocation: Invocation, *, kept: bool) -> None:
        try:
            await Call(functools.partial(self._perform, invocation, functools.partial(invocation.close, kept)))
        except Exception as error:
            if error is not invocation.error:  # one that came through the dependency's `yield`
                _log.exception(
                    "consumer %r: a dependency of message %s failed while it was closed; what was recorded of the "
                    "message stands", self._consumer.name, invocation.messages[0].id,
                )  # fmt: skip

    async def _forget_discarded(self, stored: FailedMessage, work: MessageAttempt) -> None:
        """`discard` forgets the work of a message, but for one that is being done. Its lease has ended just now: what
        was discarded before is forgotten here, what is discarded later by `discard` itself."""
        if not await Fetch(self._sql.known(self._consumer.name, stored.row_id)):
            await Batch((Boundary.BEGIN, *work.forget(), Boundary.COMMIT))

    async def _postpone(self, stored: StoredMessage) -> Duplicate | Parked:
        """It is busy elsewhere: keep it, and look again. That it was started to find this out does not count."""
        sql, name = self._sql, self._consumer.name
        wait_s = self._consumer.lease_s / _LOOKS
        wait_ms, lease_ms = milliseconds(wait_s), milliseconds(self._consumer.lease_s)
        if isinstance(stored, FailedMessage):
            await Batch((sql.in_hand.give_back(name, write_held([stored]), wait_ms),))
        else:
            values, apart = stored.values(), stored.identity.apart
            keep = sql.keep_new(name, values, apart, reason=_BUSY, lease_ms=lease_ms)
            if not await Batch((Boundary.BEGIN, keep)):
                await Batch((Boundary.ROLLBACK,))
                return Duplicate(name, stored.topic)  # handled, or kept already
            kept = write_held([kept_as_started(stored, _BUSY, wall_ms(), lease_ms)])
            await Batch((sql.in_hand.give_back(name, kept, wait_ms), Boundary.COMMIT))
        _log.info(
            "consumer %r: message %s on %r is being handled by another process, or the lease of one that died runs on "
            "(%g s at most); it is looked at again in %.3g s",
            name, stored.id, stored.topic, self._consumer.lease_s, wait_s,
        )  # fmt: skip
        return Parked(name, stored.topic)
