"""Topics that other processes of a consumer have and this one does not: their messages are kept for those.

Theory of operation. A broker has one set of topics for all processes of a consumer, and hands each message to any of
them. While they run with different topics (a rolling deployment, or one name for two consumers), one may get what it
has no handler for. It keeps such a delivery, unread, as a failed message that was never started and is due at once,
and acknowledges it: a process that has the topic takes it from the database, reads it, and handles it in its turn where
there is an order. Given back to the broker it would come again at once, to the same process, and use up attempts where
the broker counts them.

Which topics there are is not known beforehand, and patterns are not matched in SQL: a `take` that meets a message of
others puts it back, as not started, and passes over what is kept unread of its topic. Both for a while only
(`LOOK_S`), because it may be this process's affair by then: a topic that no process has any longer makes dead letters.
Who has just ended may be about to start again, and after an outage of the database it is not known for a while who
lives (`registry.py`): until then their topics are others', and their messages wait.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from onefold._inbox.consumer import Consumer
from onefold._inbox.keeping import keep_new
from onefold._inbox.registry import ALIVE_S, BEAT_S, RunningProcess, Standing, fetch_processes, judge
from onefold._inbox.sql.statements import Statements
from onefold._inbox.stored_message import FailedMessage, StoredMessage, stored_unread, topic_sent_to
from onefold._kernel.clock import monotonic_s
from onefold._kernel.effects import Batch, Boundary
from onefold._kernel.messages import Delivery
from onefold._kernel.telemetry.consumer_events import Duplicate, InboxEvent, Parked

#: How long a topic that was met is passed over before the registry is read again.
LOOK_S: Final = BEAT_S
#: With more than that the earlier ones are forgotten, and met again.
TOPICS_MAX: Final = 1000

_WAITS: Final = "it came to a process that does not have the topic {!r}, and waits for one that has it"

_log = logging.getLogger("onefold.consumer")

M = TypeVar("M", Delivery, FailedMessage)


class Sifted(NamedTuple, Generic[M]):
    """Messages by whose they are."""

    ours: list[M]
    others: list[M]
    """Of topics that only other processes have."""
    dropped: list[M]
    """Of topics that no process has any longer: an operator decides about them."""


class OthersTopics:
    """Those of one consumer that this process has met, and whose messages are."""

    def __init__(self, consumer: Consumer, process: str | None = None) -> None:
        """`process` is this one in the registry. Without that it never counts on another being dead."""
        self._consumer = consumer
        self._process = process
        #: From when on a process that looks dead counts as dead.
        self._steady_at = math.inf
        self._topics: set[str] = set()
        self._known_until = 0.0
        self._logged: set[str] = set()
        self._logged_dropped: set[str] = set()

    # --- whose a message is ------------------------------------------------------------------------------

    def doubt(self) -> None:
        """This process was not seen alive, and neither may have been others that are: until all have had the time for a
        beat, it is not known who lives."""
        self._steady_at = monotonic_s() + ALIVE_S

    def judge(self, processes: Sequence[RunningProcess]) -> Standing:
        """What the consumer wants, as far as this process can tell."""
        return judge(processes, steady=monotonic_s() >= self._steady_at and self.is_alive(processes))

    def is_alive(self, processes: Iterable[RunningProcess]) -> bool:
        """Whether others see this process alive."""
        return any(each.process == self._process and each.alive for each in processes)

    def is_foreign(self, received: Delivery | StoredMessage) -> bool:
        """Whether this process does not have the topic."""
        return (topic := topic_sent_to(received)) is not None and not self._consumer.wants(topic)

    def sift(self, received: Sequence[M], processes: Sequence[RunningProcess]) -> Sifted[M]:
        """Split by whose they are. `processes` must have been read after they were received: a process with such a
        topic registers before anything is sent to it."""
        standing = self.judge(processes)
        sifted: Sifted[M] = Sifted([], [], [])
        for each in received:
            match standing.whose(topic_sent_to(each), self._consumer.topics):
                case "ours":
                    sifted.ours.append(each)
                case "others":
                    sifted.others.append(each)
                case "dropped":
                    sifted.dropped.append(each)
        for topic in _topics_of(sifted.others):
            self._note(topic)
        for topic in _topics_of(sifted.dropped):
            if _is_new(topic, self._logged_dropped):
                _log.warning(
                    "consumer %r no longer has topic %r: what was sent to it before becomes dead letters "
                    "(`onefold dlq`)",
                    self._consumer.name, topic,
                )  # fmt: skip
        return sifted

    async def sift_started(self, sql: Statements, failed_messages: list[FailedMessage]) -> Sifted[FailedMessage]:
        """The same for those that were started just now, in the transaction at hand."""
        if not any(map(self.is_foreign, failed_messages)):
            return Sifted(failed_messages, [], [])
        return self.sift(failed_messages, await fetch_processes(sql.registry, self._consumer.name))

    # --- what others have --------------------------------------------------------------------------------

    def as_json(self) -> str:
        """The topics that were met, as a JSON array."""
        if monotonic_s() >= self._known_until:
            self._topics.clear()
        return json.dumps(sorted(self._topics))

    def _note(self, topic: str) -> None:
        """It is others', and the first time that is logged."""
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        if not self._topics:
            self._known_until = monotonic_s() + LOOK_S
        self._topics.add(topic)
        if _is_new(topic, self._logged):
            _log.warning(
                "consumer %r got a message of topic %r, which this process does not handle: another process runs it "
                "with other topics; it is kept for that one. Where this is no rolling deployment, give one of the two "
                "consumers another name",
                self._consumer.name, topic,
            )  # fmt: skip

    async def keep(self, sql: Statements, deliveries: Sequence[Delivery], lease_ms: int) -> list[InboxEvent]:
        """Keep deliveries for the processes that have their topics, in one transaction. Those are notified, once."""
        name = self._consumer.name
        events: list[InboxEvent] = []
        await Batch((Boundary.BEGIN, *sql.opening(lease_ms)))
        # In one order everywhere: two processes that keep the same ones must not wait for each other.
        for stored in sorted(map(stored_unread, deliveries), key=lambda each: each.id):
            reason = _WAITS.format(topic_sent_to(stored))
            kept = await keep_new(sql, name, stored, reason, lease_ms=0, started=0)
            events.append((Duplicate if kept is None else Parked)(name, stored.topic))
        notify = sql.notify_consumers if any(isinstance(event, Parked) for event in events) else ()
        await Batch((*notify, Boundary.COMMIT))
        return events


def dropped_problem(consumer: str) -> str:
    """Why a message is a dead letter that was sent to a topic before the consumer gave it up."""
    return f"consumer {consumer!r} no longer has the topic that this was sent to"


def _topics_of(received: Iterable[Delivery | StoredMessage]) -> set[str]:
    return {topic for each in received if (topic := topic_sent_to(each)) is not None}


def _is_new(topic: str, logged: set[str]) -> bool:
    """Whether the topic is to be logged; each is once, and not without end."""
    if topic in logged or len(logged) >= TOPICS_MAX:
        return False
    logged.add(topic)
    return True
