"""Topics, and patterns of them: what may be written, and which topics a pattern stands for.

A topic is tokens divided by dots. In a pattern `*` stands for exactly one token, and `>`, which can only be the last,
for one or more: `order.*` has `order.placed`, `order.>` has `order.placed.eu` too. These are the rules of NATS; a
broker that writes them another way translates. Invariant: a topic is held against a consumer's topics here alone.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from typing import Final

from onefold.errors import ConfigurationError

#: What a topic may be called: a name that every broker takes as it is.
TOPIC: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}", re.ASCII)

ONE: Final = "*"
MORE: Final = ">"

_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LENGTH_MAX: Final = 200


def is_pattern(topic: str) -> bool:
    """Whether it stands for other topics. No topic has these characters in its name."""
    return ONE in topic or MORE in topic


def find_fault(given: object) -> str | None:
    """Why this is nothing to subscribe to. None: it is a topic, or a pattern."""
    if isinstance(given, str) and is_pattern(given):
        return _fault_of_pattern(given)
    if isinstance(given, str) and TOPIC.fullmatch(given):
        return None
    return (
        "a topic is 1 to 200 letters, digits, dots, dashes and underscores, like 'order.placed', and begins with a "
        "letter or a digit"
    )


def matches(pattern: str, topic: str) -> bool:
    """Whether the pattern, or topic, stands for the topic; and of two patterns, whether the first stands for all that
    the second does."""
    if pattern == topic:
        return True
    if not is_pattern(pattern):
        return False
    wide, narrow = pattern.split("."), topic.split(".")
    for index, token in enumerate(wide):
        if token == MORE:
            return len(narrow) > index
        if index >= len(narrow) or narrow[index] == MORE or token not in (ONE, narrow[index]):
            return False
    return len(wide) == len(narrow)


def matches_any(patterns: Iterable[str], topic: str) -> bool:
    """Whether one of them stands for the topic."""
    return any(matches(pattern, topic) for pattern in patterns)


def overlap(one: str, other: str) -> bool:
    """Whether there are topics that both stand for."""
    tokens, others = one.split("."), other.split(".")
    for token, beside in zip(tokens, others, strict=False):
        if MORE in (token, beside):
            return True
        if token != beside and ONE not in (token, beside):
            return False
    return len(tokens) == len(others)


def widest(patterns: Collection[str]) -> list[str]:
    """Those that none of the others stands for: together they stand for as much."""
    each = dict.fromkeys(patterns)
    return [one for one in each if not any(other != one and matches(other, one) for other in each)]


def refuse_patterns(broker: str, consumer: str, topics: Iterable[str]) -> None:
    """For brokers that deliver by the whole name of a topic. Raises ConfigurationError."""
    for topic in topics:
        if is_pattern(topic):
            raise ConfigurationError(
                f"consumer {consumer!r} has the topic {topic!r}, a pattern, and {broker} has no patterns: name each "
                "topic, topic=('order.placed', 'order.paid'), or use NATS, RabbitMQ, SQS or 'local'"
            )


def _fault_of_pattern(pattern: str) -> str | None:
    if len(pattern) > _LENGTH_MAX:
        return f"it has {len(pattern)} characters; a pattern has at most {_LENGTH_MAX}"
    *before, last = pattern.split(".")
    for token in (*before, last):
        if token == "":
            return "a token between its dots is empty"
        if token != ONE and ONE in token:
            return f"'*' stands for a whole token: {token!r} is none; write '*' alone between dots, as in 'order.*'"
        if token not in (ONE, MORE) and not _TOKEN.fullmatch(token):
            return f"the token {token!r} is neither '*', a last '>' nor letters, digits, dashes and underscores"
    if MORE in before:
        return "'>' stands for all that follows, so it must be the last token, as in 'order.>'"
    return None
