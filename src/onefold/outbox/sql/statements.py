"""What the outbox asks of a database. A dialect brings the texts, and does in its own way what it cannot do alike."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import ClassVar

from onefold._kernel.clock import milliseconds
from onefold._kernel.effects import Flow, Row, Statement, Step
from onefold.outbox.model import Draft
from onefold.outbox.waiting import Failure, Limits


class Statements:
    """The statement set of one dialect."""

    ENTER: ClassVar[str]
    RENEW: ClassVar[str]
    BURY: ClassVar[str]
    ASSIGN: ClassVar[str]
    FAIL: ClassVar[str]
    NEXT_DUE: ClassVar[str]
    RELEASE_DUE: ClassVar[str]
    FORGETTABLE: ClassVar[str]
    FORGET: ClassVar[str]
    PENDING: ClassVar[str]
    OLDEST: ClassVar[str]
    DELAYED: ClassVar[str]
    LIST_STOPPED: ClassVar[str]
    RELAYS_SEEN: ClassVar[str]
    RETRY: ClassVar[str]
    RETRY_TOPICS: ClassVar[str]
    FORGET_TRYING: ClassVar[str]
    LEAVE: ClassVar[str]
    DELETE: ClassVar[str]
    KEEP: ClassVar[str]
    DISCARD: ClassVar[str]

    def write(self, draft: Draft) -> tuple[Statement, ...]:
        """Write an event; one with a key gets its version."""
        raise NotImplementedError

    def turn(self, lease_s: float) -> tuple[Step, ...]:
        """Be the only one who tends, in this transaction."""
        raise NotImplementedError

    def suspect(self, positions: Sequence[int]) -> Flow[list[Row]]:
        """These were at hand when a relay died; returned are those for which that was once too often."""
        raise NotImplementedError

    def claim(self, relay: str, lease_s: float, limits: Limits) -> Flow[list[Row]]:
        """Waiting rows of the relay's buckets, noted as tried."""
        raise NotImplementedError

    def positions(self, positions: Sequence[int]) -> str:
        """As its statements read them."""
        raise NotImplementedError

    def enter(self, relay: str, lease_s: float) -> Statement:
        return Statement(self.ENTER, (relay, milliseconds(lease_s)))

    def renew(self, relay: str, lease_s: float) -> Statement:
        """Extend the lease; no row changes where the relay was buried."""
        return Statement(self.RENEW, (relay, milliseconds(lease_s)))

    def bury(self) -> Statement:
        """Remove the relays whose lease ran out; what each was trying, as JSON."""
        return Statement(self.BURY)

    def relays(self) -> Statement:
        return Statement("SELECT relay FROM onefold_relay ORDER BY relay")

    def owners(self) -> Statement:
        return Statement("SELECT bucket, relay FROM onefold_bucket ORDER BY bucket")

    def assign(self, changes: Mapping[int, str | None]) -> Statement:
        return Statement(self.ASSIGN, (json.dumps(changes),))

    def leave(self, relay: str) -> Statement:
        return Statement(self.LEAVE, (relay,))

    def forget_trying(self, relay: str) -> Statement:
        return Statement(self.FORGET_TRYING, (relay,))

    def published(self, positions: Sequence[int], *, keep: bool) -> Statement:
        return Statement(self.KEEP if keep else self.DELETE, (self.positions(positions),))

    def failed(self, relay: str, failures: Sequence[Failure]) -> Statement:
        """Stop these until their next try, if the relay is still there."""
        return Statement(self.FAIL, (relay, json.dumps([failure._asdict() for failure in failures])))

    def next_due(self) -> Statement:
        """In how many milliseconds the next row is due; no row where none is."""
        return Statement(self.NEXT_DUE)

    def release_due(self, limit: int) -> Statement:
        return Statement(self.RELEASE_DUE, (limit,))

    def forgettable(self, keep_s: float) -> Statement:
        """Whether there is a row to forget."""
        return Statement(self.FORGETTABLE, (milliseconds(keep_s),))

    def forget(self, keep_s: float, limit: int) -> Statement:
        """Delete rows that were published longer ago than that."""
        return Statement(self.FORGET, (milliseconds(keep_s), limit))

    # What operators ask

    def pending(self, limit: int) -> Statement:
        return Statement(self.PENDING, (limit,))

    def oldest(self) -> Statement:
        return Statement(self.OLDEST)

    def delayed(self, limit: int) -> Statement:
        return Statement(self.DELAYED, (limit,))

    def stopped(self, limit: int) -> Statement:
        return Statement(self.LIST_STOPPED, (limit,))

    def relays_seen(self) -> Statement:
        return Statement(self.RELAYS_SEEN)

    def retry(self, ids: Sequence[str]) -> Statement:
        return Statement(self.RETRY, (json.dumps(ids),))

    def retry_topics(self, topics: Sequence[str]) -> Statement:
        return Statement(self.RETRY_TOPICS, (json.dumps(topics),))

    def discard(self, ids: Sequence[str]) -> Statement:
        return Statement(self.DISCARD, (json.dumps(ids),))
