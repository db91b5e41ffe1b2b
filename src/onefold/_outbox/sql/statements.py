"""The statements of the outbox. A dialect brings the texts, and does in its own way what it cannot do alike."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, TypeAlias

from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import BatchItem, Flow, Row, Statement, Value
from onefold._kernel.messages import Message
from onefold._outbox.claimed_rows import Failure, Limits, TourPosition

#: By bucket, who has it and who is to have it.
Changes: TypeAlias = Mapping[int, tuple[str | None, str | None]]


class Statements:
    """The statement set of one dialect."""

    ENTER: ClassVar[str]
    RENEW: ClassVar[str]
    SHARES: ClassVar[str]
    ASSIGN: ClassVar[str]
    FAIL: ClassVar[str]
    NEXT_DUE: ClassVar[str]
    MAKE_DUE_CLAIMABLE: ClassVar[str]
    FORGETTABLE: ClassVar[str]
    FORGET: ClassVar[str]
    PENDING: ClassVar[str]
    OLDEST: ClassVar[str]
    DELAYED: ClassVar[str]
    LIST_STOPPED: ClassVar[str]
    ALL_STOPPED: ClassVar[str]
    RELAYS_SEEN: ClassVar[str]
    RETRY: ClassVar[str]
    RETRY_TOPICS: ClassVar[str]
    STOPPED_TOPICS: ClassVar[str]
    FORGET_TRYING: ClassVar[str]
    COPYABLE: ClassVar[str]
    COPY: ClassVar[str]
    LEAVE: ClassVar[str]
    DELETE: ClassVar[str]
    KEEP: ClassVar[str]
    DISCARD: ClassVar[str]
    CANCEL: ClassVar[str]

    def write(self, event: Message, due_ms: int | None = None) -> tuple[Statement, ...]:
        """Write an event, not to be published before `due_ms` (since 1970); one with a key gets its version."""
        raise NotImplementedError

    def turn(self, lease_s: float) -> tuple[BatchItem, ...]:
        """Be the only relay that hands buckets over, in this transaction."""
        raise NotImplementedError

    def limit_transaction(self, lease_s: float) -> tuple[BatchItem, ...]:
        """This transaction lasts for a lease at the most, whatever becomes of this process."""
        raise NotImplementedError

    def expire_dead(self) -> Flow[tuple[int, tuple[tuple[str, str], ...]]]:
        """Remove the relays whose lease ran out, and note what was at hand. How many there were, and the events (id and
        topic) for which that was once too often. All or nothing."""
        raise NotImplementedError

    def scan(self, relay: str, lease_s: float, limits: Limits, paused: Collection[str]) -> Flow[list[Row]]:
        """The oldest rows of the relay's buckets, noted as tried; without a position and data those that may not go."""
        raise NotImplementedError

    def tour(
        self, relay: str, lease_s: float, limits: Limits, paused: Collection[str], start: TourPosition
    ) -> Flow[list[Row]]:
        """Rows of one stream after the other of the relay's buckets, noted as tried; and a row without a position that
        says where the next tour goes on."""
        raise NotImplementedError

    def positions(self, positions: Sequence[int]) -> str:
        """As its statements read them."""
        raise NotImplementedError

    def enter(self, relay: str, lease_s: float) -> Statement:
        return Statement(self.ENTER, (relay, milliseconds(lease_s)))

    def renew(self, relay: str, lease_s: float) -> Statement:
        """Extend the lease; no row changes where the session has expired."""
        return Statement(self.RENEW, (relay, milliseconds(lease_s)))

    def shares(self, relay: str) -> Statement:
        """The relays that live, this one among them, each beside NULL, and each bucket beside its owner. As of one
        moment: a bucket of a relay that came in between would look as if it had no owner."""
        return Statement(self.SHARES, (relay,))

    def assign(self, changes: Changes) -> Statement:
        """Hand buckets over, if their owners are still the same."""
        return Statement(self.ASSIGN, (json.dumps(changes),))

    def leave(self, relay: str) -> Statement:
        return Statement(self.LEAVE, (relay,))

    def forget_trying(self, relay: str) -> Statement:
        return Statement(self.FORGET_TRYING, (relay,))

    def mark_published(self, positions: Sequence[int], *, keep: bool) -> Statement:
        return Statement(self.KEEP if keep else self.DELETE, (self.positions(positions),))

    def copyable(self, positions: Sequence[int]) -> Statement:
        """Which of these are still there; locked until COMMIT."""
        return Statement(self.COPYABLE, (self.positions(positions),))

    def copy(self, position: int, stream: bytes | None, destination: str) -> Statement:
        """Write a row once more, for one destination."""
        return Statement(self.COPY, (position, stream, destination))

    def mark_failed(self, relay: str, failures: Sequence[Failure]) -> Statement:
        """Stop these until their next try, if the relay is still there."""
        return Statement(self.FAIL, (relay, json.dumps([failure._asdict() for failure in failures])))

    def next_due(self) -> Statement:
        """In how many milliseconds the next row is due; no row where none is."""
        return Statement(self.NEXT_DUE)

    def make_due_claimable(self, limit: int) -> Statement:
        return Statement(self.MAKE_DUE_CLAIMABLE, (limit,))

    def forgettable(self, keep_s: float) -> Statement:
        """Whether there is a row to forget."""
        return Statement(self.FORGETTABLE, (milliseconds(keep_s),))

    def forget(self, keep_s: float, limit: int) -> Statement:
        """Delete rows that were published longer ago than that."""
        return Statement(self.FORGET, (milliseconds(keep_s), limit))

    def cancel(self, event_id: str) -> tuple[BatchItem, ...]:
        """Delete an event that waits for its time, and was never tried. In a transaction that is under way."""
        return (Statement(self.CANCEL, (event_id,)),)

    # Queries of operators

    def pending(self, limit: int) -> Statement:
        return Statement(self.PENDING, (limit,))

    def oldest(self) -> Statement:
        return Statement(self.OLDEST)

    def delayed(self, limit: int) -> Statement:
        return Statement(self.DELAYED, (limit,))

    def list_stopped(self, chosen: tuple[Value, ...], limit: int) -> Statement:
        """Of what is stopped, that which fits: see `status_report.Chosen`."""
        return Statement(self.LIST_STOPPED, (*chosen, limit))

    def all_stopped(self, limit: int) -> Statement:
        """What is stopped, the next to be tried first: by an index, however much there is."""
        return Statement(self.ALL_STOPPED, (limit,))

    def relays_seen(self) -> Statement:
        return Statement(self.RELAYS_SEEN)

    def retry(self, chosen: tuple[Value, ...], limit: int) -> Statement:
        return Statement(self.RETRY, (*chosen, limit))

    def retry_topics(self, topics: Sequence[str]) -> Statement:
        return Statement(self.RETRY_TOPICS, (json.dumps(topics),))

    def stopped_topics(self) -> Statement:
        """The topics of what is stopped."""
        return Statement(self.STOPPED_TOPICS)

    def discard(self, chosen: tuple[Value, ...], limit: int) -> Statement:
        return Statement(self.DISCARD, (*chosen, limit))
