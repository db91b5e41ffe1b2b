"""Failed messages that this process has in hand: it has started them, and they are neither settled nor given back.

Theory of operation. A start writes its count and a lease. While the message waits for the turn of its partition, and
while its handler runs, the lease is renewed, so that no other process takes it for one whose process died. A process
that could not renew in time has lost it: each write says which counts it started from, and the transaction that claims
the message looks for them. So what another process has taken, or a person has discarded, is neither run nor counted.

Invariant: a row that waits without a time (`due_at` is NULL) is in no process's hand, and the end of its predecessor
wakes it, also where it was started more often than it failed: a suspect that was looked at before its turn. Earlier
releases could pass such a row over when its turn came; `wake_stranded` finds those.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from onefold._inbox.consumer import Consumer
from onefold._inbox.sql.statements import Statements
from onefold._inbox.stored_message import FailedMessage, StoredMessage, write_held
from onefold._kernel.checkout import run_batch, with_connection
from onefold._kernel.effects import Batch, Boundary, Fetch, Statement
from onefold._kernel.telemetry.consumer_events import Duplicate

if TYPE_CHECKING:
    from onefold._inbox.handling import Inbox

_log = logging.getLogger("onefold.consumer")


class InHand(dict[str, FailedMessage]):
    """By the names of their rows."""

    def hold(self, failed_messages: Iterable[FailedMessage]) -> None:
        self.update((each.row_id, each) for each in failed_messages)

    def drop(self, failed_messages: Iterable[FailedMessage]) -> None:
        for each in failed_messages:
            self.pop(each.row_id, None)

    def rename(self, failed_message: FailedMessage, renamed: FailedMessage) -> FailedMessage:
        self.drop([failed_message])
        self.hold([renamed])
        return renamed


def claim(sql: Statements, consumer: Consumer, stored: StoredMessage, at: tuple[bytes, int, int] | None) -> Statement:
    """Writes the ledger row, if it is the turn of the message and it is ours to handle."""
    if isinstance(stored, FailedMessage):
        counts = (stored.started, stored.failed)
        return sql.claim_started(consumer.order, consumer.name, stored.identity, at, counts)
    return sql.claim(consumer.order, consumer.name, stored.identity, at, kept=False)


def open_and_claim(sql: Statements, consumer: Consumer, stored: StoredMessage, lease_ms: int) -> Statement:
    """`claim` where there is no order, in a transaction that has just begun."""
    counts = (stored.started, stored.failed) if isinstance(stored, FailedMessage) else None
    return sql.open_and_claim(consumer.name, stored.identity, counts, lease_ms)


async def is_ours(sql: Statements, consumer: str, stored: StoredMessage) -> bool:
    """Whether a failed message is still as its start has left it; a delivery is always ours."""
    if not isinstance(stored, FailedMessage):
        return True
    return bool(await Fetch(sql.in_hand.ours(consumer, write_held([stored]))))


async def skip_not_ours(consumer: str, stored: StoredMessage) -> Duplicate:
    """It is another process's by now, or a person's: it is not run."""
    await Batch((Boundary.ROLLBACK,))
    _log.info(
        "consumer %r: message %s on %r was started again, discarded or dead-lettered by another process while it "
        "waited here; it is not run here",
        consumer, stored.id, stored.topic,
    )  # fmt: skip
    return Duplicate(consumer, stored.topic)


async def renew_in_hand(inbox: Inbox, names: Iterable[str] | None = None) -> None:
    """Those of these names, or all, are kept for another lease."""
    chosen = inbox.in_hand if names is None else inbox.in_hand.keys() & set(names)
    held = write_held([inbox.in_hand[name] for name in chosen])
    renew = inbox.sql.in_hand.renew(inbox.consumer.name, held, 2 * inbox.lease_ms)
    await with_connection(lambda: run_batch(renew))


async def give_up(inbox: Inbox) -> None:
    """Failed messages that were started and not finished, for no fault of theirs, count as not started. Suspects are
    due again, too, and keep their count of starts."""
    sql, consumer = inbox.sql.in_hand, inbox.consumer.name
    for given_up, write in ((inbox.unfinished, sql.give_back), (inbox.suspects, sql.renew)):
        while given_up:
            name, failed_message = next(iter(given_up.items()))
            back = write(consumer, write_held([failed_message]), 0)
            await with_connection(functools.partial(run_batch, back))
            given_up.pop(name, None)


async def wake_stranded(inbox: Inbox) -> None:
    """What no end of a predecessor has woken is looked at again."""
    await with_connection(lambda: run_batch(inbox.sql.in_hand.wake_stranded(inbox.consumer.name)))
