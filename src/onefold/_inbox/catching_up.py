"""Catching up: a key that stood still runs what is parked behind it in one go, and parks in one go what still arrives.

Theory of operation. A strict key whose message fails parks all that come after it, one failed message each. Started and
run one by one, as failed messages are, they would leave more slowly than new ones arrive, and the key would be behind
for ever. So when one of a key was handled, those that follow it without a gap are started together and run in one
transaction: the handler is called for each of them, in their order, and what it wrote commits together with all their
ledger rows and with where the stream now stands. If one fails nothing of the go stays, and they are run one by one, so
that only that one has failed.

The stream's row is locked all along, so no other process handles or parks anything of this stream, and the first one's
turn is the turn of all. What was started and not run is put back. A crash makes suspects of those that were started:
they are run alone then, as all suspects are.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from onefold._inbox.delivery_reading import find_problem
from onefold._inbox.handler_transaction import begin_transaction
from onefold._inbox.keeping import park
from onefold._inbox.stored_message import (
    StoredMessage,
    stored_from_delivery,
    stream_position,
    write_held,
    write_identities,
)
from onefold._inbox.version_order import Early, StreamPosition, decide_turn
from onefold._kernel.checkout import rollback_and_release, with_connection
from onefold._kernel.effects import Batch, BatchItem, Boundary, Fetch, Statement, begin_at
from onefold._kernel.messages import Delivery
from onefold._kernel.owned_transaction import OwnedTransaction
from onefold._kernel.telemetry.consumer_events import Duplicate, Handled, InboxEvent, Parked

if TYPE_CHECKING:
    from onefold._inbox.handling import Inbox
    from onefold._inbox.stored_message import FailedMessage

#: How many failed messages are run in one go at most, and for how long one may go on taking the next: a transaction of
#: many handlers must not outlive its lease, nor hold what it locks for long.
RUN_MAX: Final = 100
BEHIND_MAX: Final = 10_000
RUN_S_MAX: Final = 1.0


class StreamsBehind(set[bytes]):
    """The streams of which something is parked, as far as this process knows. A hint: one that is lost costs that the
    deliveries of its stream are parked one by one."""

    def note(self, stream: bytes) -> None:
        if len(self) >= BEHIND_MAX:
            self.clear()
        self.add(stream)


async def run_in_one_go(
    inbox: Inbox, failed_messages: Sequence[FailedMessage], tx: OwnedTransaction[Any]
) -> list[InboxEvent]:
    """Handle failed messages that `take_run` started; the events of those that were handled. None were: run them one
    by one, and it is seen why. Only some were: time was up, and the others are parked again."""
    if inbox.consumer.signature.works_in_steps:
        return []  # each is a work of its own
    if inbox.consumer.signature.opens:
        return []  # what dependencies have opened stays open until COMMIT: for a hundred messages it may not suffice
    is_their_turn, began_at = await begin_transaction(lambda: _is_their_turn(inbox, failed_messages))
    if not is_their_turn:
        await rollback_and_release()
        return []
    handled = 0

    def settle(count: int) -> tuple[Statement, ...]:
        nonlocal handled
        handled = count
        return _settle(inbox, failed_messages[:count], failed_messages[count:])

    if await inbox.run_each(failed_messages, tx, settle, began_at) is not None:
        return []
    inbox.in_hand.drop(failed_messages)
    return [inbox.report(Handled(inbox.consumer.name, stored.topic)) for stored in failed_messages[:handled]]


async def put_back(inbox: Inbox, failed_messages: Sequence[FailedMessage]) -> None:
    """Failed messages that were started together and not run wait again, as if they had not been. Those that another
    process has taken meanwhile are left to it."""
    sql, name = inbox.sql, inbox.consumer.name
    stream, _, _ = stream_position(failed_messages[0])
    back = sql.in_hand.give_back(name, write_held(failed_messages), None)

    async def work() -> None:
        # Under the stream's lock, and the first is woken: what they wait for may have been handled by another process
        # after it had failed here, and nothing would wake them again.
        await Batch((Boundary.BEGIN, *sql.opening(inbox.lease_ms), sql.lock(name, stream)))
        await Batch((back, sql.wake_first(name, stream), Boundary.COMMIT))

    await with_connection(work)
    inbox.in_hand.drop(failed_messages)


async def park_all(inbox: Inbox, deliveries: Sequence[Delivery]) -> list[InboxEvent] | None:
    """Park deliveries of one stream that wait for an earlier one. None: it may be the turn of one of them, or something
    is odd; handle them one by one."""
    stored_messages = [stored_from_delivery(delivery) for delivery in deliveries]
    problems = (find_problem(inbox.consumer, stored) for stored in stored_messages)
    if any(d.redelivered for d in deliveries) or any(problem is not None for problem in problems):
        return None
    return await with_connection(lambda: _park(inbox, stored_messages))


async def _park(inbox: Inbox, stored_messages: list[StoredMessage]) -> list[InboxEvent] | None:
    sql, name = inbox.sql, inbox.consumer.name
    stream, epoch, _ = stream_position(stored_messages[0])
    await Batch((Boundary.BEGIN, *sql.opening(inbox.lease_ms), sql.ensure(name, stream, epoch), sql.lock(name, stream)))
    [(*row, _, _, _)] = await Fetch(sql.look(name, stream, epoch, stored_messages[0].identity))
    position = StreamPosition(*row)
    verdicts = [decide_turn(position, *stream_position(stored)[1:], wait_ms=0) for stored in stored_messages]
    # Where a stream begins, more has to be looked at than how far it is.
    if any(not isinstance(verdict, Early) or verdict.begins or not position.version for verdict in verdicts):
        await Batch((Boundary.ROLLBACK,))
        return None
    identities = write_identities(stored_messages)
    if await Fetch(sql.any_id_conflict(name, identities)):
        await Batch((Boundary.ROLLBACK,))
        return None
    recorded = {message_id for (message_id,) in await Fetch(sql.runs.known(name, identities))}
    keeps: list[Statement] = []
    events: list[InboxEvent] = []
    for stored, verdict in zip(stored_messages, verdicts, strict=True):
        if stored.id in recorded:
            events.append(Duplicate(name, stored.topic))
            continue
        recorded.add(stored.id)
        assert isinstance(verdict, Early)
        keeps.append(park(sql, name, stored, verdict))
        events.append(Parked(name, stored.topic))
    await Batch((*keeps, Boundary.COMMIT))
    return events


async def _is_their_turn(inbox: Inbox, failed_messages: Sequence[FailedMessage]) -> bool:
    """Begin, lock the stream, and see that it stands where the first of a run expects it, and that all are still
    ours."""
    sql, name = inbox.sql, inbox.consumer.name
    stream, epoch, version = stream_position(failed_messages[0])
    begin: tuple[BatchItem, ...] = (begin_at(inbox.consumer.isolation), *sql.opening(inbox.lease_ms))
    if not await Batch((*begin, sql.lock(name, stream), sql.runs.stands(name, stream, epoch, version - 1))):
        return False
    return len(await Fetch(sql.in_hand.ours(name, write_held(failed_messages)))) == len(failed_messages)


def _settle(inbox: Inbox, handled: Sequence[StoredMessage], left: Sequence[FailedMessage]) -> tuple[Statement, ...]:
    """What goes in front of COMMIT: the ledger rows (one that is there already breaks the transaction), the failed
    messages are gone, the stream stands at the last, and what follows is due."""
    sql, name = inbox.sql, inbox.consumer.name
    stream, epoch, version = stream_position(handled[-1])
    ids = _ids(handled)
    back = (sql.in_hand.give_back(name, write_held(left), None),) if left else ()
    return (
        sql.runs.write(name, ids, handled[-1].source),
        sql.runs.drop(name, ids),
        *back,
        sql.advance(name, stream, epoch, version),
        sql.wake(name, stream, epoch, version + 1),
    )


def _ids(stored_messages: Sequence[StoredMessage]) -> str:
    return json.dumps([stored.id for stored in stored_messages])
