"""Amazon SQS, on boto3: a queue for each consumer, whose tags name the topics that it gets.

Invariant: a message counts as confirmed when every queue that has its topic has taken it. One that some of them did not
take is sent to all again: a FIFO queue discards what it has, by the event's id, and the inbox what a queue did not.

How it works: SQS has queues and no topics. A consumer makes its queue and tags it with its topics; a publisher lists
the queues and their tags, and looks again after `discovery_s`. boto3 blocks, so its calls are made on threads of the
broker's own (see `_sqs_calls.py`); aiobotocore would do without, and allows one release of botocore at a time, which
an application that uses boto3 itself cannot have.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from onefold._kernel.messages import Confirm, Message
from onefold._kernel.ports import SubscriptionSeen
from onefold._kernel.redaction import redact
from onefold._kernel.topics import matches_any
from onefold._policy.ranges import require
from onefold.brokers._addresses import check_address
from onefold.brokers._sqs_calls import QueueMissing, RightMissing, SqsCalls
from onefold.brokers._sqs_entries import SqsEntry, entry_of, pack
from onefold.brokers._sqs_queues import ConsumerQueue, find_named, queue_name, queue_of, read_queues, tag_of, topic_tags
from onefold.brokers._sqs_subscription import SqsSubscription
from onefold.errors import BrokerError, BrokerUnavailable, ConfigurationError, MessageRefused, TopicNotSubscribed

__all__ = ["SqsBroker"]

#: What SQS took for a message until 2025, and what every region and emulator takes.
_BYTES_MAX: Final = 262_144
#: SQS allows 50 tags, and one names the consumer.
_TOPICS_MAX: Final = 49
#: A publisher that finds no queue for a topic looks again, and not more often than this.
_LOOK_AGAIN_S: Final = 1.0
_COUNTS: Final = (
    "ApproximateNumberOfMessages",
    "ApproximateNumberOfMessagesNotVisible",
    "ApproximateNumberOfMessagesDelayed",
)


#: Left out, a queue whose tags cannot be read would miss its events for good: it may be a consumer's.
_WITHOUT_RIGHTS: Final = (
    "Without the rights to list queues and their tags events are sent to the queues that you name, with their topics: "
    "SqsBroker(..., queues={address: [topic, ...]})"
)


class SqsBroker:
    """`SqsBroker("sqs://eu-central-1")`, or "sqs://eu-central-1/prefix?endpoint=http://127.0.0.1:9324". Credentials are
    found as boto3 finds them (environment, profile, role), or by the `session` that is given."""

    #: In spans.
    system = "aws_sqs"

    matches_patterns = True

    def __init__(
        self,
        url: str,
        *,
        fifo: bool = True,
        lease_s: int = 30,
        confirm_s: float = 10.0,
        poll_s: int = 5,
        discovery_s: float = 30.0,
        retention_s: int = 7 * 86_400,
        message_bytes_max: int = _BYTES_MAX,
        queues: Mapping[str, Sequence[str]] | None = None,
        session: Any = None,
    ) -> None:
        """`fifo=False` makes standard queues: events come in any order, and SQS discards none that it got twice.

        `url` names the region, and may name a prefix of queues and an endpoint. An event counts as published when each
        queue that has its topic has stored it, within `confirm_s`; one of more than `message_bytes_max` bytes is
        refused. Queues and their topics are looked for again every `discovery_s`. Queues that are made keep messages
        for `retention_s`: ledgers must remember for longer. `lease_s` is the visibility time-out of a message that is
        being handled; it is renewed. `poll_s` is for how long one request waits for messages, and so for how long
        `close` may take. `queues` has the addresses of queues that others made, and the topics of each: none is looked
        for, made or tagged. `session` is a `boto3.Session`."""
        require("lease_s", lease_s, least=1, most=43_200, whole=True)
        require("confirm_s", confirm_s, least=0.1, most=600)
        require("poll_s", poll_s, least=1, most=20, whole=True)
        require("discovery_s", discovery_s, least=0, most=3600)
        require("retention_s", retention_s, least=60, most=14 * 86_400, whole=True)
        require("message_bytes_max", message_bytes_max, least=1024, most=1_048_576, whole=True)
        region, self._prefix, endpoint = read_address(url)
        self.keep_every_s = lease_s / 3
        self.redelivery_s = float(retention_s)
        self._url = url
        self._fifo = fifo
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._discovery_s = discovery_s
        self._bytes_max = message_bytes_max
        self._attributes = {
            "VisibilityTimeout": str(lease_s),
            "MessageRetentionPeriod": str(retention_s),
            "MaximumMessageSize": str(message_bytes_max),
        }
        if fifo:  # the last two: a key's limits of order and of throughput are not those of its neighbours
            self._attributes |= {
                "FifoQueue": "true",
                "DeduplicationScope": "messageGroup",
                "FifoThroughputLimit": "perMessageGroupId",
            }
        self._calls = SqsCalls(
            f"SQS at {redact(url)}", region=region, endpoint=endpoint, confirm_s=confirm_s, poll_s=poll_s,
            session=session,
        )  # fmt: skip
        self._named = read_queues(queues, self._prefix, fifo=fifo)
        self._queues: Sequence[ConsumerQueue] = ()
        self._looked_at = float("-inf")
        self._looking = asyncio.Lock()
        self._subscriptions: set[SqsSubscription] = set()

    async def open(self) -> None:
        """Raises ConfigurationError where there are no credentials, or they may not list queues."""
        self._calls.open()
        try:
            await self._look()
        except BaseException as error:
            await self.close()
            if isinstance(error, RightMissing):
                raise ConfigurationError(f"{error}. {_WITHOUT_RIGHTS}") from error
            if isinstance(error, MessageRefused):
                raise ConfigurationError(str(error)) from error
            raise

    async def publish(self, messages: Sequence[Message]) -> Sequence[Confirm]:
        """To every queue that has the topic, ten at a time."""
        if not messages:
            return []
        try:
            routes = await self._route({message.topic for message in messages})
        except (BrokerError, ConfigurationError) as error:  # it was right at the start
            return [BrokerUnavailable(str(error))] * len(messages)
        answers: list[Confirm] = [None] * len(messages)
        by_queue: dict[str, list[SqsEntry]] = {}
        for index, message in enumerate(messages):
            entry = entry_of(index, message, fifo=self._fifo)
            if entry.size > self._bytes_max:
                answers[index] = MessageRefused(
                    f"the message {message.id} has {entry.size} bytes with its envelope; "
                    f"SqsBroker takes message_bytes_max={self._bytes_max}"
                )
            elif not routes[message.topic]:
                answers[index] = TopicNotSubscribed(
                    f"no queue of {redact(self._url)} with the prefix {self._prefix!r} has the topic "
                    f"{message.topic!r}: the event waits until a consumer subscribes to it"
                )
            else:
                for url in routes[message.topic]:
                    by_queue.setdefault(url, []).append(entry)
        sends = [
            self._send(url, batch) for url, entries in by_queue.items() for batch in pack(entries, self._bytes_max)
        ]
        for answered in await asyncio.gather(*sends):
            for index, answer in answered.items():
                answers[index] = answers[index] or answer
        return answers

    async def subscribe(self, consumer: str, topics: Sequence[str]) -> SqsSubscription:
        if not topics:
            raise ConfigurationError(f"consumer={consumer!r} has no topics: name those it shall get")
        try:
            url = await self._make_queue(consumer, topics)
        except (MessageRefused, RightMissing) as error:
            raise ConfigurationError(f"consumer {consumer!r} cannot have its queue: {error}") from error
        self._forget_queues()
        subscription = SqsSubscription(
            self._calls, url, lambda: self._make_again(consumer, topics), lease_s=self._lease_s, poll_s=self._poll_s
        )
        self._subscriptions = {*(each for each in self._subscriptions if not each.is_closed), subscription}
        return subscription

    async def unsubscribe(self, consumer: str, topics: Collection[str]) -> None:
        """Messages in the queue stay there: they cannot be separated by topic."""
        if self._named is not None:  # its topics are what queues= says
            return
        found = await self._find(consumer)
        gone = [tag_of(topic) for topic in topics if found is not None and topic in found.topics]
        if found is not None and gone:
            await self._calls.call("untag_queue", QueueUrl=found.url, TagKeys=gone)
        self._forget_queues()

    async def subscriptions(self, names: Collection[str]) -> Sequence[SubscriptionSeen]:
        """Counted as SQS counts: approximately, and a minute late."""
        await self._look()
        found: list[SubscriptionSeen] = []
        for queue in self._queues:
            waiting = await self._count(queue)
            found.append(SubscriptionSeen(consumer=queue.consumer, topics=tuple(sorted(queue.topics)), waiting=waiting))
        return sorted(found, key=lambda each: each.consumer)

    async def _count(self, queue: ConsumerQueue) -> int | None:
        """None: there is no right to."""
        try:
            counts = await self._calls.call("get_queue_attributes", QueueUrl=queue.url, AttributeNames=list(_COUNTS))
        except RightMissing:
            return None
        return sum(int(count) for count in counts.get("Attributes", {}).values())

    async def remove(self, consumer: str) -> int | None:
        """SQS makes no queue of the same name again within a minute."""
        if self._named is not None:
            raise ConfigurationError(
                f"consumer {consumer!r}: its queue is one of SqsBroker's queues=, which others made and delete"
            )
        for each in await self.subscriptions([consumer]):
            if each.consumer == consumer and (queue := await self._find(consumer)) is not None:
                await self._calls.call("delete_queue", QueueUrl=queue.url)
                self._forget_queues()
                return each.waiting
        return None

    async def close(self) -> None:
        for subscription in tuple(self._subscriptions):
            await subscription.close()
        self._subscriptions.clear()
        self._forget_queues()
        await self._calls.close()

    async def _route(self, topics: Collection[str]) -> Mapping[str, Sequence[str]]:
        """The queues of each topic. A topic that has none is looked for again: its consumer may be new."""
        age_s = time.monotonic() - self._looked_at
        if age_s > self._discovery_s or (
            age_s > _LOOK_AGAIN_S
            and not all(any(matches_any(queue.topics, topic) for queue in self._queues) for topic in topics)
        ):
            await self._look()
        queues = self._queues
        return {topic: [queue.url for queue in queues if matches_any(queue.topics, topic)] for topic in topics}

    async def _look(self) -> None:
        """List the queues and what each is tagged with."""
        if self._named is not None:
            self._queues = self._named
            return
        async with self._looking:
            urls: list[str] = []
            page: dict[str, Any] = {}
            while True:
                listed = await self._calls.call(
                    "list_queues", QueueNamePrefix=f"{self._prefix}-", MaxResults=1000, **page
                )
                urls += listed.get("QueueUrls", ())
                if not listed.get("NextToken"):
                    break
                page = {"NextToken": listed["NextToken"]}
            ours = [url for url in urls if url.endswith(".fifo") == self._fifo]
            found = await asyncio.gather(*(self._read_tags(url) for url in ours))
            self._queues = [queue for queue in found if queue is not None and self._is_ours(queue)]
            self._looked_at = time.monotonic()

    async def _read_tags(self, url: str) -> ConsumerQueue | None:
        """None: it was deleted since it was listed, or is not one of ours."""
        try:
            return queue_of(url, (await self._calls.call("list_queue_tags", QueueUrl=url)).get("Tags", {}))
        except QueueMissing:
            return None

    def _is_ours(self, queue: ConsumerQueue) -> bool:
        """The queues of the prefix "shop-staging" are listed for "shop", too."""
        return queue.url.rpartition("/")[2] == queue_name(self._prefix, queue.consumer, fifo=self._fifo)

    def _forget_queues(self) -> None:
        self._looked_at = float("-inf")

    async def _find(self, consumer: str) -> ConsumerQueue | None:
        await self._look()
        return next((queue for queue in self._queues if queue.consumer == consumer), None)

    async def _make_queue(self, consumer: str, topics: Sequence[str]) -> str:
        """The consumer's queue, with these topics and those that it has. Attributes of one that is there stay as they
        are: they may have been changed by hand."""
        name = queue_name(self._prefix, consumer, fifo=self._fifo)
        if self._named is not None:
            return find_named(self._named, name, consumer, topics)
        try:
            url = str((await self._calls.call("get_queue_url", QueueName=name))["QueueUrl"])
            queue = await self._read_tags(url)
        except QueueMissing:
            made = await self._calls.call(
                "create_queue", QueueName=name, Attributes=self._attributes, tags=topic_tags(consumer, topics)
            )
            return str(made["QueueUrl"])
        if queue is not None and queue.consumer != consumer:
            raise ConfigurationError(f"consumer {consumer!r} cannot have the queue {name!r}: {queue.consumer!r} has it")
        every = {*topics, *(queue.topics if queue is not None else ())}
        if len(every) > _TOPICS_MAX:
            raise ConfigurationError(
                f"consumer {consumer!r} has {len(every)} topics, and a queue of SQS has tags for {_TOPICS_MAX}: "
                "subscribe to a pattern ('order.>'), or unsubscribe what is not wanted any more"
            )
        if queue is None or every != set(queue.topics):
            await self._calls.call("tag_queue", QueueUrl=url, Tags=topic_tags(consumer, topics))
        return url

    async def _make_again(self, consumer: str, topics: Sequence[str]) -> None:
        if self._named is not None:
            raise ConfigurationError("it is one of SqsBroker's queues=, which others make")
        await self._make_queue(consumer, topics)

    async def _send(self, url: str, batch: Sequence[SqsEntry]) -> dict[int, Confirm]:
        """What became of each entry, by its index."""
        try:
            answer = await self._calls.call(
                "send_message_batch", QueueUrl=url, Entries=[dict(entry.request) for entry in batch]
            )
        except QueueMissing as error:  # its consumer was removed: the next try has one queue less to send to
            self._forget_queues()
            return dict.fromkeys((entry.index for entry in batch), BrokerUnavailable(str(error)))
        except (MessageRefused, BrokerUnavailable) as error:
            return dict.fromkeys((entry.index for entry in batch), error)
        confirmed = {int(each["Id"]) for each in answer.get("Successful", ())}
        lost: Confirm = BrokerUnavailable(f"SQS at {redact(self._url)} did not say what became of the message")
        found = {entry.index: None if entry.index in confirmed else lost for entry in batch}
        return found | {int(each["Id"]): self._calls.verdict(each) for each in answer.get("Failed", ())}


def read_address(url: str) -> tuple[str, str, str | None]:
    """Region, prefix and endpoint of "sqs://region/prefix?endpoint=..."."""
    check_address("SqsBroker", url, ("sqs",))
    parts = urlsplit(url)
    where = f"SqsBroker({redact(url)!r})"
    if "@" in parts.netloc:
        raise ConfigurationError(
            f"{where}: the address has credentials, and SQS takes none there: leave them to boto3 (environment, "
            "profile, role), or give session=boto3.Session(...)"
        )
    if not parts.hostname or parts.port is not None:
        raise ConfigurationError(f"{where}: the address names a region, as in sqs://eu-central-1")
    settings = dict(parse_qsl(parts.query))
    endpoint = settings.pop("endpoint", None)
    if settings:
        raise ConfigurationError(f"{where}: the address has no setting {next(iter(settings))!r}; it has endpoint")
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise ConfigurationError(f"{where}: its endpoint must begin with http:// or https://")
    prefix = parts.path.strip("/") or "onefold"
    if not queue_name(prefix, "x", fifo=True).startswith(f"{prefix}-x"):
        raise ConfigurationError(f"{where}: the prefix of its queues must be 1 to 20 letters, digits, - and _")
    return parts.hostname, prefix, endpoint
