"""What the tests share: private servers, one of each for a worker, and a database of its own for a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onefold.testing.servers import (
    GivenKafka,
    PrivateKafka,
    PrivateNats,
    PrivatePostgres,
    PrivateRabbitmq,
    PrivateValkey,
    kafka_cluster,
)
from tests.testing.servers.missing import unless_missing


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """The worker's server. It stays up: whoever wants to kill one takes `mortal_postgres`."""
    with PrivatePostgres(version=18) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_16() -> Iterator[PrivatePostgres]:
    """The same, of the oldest version that is tested."""
    with PrivatePostgres(version=16) as server:
        yield server


@pytest.fixture(scope="session")
def mortal_postgres() -> Iterator[PrivatePostgres]:
    """A server to be killed. Whoever kills it restarts it."""
    with PrivatePostgres(version=18) as server:
        yield server


@pytest.fixture(scope="session")
def nats() -> Iterator[PrivateNats]:
    """The worker's NATS, with JetStream. It stays up, and its streams stay: name yours after your test."""
    with PrivateNats() as server:
        yield server


@pytest.fixture(scope="session")
def valkey() -> Iterator[PrivateValkey]:
    """The worker's Valkey. It stays up, and its keys stay."""
    with PrivateValkey() as server:
        yield server


@pytest.fixture(scope="session")
def kafka() -> Iterator[PrivateKafka | GivenKafka]:
    """The worker's mock of Kafka, or the real cluster that KAFKA_BOOTSTRAP names. It stays up, and its topics stay."""
    with kafka_cluster() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[PrivateRabbitmq]:
    """The worker's RabbitMQ, where one is installed (`make rabbitmq`). It stays up, and its queues stay."""
    with unless_missing(PrivateRabbitmq), PrivateRabbitmq() as server:
        yield server


@pytest.fixture
def postgres_dsn(postgres: PrivatePostgres) -> Iterator[str]:
    """An empty database, dropped after the test: what is deleted soon never reaches the disk."""
    dsn = postgres.fresh_database()
    yield dsn
    postgres.drop_database(dsn)


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "onefold.db"
