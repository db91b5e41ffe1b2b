"""The brokers keep their promises with the oldest version of its library that their extra allows, and NATS with each
minor version whose private names are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from onefold.brokers.nats._fast_publish import TESTED
from onefold.testing.servers import PrivateNats
from tests.support.versions import install, lower_bound, run_with

SMOKE = """
import asyncio, sys
from importlib.metadata import version
from onefold import Message
from onefold.brokers.nats import NatsBroker
from onefold.errors import MessageRefused

async def main(url, stream):
    broker = NatsBroker(url, stream=stream, confirm_s=60.0)
    await broker.open()
    subscription = await broker.subscribe("billing", ["orders"])
    sent = [Message(id=str(n), source="shop", topic="orders", data=b"{}") for n in range(3)]
    refused = Message(id="odd", source="shop", topic="a..b", data=b"{}")
    *confirms, last = await broker.publish([*sent, refused])
    assert confirms == [None] * 3 and isinstance(last, MessageRefused), (confirms, last)
    found = await subscription.receive(10, 30.0)
    await subscription.ack(found)
    await broker.close()
    assert [delivery.message for delivery in found] == sent, found
    print(version("nats-py"))

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize("public", ["0", "1"], ids=["fast", "public"])
def test_nats_publishes_and_consumes_with_the_oldest_nats_py(nats: PrivateNats, oldest_nats: Path, public: str) -> None:
    ran = run_with(oldest_nats, "-c", SMOKE, nats.url, f"oldest-{public}", ONEFOLD_PUBLIC_DRIVERS=public)
    assert ran.strip() == lower_bound("nats")


@pytest.fixture(scope="module")
def oldest_nats(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("nats")
    install([f"nats-py=={lower_bound('nats')}"], folder)
    return folder


#: The library of each extra, and which tests of the brokers are about it.
SUITES = {
    "nats": ("nats-py", "nats"),
    "redis": ("redis", "valkey or redis"),
    "rabbitmq": ("aio-pika", "rabbitmq"),
    "kafka": ("confluent-kafka", "kafka"),
    "aws": ("boto3", "sqs"),
    "webhook": ("httpx", "webhook"),
}


def run_suite(installed: Path, only: str) -> None:
    options = ["-q", "-n", "2", "-p", "no:cacheprovider", "-k", only]
    assert " passed" in run_with(installed, "-m", "pytest", *options, "tests/brokers")


@pytest.mark.soak
@pytest.mark.parametrize("extra", SUITES)
def test_a_broker_keeps_its_promises_with_the_oldest_version_of_its_library(extra: str, tmp_path: Path) -> None:
    library, only = SUITES[extra]
    install([f"{library}=={lower_bound(extra)}"], tmp_path)
    run_suite(tmp_path, only)


@pytest.mark.soak
@pytest.mark.parametrize("version", TESTED, ids=lambda version: f"{version[0]}.{version[1]}")
def test_nats_keeps_its_promises_with_each_version_whose_private_names_are_used(
    version: tuple[int, int], tmp_path: Path
) -> None:
    install([f"nats-py=={version[0]}.{version[1]}.*,>={lower_bound('nats')}"], tmp_path)
    run_suite(tmp_path, "nats")
