"""The queues of consumers at SQS: a queue's name, as far as SQS allows, and its tags name the consumer; or the user
does.

Invariant: two consumers have two queues, whatever their names are made of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final
from urllib.parse import SplitResult, urlsplit

from onefold._kernel.arguments import show
from onefold._kernel.topics import find_fault, matches_any
from onefold.errors import ConfigurationError

_CONSUMER: Final = "onefold:consumer"
_TOPIC: Final = "onefold:topic:"
#: SQS takes 80 characters, ".fifo" among them.
_NAME_MAX: Final = 54
_PLAIN: Final = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
#: Tags take neither of the characters that make a topic a pattern; no topic has these.
_INTO_TAG: Final = str.maketrans("*>", "@/")
_OUT_OF_TAG: Final = str.maketrans("@/", "*>")


@dataclass(frozen=True, slots=True)
class ConsumerQueue:
    """The queue of a consumer."""

    url: str
    consumer: str
    topics: frozenset[str]


def queue_name(prefix: str, consumer: str, *, fifo: bool) -> str:
    """`<prefix>-<consumer>`; a consumer's name that SQS does not take is shortened, and has a digest."""
    if len(prefix) > 20 or not _PLAIN.fullmatch(prefix):
        return ""
    name = consumer
    if len(name) > _NAME_MAX or not _PLAIN.fullmatch(name):
        digest = blake2b(consumer.encode(errors="surrogatepass"), digest_size=8).hexdigest()
        name = f"{re.sub('[^A-Za-z0-9_-]', '-', consumer)[: _NAME_MAX - 17]}-{digest}"
    return f"{prefix}-{name}{'.fifo' if fifo else ''}"


def topic_tags(consumer: str, topics: Sequence[str]) -> dict[str, str]:
    return {_CONSUMER: consumer, **{tag_of(topic): topic.translate(_INTO_TAG) for topic in topics}}


def tag_of(topic: str) -> str:
    """The name of a topic's tag: SQS takes 128 characters, a topic may have 200."""
    return _TOPIC + blake2b(topic.encode(), digest_size=16).hexdigest()


def read_queues(given: object, prefix: str, *, fifo: bool) -> Sequence[ConsumerQueue] | None:
    """The queues that a user names with their topics. Raises ConfigurationError."""
    if given is None:
        return None
    if not isinstance(given, Mapping) or not given:
        raise ConfigurationError(
            f"SqsBroker(queues={show(given)}): give the addresses of queues with the topics of each, as in "
            'queues={"https://sqs.eu-central-1.amazonaws.com/123456789012/onefold-billing.fifo": ["order.>"]}'
        )
    found = []
    for url, topics in given.items():
        parts = urlsplit(url) if isinstance(url, str) else SplitResult("", "", "", "", "")
        name = parts.path.rpartition("/")[2]
        shown = show(name or type(url))  # an address may have credentials
        if parts.scheme not in ("https", "http") or not name or name.endswith(".fifo") != fifo:
            kind = "ends in .fifo" if fifo else "does not end in .fifo (fifo=False)"
            raise ConfigurationError(
                f"SqsBroker(queues=...): {shown} must be the address of a queue, https://..., whose name {kind}"
            )
        if not isinstance(topics, Sequence) or isinstance(topics, str) or not topics:
            raise ConfigurationError(f"SqsBroker(queues=...): {shown} has {show(topics)}: give it a list of topics")
        for topic in topics:
            if (fault := find_fault(topic)) is not None:
                raise ConfigurationError(f"SqsBroker(queues=...): {shown} has the topic {show(topic)}: {fault}")
        consumer = name.removeprefix(f"{prefix}-").removesuffix(".fifo")
        found.append(ConsumerQueue(url, consumer, frozenset(topics)))
    return found


def find_named(queues: Sequence[ConsumerQueue], name: str, consumer: str, topics: Sequence[str]) -> str:
    """The address of a consumer's queue among those that were named. Raises ConfigurationError where publishers would
    send it less than it wants."""
    queue = next((each for each in queues if each.url.rpartition("/")[2] == name), None)
    if queue is None:
        raise ConfigurationError(f"consumer {consumer!r}: SqsBroker's queues= has no queue {name!r}")
    for topic in topics:
        if not matches_any(queue.topics, topic):
            raise ConfigurationError(
                f"consumer {consumer!r} wants {topic!r}, and SqsBroker's queues= has only "
                f"{', '.join(map(repr, sorted(queue.topics)))} for {name!r}: publishers would not send it there"
            )
    return queue.url


def queue_of(url: str, tags: Mapping[str, str]) -> ConsumerQueue | None:
    """None: the queue is not one of ours."""
    if _CONSUMER not in tags:
        return None
    topics = frozenset(value.translate(_OUT_OF_TAG) for name, value in tags.items() if name.startswith(_TOPIC))
    return ConsumerQueue(url, tags[_CONSUMER], topics)
