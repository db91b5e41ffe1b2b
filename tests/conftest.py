"""What the tests share: private servers, one of each for a worker, and a database of its own for a test."""

from __future__ import annotations

import functools
import gc
import re
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, settings

from onefold.db.asyncpg import AsyncpgDatabase
from onefold.db.psycopg import AsyncPsycopgDatabase, PsycopgDatabase
from onefold.testing.servers import (
    GivenKafka,
    PrivateKafka,
    PrivateNats,
    PrivatePostgres,
    PrivateRabbitmq,
    PrivateRestate,
    PrivateValkey,
    kafka_cluster,
)
from tests.support.moto_server import PrivateMoto
from tests.support.patience import PATIENCE_S
from tests.support.temporal_server import PrivateTemporal
from tests.testing.servers.missing import unless_missing

# No property depends on how fast a machine is at the moment: neither an example nor its making has a limit of time.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

#: Files whose tests take many seconds each: they begin first.
SLOW: Final = frozenset(
    (
        "tests/chaos/test_kills.py",
        "tests/chaos/test_order.py",
        "tests/chaos/test_server_loss.py",
        "tests/chaos/test_stops.py",
        "tests/cli/test_storm.py",
        "tests/client/chaos/test_shared_journal.py",
        "tests/client/chaos/test_ten_thousand.py",
        "tests/examples/test_shop.py",
        "tests/worker/test_task_queues.py",
    )
)

#: What only some tests need, and what takes a second of computing to start; RabbitMQ ten.
SOME_NEED: Final = ("rabbitmq", "kafka", "mortal_postgres", "postgres_16", "sqs", "moto")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Nothing of what is imported and collected is garbage, and looking through it again and again is a quarter of the
    work; nor is it later, for as long as the tests run."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the tests out to the workers: `--dist worksteal` begins by giving each an equal run of the list, and later
    takes from the ends. The slow ones begin: one that is begun last has a core to itself while the others stand idle.
    Then those of a server that only some need: as long as one worker has them, it is started once."""
    workers: int = getattr(config, "workerinput", {"workercount": 1})["workercount"]
    shares: list[list[pytest.Item]] = [[] for _ in range(workers)]
    rest = []
    for item in sorted(items, key=lambda item: item.nodeid.partition("::")[0] not in SLOW):
        if (server := server_of(item)) is not None:
            shares[server % workers].append(item)
        elif item.nodeid.partition("::")[0] in SLOW:
            min(shares, key=len).append(item)
        else:
            rest.append(item)
    others, fair = iter(rest), len(items) // workers
    for share in shares:
        share += islice(others, max(0, fair - len(share)))
    items[:] = [*(item for share in shares for item in share), *others]


def server_of(item: pytest.Item) -> int | None:
    """Which of the servers that only some need a test asks for, by its fixtures or by its parameters."""
    asked = {*getattr(item, "fixturenames", ()), *re.split(r"[^a-z0-9_]+", item.nodeid.partition("[")[2])}
    return next((number for number, server in enumerate(SOME_NEED) if server in asked), None)


@pytest.fixture(scope="session", autouse=True)
def patient_pools() -> Iterator[None]:
    """A busy machine may need more than the 10 s that an application waits for a connection: who wants a wait to end
    says when."""
    with pytest.MonkeyPatch.context() as patch:
        for database in (AsyncpgDatabase, AsyncPsycopgDatabase, PsycopgDatabase):
            patch.setattr(database, "__init__", _made_patient(database.__init__))
        yield


def _made_patient(init: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(init)  # by this its signature is what it was
    def patient(self: object, pool: Any, *, acquire_timeout_s: float = PATIENCE_S, **settings: Any) -> None:
        init(self, pool, acquire_timeout_s=acquire_timeout_s, **settings)

    return patient


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


@pytest.fixture(scope="session")
def moto() -> Iterator[PrivateMoto]:
    """The worker's SQS and DynamoDB. It stays up, and its queues and tables stay: name yours after your test."""
    with PrivateMoto() as server:
        yield server


@pytest.fixture(scope="session")
def restate() -> Iterator[PrivateRestate]:
    """The worker's Restate, where one is installed (`make restate`). It stays up, and its sagas stay."""
    with unless_missing(PrivateRestate), PrivateRestate() as server:
        yield server


@pytest.fixture(scope="session")
def temporal() -> Iterator[PrivateTemporal]:
    """The worker's Temporal. It stays up, and its workflows stay."""
    with unless_missing(PrivateTemporal), PrivateTemporal() as server:
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
