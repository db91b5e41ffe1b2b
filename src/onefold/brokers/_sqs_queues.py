"""What a queue of SQS says about its consumer: its name, as far as SQS allows, and its tags.

Invariant: two consumers have two queues, whatever their names are made of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

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


def queue_of(url: str, tags: Mapping[str, str]) -> ConsumerQueue | None:
    """None: the queue is not one of ours."""
    if _CONSUMER not in tags:
        return None
    topics = frozenset(value.translate(_OUT_OF_TAG) for name, value in tags.items() if name.startswith(_TOPIC))
    return ConsumerQueue(url, tags[_CONSUMER], topics)
