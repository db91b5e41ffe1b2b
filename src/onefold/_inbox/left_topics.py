"""Topics that other processes of a consumer have and this one does not: their messages are left to those.

Theory of operation. A broker has one set of topics for all processes of a consumer, and hands each message to any of
them. While they run with different topics (a rolling deployment, or one name for two consumers), one may get what it
has no handler for. It keeps such a delivery as a failed message that was never started and is due at once, and
acknowledges it: a process that has the topic takes it from the database, in its turn where there is an order. Given
back to the broker it would come again at once, to the same process, and use up attempts where the broker counts them.

Failed messages are claimed by topic. Which topics there are is not known beforehand, and patterns are not matched in
SQL: a `take` that meets a topic of others is rolled back, and goes on without it. The topics that were met are
forgotten after a while (`LOOK_S`), because it may be this process's affair by then: a topic that no process has any
longer makes dead letters. What no process has asked for, as far as is known, is a binding or a queue that a person has
made: it is handled.
"""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import Final

from onefold._inbox.consumer import Consumer
from onefold._inbox.keeping import keep_new
from onefold._inbox.registry import BEAT_S, fetch_processes, judge
from onefold._inbox.sql.statements import Statements
from onefold._inbox.stored_message import FailedMessage, StoredMessage, topic_sent_to
from onefold._kernel.clock import monotonic_s
from onefold._kernel.effects import Batch
from onefold._kernel.telemetry.consumer_events import Duplicate, InboxEvent, Parked

#: How long a topic that was met is passed over before the registry is read again.
LOOK_S: Final = BEAT_S
#: With more than that the earlier ones are forgotten, and met again.
TOPICS_MAX: Final = 1000

_log = logging.getLogger("onefold.consumer")


class LeftTopics:
    """Those of one consumer that this process has met."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._topics: set[str] = set()
        self._known_until = 0.0
        self._logged: set[str] = set()

    def as_json(self) -> str:
        """As a JSON array."""
        if monotonic_s() >= self._known_until:
            self._topics.clear()
        return json.dumps(sorted(self._topics))

    def note(self, topic: str) -> None:
        """It is left to other processes, and the first time that is logged."""
        if len(self._topics) >= TOPICS_MAX:
            self._topics.clear()
        if not self._topics:
            self._known_until = monotonic_s() + LOOK_S
        self._topics.add(topic)
        if topic in self._logged or len(self._logged) >= TOPICS_MAX:
            return
        self._logged.add(topic)
        _log.warning(
            "consumer %r got a message of topic %r, which this process does not handle: another process runs it with "
            "other topics; it is left to that one. Where this is no rolling deployment, give one of the two consumers "
            "another name",
            self._consumer.name, topic,
        )  # fmt: skip

    async def leave(self, sql: Statements, stored: StoredMessage) -> InboxEvent:
        """Keep a delivery for the processes that have its topic, which are notified."""
        name, topic = self._consumer.name, topic_sent_to(stored) or stored.topic
        self.note(topic)
        reason = f"it came to a process that does not have the topic {topic!r}, and waits for one that has it"
        if await keep_new(sql, name, stored, reason, lease_ms=0, started=0) is None:
            return Duplicate(name, stored.topic)
        if sql.notify_consumers:
            await Batch(sql.notify_consumers)
        return Parked(name, stored.topic)

    async def sift(self, sql: Statements, failed_messages: list[FailedMessage]) -> list[FailedMessage] | None:
        """Those that were started just now, as they are to be run. None: some are of topics that are left to others,
        which are noted now."""
        topics = {topic for each in failed_messages if (topic := topic_sent_to(each)) is not None}
        foreign = {topic for topic in topics if not self._consumer.wants(topic)}
        if not foreign:
            return failed_messages
        standing = judge(await fetch_processes(sql.registry, self._consumer.name))
        elsewhere = set(filter(standing.wants, foreign))
        for topic in elsewhere:
            self.note(topic)
        if elsewhere:
            return None
        problem = dropped_problem(self._consumer.name)
        return [
            replace(each, problem=problem) if standing.drops(topic_sent_to(each)) else each for each in failed_messages
        ]


def dropped_problem(consumer: str) -> str:
    """Why a message is a dead letter that was sent to a topic before the consumer gave it up."""
    return f"consumer {consumer!r} no longer has the topic that this was sent to"
