"""What the tests share: private servers, one of each for a worker, and a database of its own for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TypeVar

import pytest

from onefold.testing.servers import (
    GivenKafka,
    PrivateKafka,
    PrivateNats,
    PrivatePostgres,
    PrivateRabbitmq,
    PrivateServer,
    PrivateValkey,
    ServerUnavailable,
    kafka_cluster,
)

Server = TypeVar("Server", bound=PrivateServer | GivenKafka)


def _served(server: Server) -> Iterator[Server]:
    """One that this machine cannot run is a skip that says why."""
    with ExitStack() as running:
        try:
            running.enter_context(server)
        except ServerUnavailable as error:
            pytest.skip(str(error))
        yield server


@pytest.fixture(scope="session")
def postgres() -> Iterator[PrivatePostgres]:
    """The worker's server. It stays up: whoever wants to kill one takes `mortal_postgres`."""
    yield from _served(PrivatePostgres(version=18))


@pytest.fixture(scope="session")
def postgres_16() -> Iterator[PrivatePostgres]:
    """The same, of the oldest version that is tested."""
    yield from _served(PrivatePostgres(version=16))


@pytest.fixture(scope="session")
def mortal_postgres() -> Iterator[PrivatePostgres]:
    """A server to be killed. Whoever kills it restarts it."""
    yield from _served(PrivatePostgres(version=18))


@pytest.fixture(scope="session")
def nats() -> Iterator[PrivateNats]:
    """The worker's NATS, with JetStream. It stays up, and its streams stay: name yours after your test."""
    yield from _served(PrivateNats())


@pytest.fixture(scope="session")
def valkey() -> Iterator[PrivateValkey]:
    """The worker's Valkey. It stays up, and its keys stay."""
    yield from _served(PrivateValkey())


@pytest.fixture(scope="session")
def kafka() -> Iterator[PrivateKafka | GivenKafka]:
    """The worker's mock of Kafka, or the real cluster that KAFKA_BOOTSTRAP names. It stays up, and its topics stay."""
    yield from _served(kafka_cluster())


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[PrivateRabbitmq]:
    """The worker's RabbitMQ, where one is installed (`make rabbitmq`). It stays up, and its queues stay."""
    yield from _served(PrivateRabbitmq())


@pytest.fixture
def postgres_dsn(postgres: PrivatePostgres) -> str:
    """An empty database."""
    return postgres.fresh_database()


@pytest.fixture
def sqlite_path(tmp_path: Path) -> Path:
    """A file that is not there yet."""
    return tmp_path / "onefold.db"
