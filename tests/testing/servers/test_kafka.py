"""A private Kafka is found where it was, and remembers nothing; a real one can stand in."""

from __future__ import annotations

import secrets

import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition

from onefold.errors import ConfigurationError
from onefold.testing.servers import GivenKafka, PrivateKafka, kafka_cluster
from tests.support.patience import PATIENCE_S


def producer(cluster: PrivateKafka | GivenKafka) -> Producer:
    # Its complaints about a cluster that is down, which is what we want, are not for our log.
    settings = {"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0, "reconnect.backoff.max.ms": 100}
    return Producer({**settings, "message.timeout.ms": PATIENCE_S * 1000})


def publish(client: Producer, topic: str, *payloads: bytes) -> None:
    errors: list[object] = []
    for payload in payloads:
        client.produce(
            topic, payload, key=b"key", headers={"id": payload}, on_delivery=lambda error, _: errors.append(error)
        )
    assert client.flush(PATIENCE_S) == 0
    assert errors == [None] * len(payloads)


def consume(cluster: PrivateKafka | GivenKafka, topic: str, count: int) -> list[Message]:
    settings = {"bootstrap.servers": cluster.bootstrap, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "enable.auto.commit": False, "log_level": 0})
    try:
        consumer.subscribe([topic])
        found: list[Message] = []
        while len(found) < count:
            messages = consumer.consume(count - len(found), PATIENCE_S)
            assert messages, f"{len(found)} of {count} messages came"
            found += [message for message in messages if message.error() is None]
        consumer.commit(asynchronous=False)
        return found
    finally:
        consumer.close()


def test_what_was_acknowledged_is_consumed_with_its_key_and_its_headers(kafka: PrivateKafka | GivenKafka) -> None:
    topic = f"acknowledged-{secrets.token_hex(8)}"
    publish(producer(kafka), topic, b"1", b"2", b"3")
    messages = consume(kafka, topic, 3)
    assert [message.value() for message in messages] == [b"1", b"2", b"3"]
    assert {message.key() for message in messages} == {b"key"}
    assert [message.headers() for message in messages] == [[("id", b"1")], [("id", b"2")], [("id", b"3")]]


def test_a_producer_finds_a_restarted_cluster_where_it_was_and_the_log_is_lost() -> None:
    with PrivateKafka(brokers=2) as cluster:
        client = producer(cluster)
        publish(client, "payments", b"before")
        cluster.kill()
        cluster.restart()
        publish(client, "payments", b"after")
        assert [message.value() for message in consume(cluster, "payments", 1)] == [b"after"]
        partitions = [TopicPartition("payments", number) for number in range(4)]
        watching = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "watch", "log_level": 0})
        ends = [watching.get_watermark_offsets(partition, PATIENCE_S)[1] for partition in partitions]
        watching.close()
        assert sum(ends) == 1


def test_every_broker_is_named_at_its_own_port(kafka: PrivateKafka | GivenKafka) -> None:
    named = producer(kafka).list_topics(timeout=PATIENCE_S).brokers.values()
    if isinstance(kafka, PrivateKafka):
        assert {broker.port for broker in named} == {*kafka.ports}
    else:
        assert named


def test_the_environment_names_a_real_cluster_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP", "kafka.example:9092")
    with kafka_cluster() as cluster:
        assert cluster == GivenKafka("kafka.example:9092")
    monkeypatch.delenv("KAFKA_BOOTSTRAP")
    assert isinstance(kafka_cluster(), PrivateKafka)


@pytest.mark.parametrize("brokers", [0, 11])
def test_a_cluster_of_no_or_too_many_brokers_is_refused(brokers: int) -> None:
    with pytest.raises(ConfigurationError, match=f"brokers={brokers}"):
        PrivateKafka(brokers=brokers)
