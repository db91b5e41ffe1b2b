"""What only SQS does: leases that are time-outs, groups for keys, answers for each entry of a batch, queues known by
their tags. On moto, which proves plumbing."""

from __future__ import annotations

import secrets
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from onefold._kernel.messages import Message
from onefold._kernel.transaction import Transaction
from onefold._worker.consumer_runner import ConsumerRunner
from onefold.brokers._sqs_entries import entry_of, pack
from onefold.brokers._sqs_queues import queue_name
from onefold.brokers.sqs import SqsBroker
from onefold.errors import BrokerUnavailable, ConfigurationError, MessageRefused, TopicNotSubscribed
from onefold.testing.conformance.brokers import SCENARIOS, BrokerScenario, check
from onefold.testing.fault_proxy import HOST
from tests.brokers.sqs_subject import LEASE_S, sqs_subject
from tests.inbox.backends import sqlite_backend
from tests.support.moto_server import REGION, PrivateMoto
from tests.support.patience import PATIENCE_S
from tests.worker.consuming import running, until

TOPIC = "order.placed"


def message(number: int = 0, **fields: Any) -> Message:
    given: dict[str, Any] = {"source": "shop", "topic": TOPIC, "data": b"{}", **fields}
    return Message(id=f"m{number}", **given)


@asynccontextmanager
async def opened(server: PrivateMoto, **settings: Any) -> AsyncIterator[SqsBroker]:
    prefix = settings.pop("prefix", f"t{secrets.token_hex(6)}")
    url = f"sqs://{REGION}/{prefix}?endpoint={server.url}"
    broker = SqsBroker(url, poll_s=1, confirm_s=PATIENCE_S, session=server.session, **settings)
    await broker.open()
    try:
        yield broker
    finally:
        await broker.close()


@pytest.mark.parametrize("scenario", [each for each in SCENARIOS if "_kept_" in str(each)], ids=str)
async def test_a_visibility_time_out_is_a_lease(moto: PrivateMoto, scenario: BrokerScenario) -> None:
    async with sqs_subject(moto, LEASE_S) as subject:
        assert scenario.applies(subject)
        await check(scenario, replace(subject, patience_s=PATIENCE_S))


async def test_a_key_keeps_its_order_and_holds_up_no_other(moto: PrivateMoto) -> None:
    async with opened(moto) as broker:
        subscription = await broker.subscribe("billing", [TOPIC])
        sent = [message(number, key="a") for number in range(12)]
        for each in sent[:2]:
            assert await broker.publish([each]) == [None]
        first = await subscription.receive(1, PATIENCE_S)
        rest = await subscription.receive(10, PATIENCE_S)
        await subscription.ack(rest)
        await broker.publish(sent[2:3])
        await broker.publish([message(99, key="b")])
        found = await subscription.receive(10, PATIENCE_S)
        assert [each.message and each.message.id for each in found] == ["m99"], "the first of the key is not settled"
        await subscription.give_back(first)
        again = await subscription.receive(1, PATIENCE_S)
        assert [each.message and each.message.id for each in again] == ["m0"]


async def test_what_comes_again_after_its_time_out_is_handled_once(moto: PrivateMoto, tmp_path: Path) -> None:
    """The handler's commit is there, its acknowledgement is not: the process had died in between."""
    async with sqlite_backend(tmp_path / "inbox.db") as backend, opened(moto, lease_s=1) as broker:
        subscription = await broker.subscribe("billing", [TOPIC])
        assert await broker.publish([message(number, key="a") for number in range(3)]) == [None] * 3
        inbox = backend.inbox()
        for delivery in await subscription.receive(10, PATIENCE_S):
            await backend.hand(inbox, delivery)  # and no ack
        async with running(ConsumerRunner(backend.database, broker, [backend.consumer()])):

            async def all_gone() -> bool:
                return [seen.waiting for seen in await broker.subscriptions([])] == [0]

            await until(all_gone)
        assert await backend.effects() == backend.calls == ["m0", "m1", "m2"]


async def test_a_poison_message_becomes_a_dead_letter_of_ours_and_its_key_goes_on(
    moto: PrivateMoto, tmp_path: Path
) -> None:
    async with sqlite_backend(tmp_path / "inbox.db") as backend, opened(moto) as broker:

        async def handler(given: Message, tx: Transaction[Any]) -> None:
            if given.id == "m1":
                raise ValueError("poison")
            await backend.write(tx, given.id)

        await broker.subscribe("billing", [TOPIC])
        assert await broker.publish([message(number, key="a") for number in range(4)]) == [None] * 4
        consumer = backend.consumer(handler, attempts=1)
        async with running(ConsumerRunner(backend.database, broker, [consumer])):

            async def all_done() -> bool:
                failed = await backend.failed_messages()
                return len(await backend.effects()) == 3 and [each.state for each in failed.values()] == ["dead"]

            await until(all_done)
        assert await backend.effects() == ["m0", "m2", "m3"]
        [dead] = (await backend.failed_messages()).values()
        assert (dead.id, dead.data) == ("m1", b"{}")


async def test_odd_texts_many_headers_and_long_keys_travel(moto: PrivateMoto) -> None:
    """SQS takes ten attributes, 128 characters for a group, and not every character."""
    odd = "".join(map(chr, (0x7F, 0x85, 0xFDD0, 0xFFFE, 0xFFFF, 0x1F389)))
    sent = [
        message(1, data=f'"{odd}"'.encode(), content_type="text/plain", key="ü" * 500),
        message(2, headers={f"x-{number}": odd for number in range(20)}, key="a b"),
    ]
    async with opened(moto) as broker:
        subscription = await broker.subscribe("billing", [TOPIC])
        assert await broker.publish(sent) == [None, None]
        found = {each.message.id: each.message for each in await subscription.receive(2, PATIENCE_S) if each.message}
        assert [found["m1"], found["m2"]] == sent


async def test_a_text_of_another_producer_comes_as_it_is_and_says_so(moto: PrivateMoto) -> None:
    async with opened(moto, fifo=False) as broker:
        subscription = await broker.subscribe("billing", [TOPIC])
        client = moto.client("sqs")
        [queue] = [queue.url for queue in await look(broker)]
        for attribute in ({}, {"onefold-headers": {"DataType": "String", "StringValue": "no JSON"}}):
            client.send_message(QueueUrl=queue, MessageBody="hello", MessageAttributes=attribute)
        found = [*await subscription.receive(2, PATIENCE_S)]
        while len(found) < 2:
            found += await subscription.receive(2, PATIENCE_S)
        assert [(each.data, each.message) for each in found] == [(b"hello", None)] * 2
        assert all("CloudEvents attribute 'id'" in (each.problem or "") for each in found)
        assert len({each.origin.id for each in found}) == 2


async def look(broker: SqsBroker) -> Sequence[Any]:
    await broker.subscriptions([])
    return broker._queues


async def test_headers_nested_too_deeply_are_malformed_and_the_batch_arrives(moto: PrivateMoto) -> None:
    async with opened(moto, fifo=False) as broker:
        subscription = await broker.subscribe("billing", [TOPIC])
        [queue] = await look(broker)
        nested = {"onefold-headers": {"DataType": "String", "StringValue": "[" * 100_000}}
        moto.client("sqs").send_message(QueueUrl=queue.url, MessageBody="hello", MessageAttributes=nested)
        assert await broker.publish([message(1)]) == [None]
        found = [*await subscription.receive(2, PATIENCE_S)]
        while len(found) < 2:
            found += await subscription.receive(2, PATIENCE_S)
        assert {each.data: each.message for each in found} == {b"hello": None, b"{}": message(1)}


async def test_a_prefix_that_begins_as_another_does_has_queues_of_its_own(moto: PrivateMoto) -> None:
    prefix = f"t{secrets.token_hex(3)}"
    async with opened(moto, prefix=prefix) as shop, opened(moto, prefix=f"{prefix}-staging") as staging:
        await staging.subscribe("billing", [TOPIC])
        [refused] = await shop.publish([message()])
        assert isinstance(refused, TopicNotSubscribed)
        assert await shop.remove("billing") is None
        await shop.unsubscribe("billing", [TOPIC])
        [seen] = await staging.subscriptions([])
        assert (seen.consumer, seen.topics, seen.waiting) == ("billing", (TOPIC,), 0)
        with pytest.raises(ConfigurationError, match="'billing' has it"):  # of the same name
            await shop.subscribe("staging-billing", [TOPIC])


async def test_standard_queues_discard_nothing_and_take_as_much(moto: PrivateMoto) -> None:
    async with opened(moto, fifo=False) as broker:
        subscription = await broker.subscribe("billing", [TOPIC])
        for _ in range(2):
            assert await broker.publish([message(1, key="a")]) == [None]
        found = [*await subscription.receive(2, PATIENCE_S)]
        while len(found) < 2:
            found += await subscription.receive(2, PATIENCE_S)
        assert [each.message and each.message.id for each in found] == ["m1", "m1"]


async def test_an_event_waits_until_its_topic_has_a_queue_and_the_limit_is_named(moto: PrivateMoto) -> None:
    prefix = f"t{secrets.token_hex(6)}"
    async with opened(moto, prefix=prefix, discovery_s=0) as broker, opened(moto, prefix=prefix) as consumers:
        [refused] = await broker.publish([message()])
        assert isinstance(refused, TopicNotSubscribed)
        assert TOPIC in str(refused)
        await consumers.subscribe("billing", ["order.*"])
        large = message(2, data=b"x" * 262_144)
        confirmed, too_large = await broker.publish([message(), large])
        assert confirmed is None
        assert isinstance(too_large, MessageRefused)
        assert "message_bytes_max=262144" in str(too_large)


async def test_a_queue_that_was_deleted_is_made_again_by_its_consumer(moto: PrivateMoto) -> None:
    async with opened(moto) as broker:
        subscription = await broker.subscribe("billing", [TOPIC])
        [queue] = await look(broker)
        moto.client("sqs").delete_queue(QueueUrl=queue.url)
        [answer] = await broker.publish([message(1)])
        assert isinstance(answer, BrokerUnavailable), "it is not known whether another queue takes it"
        with pytest.raises(BrokerUnavailable, match="made again"):
            await subscription.receive(1, PATIENCE_S)
        assert await broker.publish([message(1)]) == [None]
        [found] = await subscription.receive(1, PATIENCE_S)
        assert found.message == message(1)


@pytest.mark.parametrize("code", ["AccessDenied", "InvalidAttributeValue", "QueueDoesNotExist"])
async def test_a_deleted_queue_that_cannot_be_made_yet_is_waited_for(code: str) -> None:
    """BrokerUnavailable is what consumers wait through; any other error has them subscribe again, or ends them."""
    session = Scripted(get_queue_url=lambda **_: {"QueueUrl": "http://q/onefold-billing.fifo"})
    broker = SqsBroker(f"sqs://{REGION}", session=session)
    await broker.open()
    subscription = await broker.subscribe("billing", [TOPIC])
    gone = failing("QueueDoesNotExist")
    session.answers |= {"receive_message": gone, "get_queue_url": gone, "create_queue": failing(code, "CreateQueue")}
    for _ in range(2):
        with pytest.raises(BrokerUnavailable, match=f"tried again.*{code}"):
            await subscription.receive(1, PATIENCE_S)
    await broker.close()


async def test_more_topics_than_a_queue_has_tags_for_are_refused(moto: PrivateMoto) -> None:
    async with opened(moto) as broker:
        await broker.subscribe("billing", [TOPIC])
        with pytest.raises(ConfigurationError, match=r"'billing' has 51 topics.*49.*pattern"):
            await broker.subscribe("billing", [f"t{number}" for number in range(50)])


class Scripted:
    """A session whose client answers what a test says; all other calls are answered as if there were one queue."""

    def __init__(self, **answers: Callable[..., Any]) -> None:
        self.answers = {
            "list_queues": lambda **_: {"QueueUrls": ["http://q/onefold-billing.fifo"]},
            "list_queue_tags": lambda **_: {"Tags": {"onefold:consumer": "billing", "onefold:topic:x": TOPIC}},
            **answers,
        }

    def client(self, *_: Any, **__: Any) -> Any:
        return self

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return self.answers[name]


def failing(code: str, operation: str = "SendMessageBatch") -> Callable[..., Any]:
    def fail(**_: Any) -> Any:
        raise ClientError({"Error": {"Code": code, "Message": "so it is"}}, operation)

    return fail


async def publish_scripted(count: int, send: Callable[..., Any]) -> Sequence[Any]:
    broker = SqsBroker(f"sqs://{REGION}", session=Scripted(send_message_batch=send))
    await broker.open()
    try:
        return await broker.publish([message(number) for number in range(count)])
    finally:
        await broker.close()


async def test_each_entry_of_a_batch_has_its_own_answer() -> None:
    def send(*, Entries: Sequence[Any], **_: Any) -> Any:  # noqa: N803
        assert len(Entries) <= 10
        failed = [
            {"Id": "1", "SenderFault": True, "Code": "InvalidMessageContents", "Message": "m"},
            {"Id": "2", "SenderFault": False, "Code": "InternalError", "Message": "m"},
            {"Id": "3", "SenderFault": True, "Code": "RequestThrottled", "Message": "m"},
            {"Id": "5", "SenderFault": True, "Code": "KmsAccessDenied", "Message": "m"},
        ]
        here = {each["Id"] for each in Entries}
        return {
            "Successful": [{"Id": name} for name in here - {"1", "2", "3", "4", "5"}],
            "Failed": [each for each in failed if each["Id"] in here],
        }

    answers = await publish_scripted(15, send)
    assert [type(answer) for answer in answers[1:6]] == [MessageRefused] + [BrokerUnavailable] * 4
    assert answers[0] is None
    assert answers[6:] == [None] * 9


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ThrottlingException", BrokerUnavailable),
        ("AWS.SimpleQueueService.NonExistentQueue", BrokerUnavailable),
        ("ExpiredToken", BrokerUnavailable),
        ("InternalFailure", BrokerUnavailable),
        ("AccessDenied", BrokerUnavailable),
        ("KMS.AccessDeniedException", BrokerUnavailable),
        ("AWS.SimpleQueueService.BatchRequestTooLong", MessageRefused),
    ],
)
async def test_a_call_that_fails_is_the_answer_of_all_its_entries(code: str, kind: type[Exception]) -> None:
    answers = await publish_scripted(2, failing(code))
    assert [isinstance(answer, kind) for answer in answers] == [True, True]


async def test_missing_rights_and_credentials_are_told_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="AccessDenied"):
        await SqsBroker(f"sqs://{REGION}", session=Scripted(list_queues=failing("AccessDenied"))).open()
    missing, denied = failing("QueueDoesNotExist", "GetQueueUrl"), failing("AccessDenied", "CreateQueue")
    broker = SqsBroker(f"sqs://{REGION}", session=Scripted(get_queue_url=missing, create_queue=denied))
    await broker.open()
    with pytest.raises(ConfigurationError, match=r"'billing' cannot have its queue.*CreateQueue"):
        await broker.subscribe("billing", [TOPIC])
    await broker.close()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nowhere")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nowhere")
    with pytest.raises(ConfigurationError, match="finds no credentials"):
        await SqsBroker(f"sqs://{REGION}?endpoint=http://{HOST}:1").open()


async def test_a_missing_right_to_read_tags_is_named_with_what_does_without() -> None:
    """To leave such a queue out could lose events: it may be a consumer's."""
    session = Scripted(list_queue_tags=failing("AccessDenied", "ListQueueTags"))
    with pytest.raises(ConfigurationError, match=r"ListQueueTags.*so it is.*queues=\{"):
        await SqsBroker(f"sqs://{REGION}", session=session).open()


async def test_queues_that_others_made_are_used_without_the_rights_to_list_tag_or_make_any(moto: PrivateMoto) -> None:
    client = moto.session.client("sqs", region_name=REGION, endpoint_url=moto.url)
    name = queue_name("terraform", "billing", fifo=True)
    url = client.create_queue(QueueName=name, Attributes={"FifoQueue": "true"})["QueueUrl"]
    rights = OnlyTheseCalls(client, "send_message_batch", "receive_message", "delete_message_batch")
    broker = SqsBroker(
        f"sqs://{REGION}/terraform", session=rights, poll_s=1, confirm_s=PATIENCE_S, queues={url: ["order.>"]}
    )
    await broker.open()
    subscription = await broker.subscribe("billing", [TOPIC])
    placed, other = await broker.publish([message(1), message(2, topic="refund.made")])
    assert placed is None
    assert isinstance(other, TopicNotSubscribed)
    found = await subscription.receive(1, PATIENCE_S)
    assert [each.message and each.message.id for each in found] == ["m1"]
    await subscription.ack(found)
    assert [(seen.consumer, seen.waiting) for seen in await broker.subscriptions([])] == [("billing", None)]
    with pytest.raises(ConfigurationError, match=r"'billing' wants 'refund.made'.*queues="):
        await broker.subscribe("billing", ["refund.made"])
    with pytest.raises(ConfigurationError, match=r"queues= has no queue 'terraform-shipping.fifo'"):
        await broker.subscribe("shipping", [TOPIC])
    await broker.unsubscribe("billing", [TOPIC])
    with pytest.raises(ConfigurationError, match=r"'billing'.*queues="):
        await broker.remove("billing")
    client.delete_queue(QueueUrl=url)
    with pytest.raises(BrokerUnavailable, match=r"the queue is gone.*queues="):
        await subscription.receive(1, PATIENCE_S)
    await broker.close()


class OnlyTheseCalls:
    """Credentials that have few rights, as a session."""

    def __init__(self, client: Any, *allowed: str) -> None:
        self._client, self._allowed = client, allowed

    def client(self, *_: Any, **__: Any) -> Any:
        return self

    def close(self) -> None: ...

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name) if name in self._allowed else failing("AccessDenied", name)


@pytest.mark.parametrize(
    ("queues", "named"),
    [
        ({}, "queues={}"),
        (["http://q/a.fifo"], r"queues=\[.*the topics of each"),
        ({"onefold-a.fifo": [TOPIC]}, "onefold-a.fifo.*address"),
        ({"https://sqs/1/onefold-a": [TOPIC]}, r"'onefold-a'.*ends in \.fifo"),
        ({"https://sqs/1/onefold-a.fifo": TOPIC}, "a list of topics"),
        ({"https://sqs/1/onefold-a.fifo": ["a b"]}, "'a b'"),
    ],
)
def test_queues_that_are_named_wrongly_are_refused(queues: Any, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        SqsBroker(f"sqs://{REGION}", queues=queues)


async def test_an_endpoint_that_is_away_is_unavailable_and_no_text_has_a_secret() -> None:
    session = boto3.Session(aws_access_key_id="hunter1", aws_secret_access_key="hunter2", aws_session_token="hunter3")
    url = f"sqs://{REGION}?endpoint=http://hunter4:hunter5@{HOST}:1"
    with pytest.raises(BrokerUnavailable) as told:
        await SqsBroker(url, session=session).open()
    assert "EndpointConnectionError" in str(told.value)
    assert "hunter" not in "".join(traceback.format_exception(told.value))


async def test_an_answer_that_quotes_the_signed_request_is_not_repeated() -> None:
    """As AWS answers a wrong signature: with the request's headers, its session token among them."""

    def fail(**_: Any) -> Any:
        quoted = "The Canonical String should have been 'POST x-amz-security-token:hunter3'"
        raise ClientError({"Error": {"Code": "InvalidSignatureException", "Message": quoted}}, "ListQueues")

    with pytest.raises(BrokerUnavailable, match="InvalidSignatureException") as told:
        await SqsBroker(f"sqs://{REGION}", session=Scripted(list_queues=fail)).open()
    assert "hunter" not in "".join(traceback.format_exception(told.value))


def test_queues_of_consumers_have_names_of_their_own() -> None:
    names = ["billing", "billing.eu", "billing-eu", "billing/eu", "b" * 54, "b" * 55, "b" * 99, "ü"]
    made = [queue_name("onefold", name, fifo=True) for name in names]
    assert len(set(made)) == len(names)
    assert made[0] == "onefold-billing.fifo"
    assert all(len(name) <= 80 for name in made)
    assert queue_name("p" * 20, "c" * 99, fifo=True)[-5:] == ".fifo"


@pytest.mark.parametrize(
    "url", ["sqs://r/a.b", "sqs://r/" + "p" * 21, "sqs://r?lease=5", "sqs://", "sqs://r?endpoint=h:1"]
)
def test_an_address_that_sqs_does_not_take_is_refused(url: str) -> None:
    with pytest.raises(ConfigurationError):
        SqsBroker(url)


def test_a_batch_is_no_larger_than_sqs_takes() -> None:
    entries = [entry_of(number, message(number, data=b"x" * 40_000), fifo=True) for number in range(25)]
    batches = list(pack(entries, 100_000))
    assert [entry.index for batch in batches for entry in batch] == list(range(25))
    assert all(sum(entry.size for entry in batch) <= 100_000 and len(batch) <= 10 for batch in batches)
    assert max(map(len, pack([entry_of(n, message(n), fifo=True) for n in range(25)], 100_000))) == 10
