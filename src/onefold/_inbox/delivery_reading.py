"""Reading: what a consumer makes of a delivery, or of a failed message that could not be read when it came.

Invariant: whatever goes wrong here makes a failed message with a reason, never an exception: those behind it are read.
"""

from __future__ import annotations

from dataclasses import replace

from onefold._inbox.consumer import Consumer
from onefold._inbox.stored_message import StoredMessage, reason_of, stored_from_delivery
from onefold._kernel.messages import Delivery, read_again
from onefold._kernel.topics import is_pattern


def apply_id_of(consumer: Consumer, delivery: Delivery) -> Delivery:
    """The delivery under the id that the consumer's `id_of` gives it. With that a message needs no envelope."""
    if consumer.id_of is None:
        return delivery
    try:
        named: object = consumer.id_of(delivery)
        if named is None:
            return delivery
        if not isinstance(named, str) or not named:
            raise TypeError(f"it returned {named!r}, which is neither an id (a str) nor None")
    except Exception as error:
        problem = f"id_of of consumer {consumer.name!r} failed: {reason_of(error)}"
        return replace(delivery, message=None, problem=problem)
    if delivery.message is not None:
        return replace(delivery, message=replace(delivery.message, id=named))
    return read_again(delivery, named)


def reread(consumer: Consumer, stored: StoredMessage) -> StoredMessage:
    """A stored message without a message, read by what the consumer knows today. An earlier release kept no origin:
    where the consumer has one topic, that is what it came for."""
    origin = stored.origin
    if not origin.topic and len(consumer.topics) == 1 and not is_pattern(consumer.topics[0]):
        origin = replace(origin, topic=consumer.topics[0])
    delivery = Delivery(data=stored.data, headers=stored.headers, origin=origin, problem=stored.problem)
    found = stored_from_delivery(apply_id_of(consumer, read_again(delivery)))
    return replace(stored, problem=found.problem) if found.message is None else found


def find_problem(consumer: Consumer, stored: StoredMessage) -> str | None:
    """Why the message cannot be handled at all: it cannot be read, or lacks what an ordered consumer needs."""
    message = stored.message
    if message is None or consumer.order == "none" or stored.problem is not None:
        return stored.problem
    wants = f"consumer {consumer.name!r} is {consumer.order}"
    if message.key is None:
        return f"{wants}, but the message has no key (CloudEvents attribute partitionkey) to be in order with"
    if message.version is None or message.version < 1:
        return f"{wants}, but the message has no version from 1 up (CloudEvents attribute sequence)"
    return None
