"""Handling one message: the ledger row, the handler's rows and its events in one transaction; the ack comes after.

Theory of operation. The first statement of the transaction writes the ledger row. If it is there already the message is
a duplicate; if another transaction is just writing it, the database makes us wait for that one's outcome. So the ledger
decides, and whoever delivers twice delivers in vain. What fails rolls back with its ledger row, and a second
transaction writes it down as a letter: from then on it is ours and no longer the broker's.

Failure windows. A crash before COMMIT is a rollback: the broker delivers again, and says so; such a message is written
down first (`_again`), so that one that kills its process is found by its count of starts. A crash between COMMIT and
ack is a duplicate. A crash between rollback and letter costs the count of one failure. A lost answer to COMMIT is
looked up; what cannot be looked up is given back, and the ledger knows when it comes again.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onefold._kernel.borrow import borrowing, holding, undoing
from onefold._kernel.clock import milliseconds, wall_ms
from onefold._kernel.effects import Batch, Boundary, Fetch, Release, Statement, Step
from onefold._kernel.events import (
    DeadLettered,
    Dropped,
    Duplicate,
    Failed,
    Handled,
    InboxEvent,
    Listener,
    Parked,
    tell,
)
from onefold._kernel.messages import Delivery
from onefold._kernel.transaction import Transaction
from onefold.errors import (
    TransactionMisused,
)
from onefold.inbox.handler import Handling
from onefold.inbox.model import Consumer
from onefold.inbox.order import Early, Late, Stand, Turn, is_stale, judged
from onefold.inbox.parcel import Parcel, reason_of, received, with_failure
from onefold.inbox.sql import STATEMENTS
from onefold.policy.backoff import Draw

_log = logging.getLogger("onefold")

_REDELIVERED: Final = "delivered again: whoever had it before did not finish"


@dataclass(frozen=True, slots=True)
class Letter:
    """A message that is kept, and was started by us."""

    parcel: Parcel
    started: int
    failed: int
    history: str


@dataclass(frozen=True, slots=True)
class _Go:
    """The ledger row is written: the handler runs, and these go in front of its COMMIT."""

    after: tuple[Statement, ...]


class Inbox:
    """The flows of one consumer. `call` calls its handler; a worker puts a sync handler on a thread there."""

    def __init__(
        self,
        consumer: Consumer,
        dialect: str,
        *,
        draw: Draw,
        call: Callable[..., Any] | None = None,
        listener: Listener | None = None,
        now_ms: Callable[[], int] = wall_ms,
    ) -> None:
        self.consumer = consumer
        self.sql = STATEMENTS[dialect]
        #: Letters that were started but neither handled nor failed, because the database went away.
        self.unfinished: set[str] = set()
        self._name = consumer.name
        self._handling = Handling(consumer, self.sql, consumer.handler if call is None else call)
        self._listener = listener
        self._draw = draw
        self._now_ms = now_ms
        self._backoff = consumer.backoff
        self._lease_ms = milliseconds(consumer.lease_s)

    # --- what a worker calls -----------------------------------------------------------------------------

    async def handle(self, delivery: Delivery, tx: Transaction[Any]) -> InboxEvent:
        """Handle a delivery. When this returns the broker may forget it; StoreError: nothing is known, give it back."""
        parcel = received(delivery)
        problem = self._problem(parcel)
        if problem is not None:
            return self._told(await borrowing(lambda: self._refuse(parcel, problem, None)))
        if delivery.redelivered:
            return await self._again(parcel, tx)
        return self._told(await self._attempt(parcel, None, tx))

    async def handle_batch(self, deliveries: Sequence[Delivery], tx: Transaction[Any]) -> list[InboxEvent] | None:
        """Handle many in one transaction. None: it failed and nothing stayed; handle them one by one."""
        parcels = [received(delivery) for delivery in deliveries]
        if any(parcel.problem is not None for parcel in parcels) or any(d.redelivered for d in deliveries):
            return None
        fresh = await holding(lambda: self._claim_many(parcels))
        if fresh:
            once = {parcel.id: parcel for parcel in parcels if parcel.id in fresh}
            error = await self._run(list(once.values()), tx, ())
            if error is not None:
                if isinstance(error, TransactionMisused):  # one by one they may be duplicates, and then nobody is told
                    _log.error("consumer %r: %s", self._name, error, exc_info=error)
                return None
        else:
            await undoing()
        events: list[InboxEvent] = []
        for parcel in parcels:
            event = Handled if parcel.id in fresh else Duplicate
            fresh.discard(parcel.id)  # it may be there twice
            events.append(self._told(event(self._name, parcel.topic)))
        return events

    async def run_letter(self, letter: Letter, tx: Transaction[Any]) -> InboxEvent:
        """Handle a letter that `take` started."""
        problem = self._problem(letter.parcel)
        try:
            if problem is not None:
                return self._told(await borrowing(lambda: self._refuse(letter.parcel, problem, letter)))
            return self._told(await self._attempt(letter.parcel, letter, tx))
        except Exception:
            self.unfinished.add(letter.parcel.id)
            raise

    # --- one attempt -------------------------------------------------------------------------------------

    async def _again(self, parcel: Parcel, tx: Transaction[Any]) -> InboxEvent:
        """The process that had it may have died of it: count the start before it is run."""
        keep = self.sql.keep_new(self._name, parcel.values(), reason=_REDELIVERED, lease_ms=2 * self._lease_ms)
        if await borrowing(lambda: _count(keep)) == 0:
            return self._told(Duplicate(self._name, parcel.topic))
        return await self.run_letter(Letter(parcel, 1, 0, "[]"), tx)

    async def _attempt(self, parcel: Parcel, letter: Letter | None, tx: Transaction[Any]) -> InboxEvent:
        opened = await holding(lambda: self._open(parcel, letter))
        if not isinstance(opened, _Go):
            await Release()
            return opened
        error = await self._run([parcel], tx, opened.after)
        if error is None:
            return Handled(self._name, parcel.topic)
        return await borrowing(lambda: self._fail(parcel, error))

    async def _open(self, parcel: Parcel, letter: Letter | None) -> _Go | InboxEvent:
        """Begin, and write the ledger row if the message is ours to handle now."""
        sql, name, order = self.sql, self._name, self.consumer.order
        done = () if letter is None else (sql.drop(name, parcel.id),)
        begin: tuple[Step, ...] = (Boundary.BEGIN, *sql.opening(self._lease_ms))
        kept = letter is not None
        if order == "none":
            if await Batch((*begin, sql.claim(order, name, parcel.id, None, kept=kept))):
                return _Go(done)
            return await self._known(parcel, done)
        stream, epoch, version = _place(parcel)
        first = (sql.ensure(name, stream, epoch), sql.lock(name, stream))
        claim = sql.claim(order, name, parcel.id, (stream, epoch, version), kept=kept)
        if not await Batch((*begin, *first, claim)):
            not_yet = await self._judge(parcel, letter, done)
            if not_yet is not None:
                return not_yet
        return _Go((*done, *self._progress(stream, epoch, version)))

    def _progress(self, stream: bytes, epoch: int, version: int) -> tuple[Statement, ...]:
        advance = self.sql.advance(self._name, stream, epoch, version)
        if self.consumer.order == "latest":
            return (advance,)
        return (advance, self.sql.wake(self._name, stream, epoch, version + 1))

    async def _judge(self, parcel: Parcel, letter: Letter | None, done: tuple[Statement, ...]) -> InboxEvent | None:
        """It is not plainly the next one: look closer, with the stream's row locked. None: it is its turn after all."""
        sql, name = self.sql, self._name
        stream, epoch, version = _place(parcel)
        [(*row, handled, kept)] = await Fetch(sql.look(name, stream, epoch, parcel.id))
        if handled or (kept and letter is None):
            return await self._known(parcel, done)
        stand = Stand(*row)
        claim = sql.claim("none", name, parcel.id, None, kept=True)
        if self.consumer.order == "latest":
            if is_stale(stand, epoch, version):
                await Batch((claim, *done, Boundary.COMMIT))
                return Dropped(name, parcel.topic)
            verdict: Turn | Early | Late = Turn()
        else:
            verdict = judged(stand, epoch, version, wait_ms=milliseconds(self.consumer.baseline_wait_s))
        match verdict:
            case Turn():
                return None if await Batch((claim,)) else await self._known(parcel, done)
            case Early():
                await Batch((*self._waiting(stand, parcel, verdict), self._parked(parcel, letter, verdict), _COMMIT))
                return Parked(name, parcel.topic)
            case Late(reason):
                await Batch((self._dead(parcel, reason, letter), _COMMIT))
                return DeadLettered(name, parcel.topic, reason)

    def _waiting(self, stand: Stand, parcel: Parcel, early: Early) -> tuple[Statement, ...]:
        if not early.begins:
            return ()
        stream, epoch, _ = _place(parcel)
        wait = self.sql.wait(self._name, stream, epoch, milliseconds(self.consumer.baseline_wait_s))
        # What is parked of the epoch that ends here will never have its turn.
        return (wait, self.sql.wake(self._name, stream, epoch, 0)) if epoch > stand.epoch else (wait,)

    def _parked(self, parcel: Parcel, letter: Letter | None, early: Early) -> Statement:
        return self.sql.keep(
            self._name,
            parcel.values(),
            state="waiting",
            reason=early.reason,
            started=0 if letter is None else letter.started - 1,
            failed=0 if letter is None else letter.failed,
            history="[]" if letter is None else letter.history,
            due_ms=early.due_in_ms,
        )

    def _dead(self, parcel: Parcel, reason: str, letter: Letter | None) -> Statement:
        return self.sql.keep(
            self._name,
            parcel.values(),
            state="dead",
            reason=reason,
            started=0 if letter is None else letter.started,
            failed=0 if letter is None else letter.failed,
            history="[]" if letter is None else letter.history,
            due_ms=None,
        )

    async def _known(self, parcel: Parcel, done: tuple[Statement, ...]) -> InboxEvent:
        """Handled already, or kept already. A letter of what was handled goes."""
        await Batch((*done, _COMMIT) if done else (Boundary.ROLLBACK,))
        return Duplicate(self._name, parcel.topic)

    async def _claim_many(self, parcels: Sequence[Parcel]) -> set[str]:
        await Batch((Boundary.BEGIN, *self.sql.opening(self._lease_ms)))
        ids = json.dumps([parcel.id for parcel in parcels])
        return {message_id for (message_id,) in await Fetch(self.sql.claim_many(self._name, ids))}

    async def _run(
        self, parcels: Sequence[Parcel], tx: Transaction[Any], after: tuple[Statement, ...]
    ) -> Exception | None:
        messages = [parcel.message for parcel in parcels if parcel.message is not None]
        return await self._handling.run(parcels[0].id, messages, tx, after)

    # --- what fails --------------------------------------------------------------------------------------

    async def _fail(self, parcel: Parcel, error: Exception) -> InboxEvent:
        """Write down that it failed, and when it is tried again."""
        sql, name = self.sql, self._name
        first: tuple[Statement, ...] = ()
        if self.consumer.order != "none":
            stream, epoch, _ = _place(parcel)
            first = (sql.ensure(name, stream, epoch),)
        await Batch((Boundary.BEGIN, *first))
        kept = await Fetch(sql.known(name, parcel.id))
        state, started, failed, history = kept[0] if kept else ("waiting", 1, 0, "[]")
        handled = bool(await Fetch(sql.handled(name, parcel.id)))
        if handled and not isinstance(error, TransactionMisused):
            await Batch((Boundary.ROLLBACK,))  # by another delivery of it, meanwhile
            return Duplicate(name, parcel.topic)
        failed += 1
        # A handler that committed by itself has its rows and its ledger row: running it again would change nothing.
        dead = failed >= self.consumer.attempts or state == "dead" or handled
        wait_s = self._backoff.wait_s(failed, throttled=False, draw=lambda: 0.5 + self._draw() / 2)
        reason = reason_of(error)
        keep = sql.keep(
            name,
            parcel.values(),
            state="dead" if dead else "waiting",
            reason=reason,
            started=max(started, failed),
            failed=failed,
            history=with_failure(history, error, self._now_ms()),
            due_ms=None if dead else milliseconds(wait_s),
        )
        await Batch((keep, _COMMIT))
        return DeadLettered(name, parcel.topic, reason) if dead else Failed(name, parcel.topic, reason, failed)

    async def _refuse(self, parcel: Parcel, problem: str, letter: Letter | None) -> InboxEvent:
        await Batch((Boundary.BEGIN, self._dead(parcel, problem, letter), _COMMIT))
        return DeadLettered(self._name, parcel.topic, problem)

    def _problem(self, parcel: Parcel) -> str | None:
        """Why the message cannot be handled at all: it cannot be read, or lacks what an ordered consumer needs."""
        message = parcel.message
        if message is None or self.consumer.order == "none":
            return parcel.problem
        wants = f"consumer {self._name!r} is {self.consumer.order}"
        if message.key is None:
            return f"{wants}, but the message has no key (CloudEvents attribute partitionkey) to be in order with"
        if message.version is None or message.version < 1:
            return f"{wants}, but the message has no version from 1 up (CloudEvents attribute sequence)"
        return None

    def _told(self, event: InboxEvent) -> InboxEvent:
        tell(self._listener, event)
        return event


_COMMIT: Final = Boundary.COMMIT


def _place(parcel: Parcel) -> tuple[bytes, int, int]:
    message, stream = parcel.message, parcel.stream
    # Anything else was refused before: see _problem.
    assert message is not None
    assert message.version is not None
    assert stream is not None
    return stream, message.epoch or 0, message.version


async def _count(*steps: Statement) -> int:
    return await Batch(steps)
