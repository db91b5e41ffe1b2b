"""The ledger for receivers of other kinds: a transaction that opens once per (consumer, source, message id).

Deliveries and retries are the receiver's own affair, and so are dead letters, but for failures that it named as not
worth another attempt: such a message is kept as a dead letter, and known when it comes again. A lost answer to COMMIT
is an error like any other: the message comes again, and the ledger knows.
"""

from __future__ import annotations

import functools

from onefold._inbox.consumer import check_name
from onefold._inbox.handling_log import log_failure
from onefold._inbox.message_identity import identity_of
from onefold._inbox.permanent_failures import check_classes, is_final
from onefold._inbox.sql import STATEMENTS
from onefold._inbox.stored_message import UNKNOWN_TOPIC, StoredMessage, reason_of, with_failure
from onefold._kernel.checkout import checkout, rollback_and_release, with_connection
from onefold._kernel.clock import milliseconds, wall_ms
from onefold._kernel.effects import (
    Batch,
    Boundary,
    Discard,
    Fetch,
    Isolation,
    ReleaseCommitted,
    Statement,
    begin_at,
    check_isolation,
)
from onefold._kernel.handler_errors import rethrow
from onefold._kernel.messages import Delivery, Message
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.consumer_events import DeadLettered, Duplicate, Handled
from onefold._policy.ranges import require
from onefold.errors import ConfigurationError


class HandlingFlows:
    """The flows of one message of one consumer."""

    __slots__ = ("_begin", "_consumer", "_delivery", "_final", "_id", "_lease_ms", "_listener", "_sql", "_who")

    def __init__(
        self,
        dialect: str,
        consumer: str,
        message_id: str,
        *,
        source: str | None = None,
        lease_s: float,
        isolation: Isolation | None = None,
        dead_letter_on: tuple[type[Exception], ...] = (),
        delivery: Delivery | None = None,
        listener: Listener | None = None,
    ) -> None:
        require(f"consumer {consumer!r}: lease_s", lease_s, least=0.1, most=86_400)
        self._sql = STATEMENTS[dialect]
        self._consumer = check_name(consumer)
        given: object = message_id
        if not isinstance(given, str) or not given:
            raise ConfigurationError(
                f"consumer {consumer!r}: message_id={given!r} must be a text that is not empty, the same whenever the "
                "message comes"
            )
        self._id = message_id
        self._who = identity_of(message_id, source)
        self._final = check_classes(consumer, dead_letter_on)
        self._delivery = delivery or Delivery(data=b"", headers={})
        self._listener = listener
        self._lease_ms = milliseconds(lease_s)
        self._begin = begin_at(check_isolation(isolation))

    async def begin(self) -> bool:
        """Whether the message is new; then its transaction is open."""
        new = await checkout(self._claim)
        if not new:
            await rollback_and_release()
            emit(self._listener, Duplicate(self._consumer, self._topic))
        return new

    async def commit(self, also: tuple[Statement, ...]) -> None:
        try:
            await Batch((self._sql.proof, *also, Boundary.COMMIT))
        except Exception as error:
            await Discard()
            rethrow(error)
        await ReleaseCommitted()
        emit(self._listener, Handled(self._consumer, self._topic))

    @property
    def _topic(self) -> str:
        given = self._delivery
        return given.origin.topic or UNKNOWN_TOPIC if given.message is None else given.message.topic

    async def rollback(self, error: Exception) -> None:
        """Should the dead letter not be written, that is what is raised: the message must come again."""
        await rollback_and_release()
        if is_final(error, self._final):
            await with_connection(functools.partial(self._keep_dead, error))

    async def _keep_dead(self, error: Exception) -> None:
        stored, reason = self._to_stored(), reason_of(error)
        keep = self._sql.keep(
            self._consumer,
            stored.values(),
            state="dead",
            reason=reason,
            started=1,
            failed=1,
            history=with_failure("[]", error, wall_ms()),
            due_ms=None,
        )
        await Batch((Boundary.BEGIN, keep, Boundary.COMMIT))
        event = DeadLettered(self._consumer, stored.topic, reason, stored.id)
        log_failure(event, 1)
        emit(self._listener, event)

    def _to_stored(self) -> StoredMessage:
        """As a failed message has it. Where the source is known, it must not stand for those of other sources."""
        given, message = self._delivery, self._delivery.message
        if message is None and self._who.source is not None:
            topic = given.origin.topic or UNKNOWN_TOPIC
            message = Message(id=self._id, source=self._who.source, topic=topic, data=given.data)
        return StoredMessage(
            id=self._who.name, headers=given.headers, data=given.data, message=message, origin=given.origin
        )

    async def _claim(self) -> bool:
        sql, name, who = self._sql, self._consumer, self._who
        claim = sql.claim("none", name, who, None, kept=False)
        if await Batch((self._begin, *sql.opening(self._lease_ms), claim)):
            return True
        if who.source is None or not await Fetch(sql.id_conflict(name, who)):
            return False
        # A delivery that saw the id free may be writing its row under that: take the id first, or wait for it.
        if not await Batch((sql.take_id(name, who),)) and await Fetch(sql.handled(name, who)):
            return False
        self._who = who.set_apart()
        return await Batch((sql.claim("none", name, self._who, None, kept=False),)) > 0
