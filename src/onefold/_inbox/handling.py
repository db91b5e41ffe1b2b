"""Handling one message: the ledger row, the handler's rows and its events in one transaction; the ack comes after.

Theory of operation. The first statement of the transaction writes the ledger row. If it is there already the message is
a duplicate; if another transaction is just writing it, the database makes us wait for that one's outcome. So the ledger
decides, and what is delivered twice is handled once. What fails rolls back with its ledger row, and a second
transaction writes it down as a failed message: from then on it is ours and no longer the broker's.

Failure windows. A crash before COMMIT is a rollback: the broker delivers again, marked as redelivered; such a message
is written down first (`_run_kept`), so that one that kills its process is found by its count of starts. A crash between
COMMIT and ack is a duplicate. A crash between rollback and failed message costs the count of one failure. A lost answer
to COMMIT is looked up; what cannot be looked up is given back, and the ledger knows when it comes again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from onefold._inbox.catching_up import RUN_S_MAX, StreamsBehind, park_all
from onefold._inbox.consumer import Consumer
from onefold._inbox.delivery_reading import apply_id_of, find_problem
from onefold._inbox.failing import write_failure
from onefold._inbox.handler_call import Performs, perform_here
from onefold._inbox.handler_transaction import HandlerLostConnection, HandlerTransaction, begin_transaction
from onefold._inbox.handling_log import log_failure
from onefold._inbox.in_hand import InHand, claim, is_ours, open_and_claim, skip_not_ours
from onefold._inbox.keeping import begin_wait, dead_letter, keep_new, park
from onefold._inbox.message_identity import identity_of
from onefold._inbox.others_topics import OthersTopics
from onefold._inbox.processing_trace import ProcessingTrace
from onefold._inbox.renaming import rename
from onefold._inbox.sql import STATEMENTS
from onefold._inbox.stepped_handling import BEGINS_STREAM, SteppedHandling, StepsForMessages
from onefold._inbox.stored_message import (
    FailedMessage,
    StoredMessage,
    kept_as_started,
    stored_from_delivery,
    stream_position,
    write_identities,
)
from onefold._inbox.version_order import Early, Late, StreamPosition, Turn, decide_turn, is_stale
from onefold._kernel.checkout import rollback_and_release, with_connection
from onefold._kernel.clock import milliseconds, monotonic_s, wall_ms
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Release, Statement, begin_at
from onefold._kernel.messages import Delivery
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import (
    DeadLettered,
    Dropped,
    Duplicate,
    Failed,
    Handled,
    InboxEvent,
    Parked,
)
from onefold._kernel.tracing import Tracer
from onefold._policy.backoff import Draw
from onefold.errors import TransactionMisused

_log = logging.getLogger("onefold.consumer")

_REDELIVERED: Final = "delivered again: the process that had it before did not finish"


@dataclass(frozen=True, slots=True)
class _Go:
    """The ledger row is written: the handler runs, and these go in front of its COMMIT."""

    before_commit: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class _IdTakenByOtherSource:
    """Its id is taken by another source's message: it is stored under source and id."""


class Inbox:
    """The flows of one consumer. `perform` calls its handler; a worker puts a sync handler on a thread there."""

    def __init__(
        self,
        consumer: Consumer,
        dialect: str,
        *,
        draw: Draw,
        perform: Performs = perform_here,
        listener: Listener | None = None,
        steps: StepsForMessages | None = None,
        tracer: Tracer | None = None,
        others: OthersTopics | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        """`steps` is for handlers that work in recorded steps, `others` what a worker knows of other processes."""
        self.consumer = consumer
        self.sql = STATEMENTS[dialect]
        #: Those that this process has started: see `in_hand.py`.
        self.in_hand = InHand()
        #: Those that were started but neither handled nor failed: the database went away, or a stop cut them off.
        self.unfinished = InHand()
        #: Those whose handler lost its connection. It may be what costs it: that they were started counts.
        self.suspects = InHand()
        #: What other processes of the consumer handle, and this one does not.
        self.others = others or OthersTopics(consumer)
        #: Streams whose last delivery had to wait for an earlier one, as far as this process knows.
        self.behind = StreamsBehind()
        self._name = consumer.name
        self._handler_tx = HandlerTransaction(consumer, self.sql, perform)
        in_steps = consumer.signature.works_in_steps
        self._stepped = SteppedHandling(consumer, self.sql, perform, steps) if in_steps else None
        self._listener = listener
        self._trace = ProcessingTrace(tracer, consumer.name)
        self._try = self._trace.wrap(self._attempt)
        self._draw = draw
        self._now_ms = now_ms
        self.lease_ms = milliseconds(consumer.lease_s)

    # --- what a worker calls -----------------------------------------------------------------------------

    def read(self, delivery: Delivery) -> Delivery:
        """A delivery as this consumer reads it, and as `handle` wants it."""
        return apply_id_of(self.consumer, delivery)

    async def handle(self, delivery: Delivery, tx: OwnedTransaction[Any]) -> InboxEvent:
        """Handle a delivery. When this returns the broker may forget it; StoreError: nothing is known, give it back."""
        stored = stored_from_delivery(delivery)
        problem = find_problem(self.consumer, stored)
        if problem is not None:
            return self.report(await with_connection(lambda: self._refuse(stored, problem)))
        if delivery.redelivered:
            return await self._run_kept(stored, _REDELIVERED, tx)
        if self._stepped is not None and self._stepped.begins_stream(stored):
            return await self._run_kept(stored, BEGINS_STREAM, tx)
        return self.report(await self._try(stored, tx))

    async def keep_for_others(self, deliveries: Sequence[Delivery]) -> list[InboxEvent]:
        """Keep deliveries of topics that only other processes have, for those; then the broker may forget them."""
        events = await with_connection(lambda: self.others.keep(self.sql, deliveries, self.lease_ms))
        return [self.report(event) for event in events]

    async def handle_batch(self, deliveries: Sequence[Delivery], tx: OwnedTransaction[Any]) -> list[InboxEvent] | None:
        """Handle many in one transaction; those of a stream that is behind are parked in one. None: it failed and
        nothing stayed; handle them one by one."""
        if self.consumer.order == "strict":
            parked = await park_all(self, deliveries)
            return None if parked is None else [self.report(event) for event in parked]
        stored_messages = [stored_from_delivery(delivery) for delivery in deliveries]
        if any(stored.problem is not None for stored in stored_messages) or any(d.redelivered for d in deliveries):
            return None
        fresh, began_at = await begin_transaction(lambda: self._claim_many(stored_messages))
        if fresh is None:
            await rollback_and_release()
            return None
        if fresh:
            once = {(stored.id, stored.source): stored for stored in stored_messages}
            new = [once[each] for each in once if each in fresh]
            error = await self._trace.follow_many(new, self._run(new, tx, (), began_at))
            if error is not None:
                # One by one they may be duplicates, which are not logged.
                if isinstance(error, TransactionMisused):
                    _log.error("consumer %r: %s", self._name, error, exc_info=error)
                return None
        else:
            await rollback_and_release()
        events: list[InboxEvent] = []
        for stored in stored_messages:
            event = Handled if (stored.id, stored.source) in fresh else Duplicate
            fresh.discard((stored.id, stored.source))  # it may be there twice
            events.append(self.report(event(self._name, stored.topic)))
        return events

    async def run_failed(self, failed_message: FailedMessage, tx: OwnedTransaction[Any]) -> InboxEvent:
        """Handle a failed message that `take` started."""
        problem = find_problem(self.consumer, failed_message)
        try:
            if failed_message.row_id != failed_message.id:
                renamed = await with_connection(lambda: rename(self.sql, self._name, failed_message))
                if renamed is None:
                    return self.report(Duplicate(self._name, failed_message.topic))
                failed_message = self.in_hand.rename(failed_message, renamed)
            if problem is not None:
                return self.report(await with_connection(lambda: self._refuse(failed_message, problem)))
            event = await self._try(failed_message, tx)
            if failed_message.redrive is not None and isinstance(event, Handled | Failed | DeadLettered):
                event = replace(event, redriven=True)
            return self.report(event)
        except BaseException as error:  # a stop that cuts it off, too: taken for a death, it would make it a suspect
            self.abandon([failed_message], as_started=isinstance(error, HandlerLostConnection))
            raise
        finally:
            self.in_hand.drop([failed_message])

    def abandon(self, failed_messages: Iterable[FailedMessage], *, as_started: bool = False) -> None:
        """These were interrupted: they are to be given back, as not started or as suspects. A suspect stays one."""
        abandoned = [each for each in failed_messages if as_started or each.row_id not in self.suspects]
        self.in_hand.drop(abandoned)
        (self.suspects if as_started else self.unfinished).hold(abandoned)

    # --- one attempt -------------------------------------------------------------------------------------

    async def _run_kept(self, stored: StoredMessage, reason: str, tx: OwnedTransaction[Any]) -> InboxEvent:
        """Keep it as a failed message that is started, before it is run: a process that dies of it is found by that."""
        lease_ms = 2 * self.lease_ms
        asked: list[StoredMessage] = []
        keep = functools.partial(keep_new, self.sql, self._name, stored, reason, lease_ms=lease_ms, started=1)
        try:
            kept = await with_connection(functools.partial(keep, note=asked.append))
        except GeneratorExit:  # it may have been kept: cut off, it counts as not started all the same
            self.abandon(kept_as_started(each, reason, self._now_ms(), lease_ms) for each in asked[-1:])
            raise
        if kept is None:
            return self.report(self._trace.note(stored, Duplicate(self._name, stored.topic)))
        failed_message = kept_as_started(kept, reason, self._now_ms(), lease_ms)
        self.in_hand.hold([failed_message])
        return await self.run_failed(failed_message, tx)

    async def _attempt(self, stored: StoredMessage, tx: OwnedTransaction[Any]) -> InboxEvent:
        began = monotonic_s()
        opening = self._open if self.consumer.order == "none" else self._open_in_order
        opened, began_at = await begin_transaction(lambda: opening(stored))
        if isinstance(opened, _IdTakenByOtherSource):
            await Release()
            return await self._attempt_apart(stored.set_apart(), tx)
        if not isinstance(opened, _Go):
            await Release()
            return opened
        if self._stepped is None:
            error = await self._run([stored], tx, opened.before_commit, began_at)
        else:
            if isinstance(outcome := await self._stepped.run(stored, opened.before_commit), Duplicate | Parked):
                return outcome
            error = outcome
            if await self._stepped.finds_id_taken(stored, error):
                return await self._attempt_apart(stored.set_apart(), tx)
        if error is None:
            if self.behind and stored.stream is not None and not isinstance(stored, FailedMessage):
                self.behind.discard(stored.stream)
            return Handled(self._name, stored.topic, monotonic_s() - began)
        return await with_connection(lambda: self._fail(stored, error))

    async def _attempt_apart(self, stored: StoredMessage, tx: OwnedTransaction[Any]) -> InboxEvent:
        """Its id is that of another source's message: the same again, under a name of its own."""
        if isinstance(stored, FailedMessage):
            renamed = await with_connection(functools.partial(rename, self.sql, self._name, stored))
            if renamed is None:
                return Duplicate(self._name, stored.topic)
            stored = self.in_hand.rename(stored, renamed)
        try:
            return await self._attempt(stored, tx)
        finally:
            self.in_hand.pop(stored.id, None)

    async def _open(self, stored: StoredMessage) -> _Go | _IdTakenByOtherSource | InboxEvent:
        """Begin, and write the ledger row if the message is ours to handle."""
        sql, name = self.sql, self._name
        kept = isinstance(stored, FailedMessage)
        done = (sql.drop(name, stored.id),) if kept else ()
        begin, opening = begin_at(self.consumer.isolation), sql.opening(self.lease_ms)
        if stored.own_id is not None:
            # A delivery that saw its id free may be writing its row under that: take the id first, or wait for it.
            own = identity_of(stored.own_id, stored.source)
            if not await Batch((begin, *opening, sql.take_id(name, own))) and await Fetch(sql.handled(name, own)):
                return await self._end_as_duplicate(stored, done)
            if await Batch((claim(sql, self.consumer, stored, None),)):
                return _Go(done)
        elif await Batch((begin, open_and_claim(sql, self.consumer, stored, self.lease_ms))):
            return _Go(done)
        elif opening:
            await Batch(opening)
        # Its row was there, or is not ours to write: find out which.
        if not await is_ours(sql, name, stored):
            return await skip_not_ours(name, stored)
        if await Fetch(sql.id_conflict(name, stored.identity, kept=kept)):
            await Batch((Boundary.ROLLBACK,))
            return _IdTakenByOtherSource()
        return await self._end_as_duplicate(stored, done)

    async def _open_in_order(self, stored: StoredMessage) -> _Go | _IdTakenByOtherSource | InboxEvent:
        """Begin, lock the stream, and write the ledger row if it is the message's turn."""
        sql, name = self.sql, self._name
        done = (sql.drop(name, stored.id),) if isinstance(stored, FailedMessage) else ()
        stream, epoch, version = stream_position(stored)
        first: tuple[BatchItem, ...] = (sql.ensure(name, stream, epoch), sql.lock(name, stream))
        if self._stepped is None:
            first = (*first, claim(sql, self.consumer, stored, (stream, epoch, version)))
        begin: tuple[BatchItem, ...] = (begin_at(self.consumer.isolation), *sql.opening(self.lease_ms))
        if not await Batch((*begin, *first)) or self._stepped is not None:
            not_yet = await self._judge(stored, done)
            if not_yet is not None:
                return not_yet
        return _Go((*done, *self._progress(stream, epoch, version)))

    def _progress(self, stream: bytes, epoch: int, version: int) -> tuple[Statement, ...]:
        advance = self.sql.advance(self._name, stream, epoch, version)
        if self.consumer.order == "latest":
            return (advance,)
        return (advance, self.sql.wake(self._name, stream, epoch, version + 1))

    async def _judge(
        self, stored: StoredMessage, done: tuple[Statement, ...]
    ) -> _IdTakenByOtherSource | InboxEvent | None:
        """It is not plainly the next one: look closer, with the stream's row locked. None: it is its turn after all."""
        sql, name = self.sql, self._name
        stream, epoch, version = stream_position(stored)
        if not await is_ours(sql, name, stored):
            return await skip_not_ours(name, stored)
        [(*row, handled, kept, conflict)] = await Fetch(sql.look(name, stream, epoch, stored.identity))
        if handled or (kept and not isinstance(stored, FailedMessage)):
            return await self._end_as_duplicate(stored, done)
        if conflict:
            await Batch((Boundary.ROLLBACK,))
            return _IdTakenByOtherSource()
        position = StreamPosition(*row)
        write = sql.claim("none", name, stored.identity, None, kept=True)
        if self.consumer.order == "latest":
            if is_stale(position, epoch, version):
                await Batch((write, *done, Boundary.COMMIT))
                return Dropped(name, stored.topic)
            verdict: Turn | Early | Late = Turn()
        else:
            verdict = decide_turn(position, epoch, version, wait_ms=milliseconds(self.consumer.baseline_wait_s))
        match verdict:
            case Turn() if self._stepped is not None:
                # The stream waits in front of it for as long as its steps take: also one that begins with it.
                await Batch((sql.advance(name, stream, epoch, version - 1),))
                return None
            case Turn():
                return None if await Batch((write,)) else await self._end_as_duplicate(stored, done)
            case Early():
                waits = begin_wait(sql, self.consumer, position, stored, verdict)
                await Batch((*waits, park(sql, name, stored, verdict), _COMMIT))
                self.behind.note(stream)
                return Parked(name, stored.topic)
            case Late(reason):
                await Batch((dead_letter(sql, name, stored, reason), _COMMIT))
                return DeadLettered(name, stored.topic, reason, stored.id)

    async def _end_as_duplicate(self, stored: StoredMessage, done: tuple[Statement, ...]) -> InboxEvent:
        """Handled already, or kept already. A failed message of what was handled goes."""
        await Batch((*done, _COMMIT) if done else (Boundary.ROLLBACK,))
        return Duplicate(self._name, stored.topic)

    async def _claim_many(self, stored_messages: Sequence[StoredMessage]) -> set[tuple[str, str | None]] | None:
        """Name and source of those that are new. None: one has the id of another source's message."""
        await Batch((begin_at(self.consumer.isolation), *self.sql.opening(self.lease_ms)))
        identities = write_identities(stored_messages)
        fresh = {(name, source) for name, source in await Fetch(self.sql.claim_many(self._name, identities))}
        new = all((stored.id, stored.source) in fresh for stored in stored_messages)
        return fresh if new or not await Fetch(self.sql.any_id_conflict(self._name, identities)) else None

    async def _run(
        self, stored_messages: Sequence[StoredMessage], tx: OwnedTransaction[Any],
        before_commit: tuple[Statement, ...], began_at: float,
    ) -> Exception | None:  # fmt: skip
        messages = [stored.message for stored in stored_messages if stored.message is not None]
        lookup = self.sql.handled(self._name, stored_messages[0].identity)
        return await self._handler_tx.run(lookup, messages, tx, before_commit, began_at)

    async def run_each(
        self,
        stored_messages: Sequence[StoredMessage],
        tx: OwnedTransaction[Any],
        settle: Callable[[int], tuple[Statement, ...]],
        began_at: float,
    ) -> Exception | None:
        """Run the handler for one message after another, in one transaction, while there is time: see `catching_up`."""
        messages = [stored.message for stored in stored_messages if stored.message is not None]
        time_s = min(RUN_S_MAX, self.consumer.lease_s / 4)
        lookup = self.sql.handled(self._name, stored_messages[0].identity)
        run = self._handler_tx.run_each(lookup, messages, tx, settle, time_s, began_at)
        return await self._trace.follow_many(stored_messages, run)

    # --- what fails --------------------------------------------------------------------------------------

    async def _fail(self, stored: StoredMessage, error: Exception) -> InboxEvent:
        """Record that it failed, and when it is tried again."""
        return await write_failure(self.sql, self.consumer, stored, error, draw=self._draw, now_ms=self._now_ms)

    async def _refuse(self, stored: StoredMessage, problem: str) -> InboxEvent:
        await Batch((Boundary.BEGIN,))
        if not await is_ours(self.sql, self._name, stored):
            return await skip_not_ours(self._name, stored)
        is_failed_message = isinstance(stored, FailedMessage)
        if not is_failed_message and await Fetch(self.sql.id_conflict(self._name, stored.identity)):
            stored = stored.set_apart()
        await Batch((dead_letter(self.sql, self._name, stored, problem), _COMMIT))
        return DeadLettered(self._name, stored.topic, problem, stored.id)

    def report(self, event: InboxEvent) -> InboxEvent:
        log_failure(event, self.consumer.attempts)
        emit(self._listener, event)
        return event


_COMMIT: Final = Boundary.COMMIT
