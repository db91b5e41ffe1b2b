"""A broker's address: a wrong one is refused where it is written, and no text repeats a secret that it holds."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from typing import Any

import pytest

from onefold.brokers._adapters import broker_of
from onefold.brokers.kafka import KafkaBroker
from onefold.brokers.nats import NatsBroker
from onefold.brokers.rabbitmq import RabbitBroker
from onefold.brokers.redis import RedisBroker
from onefold.brokers.sqs import SqsBroker
from onefold.errors import BrokerUnavailable, ConfigurationError

_BROKERS = {"redis": RedisBroker, "nats": NatsBroker, "amqp": RabbitBroker, "sqs": SqsBroker}

_REFUSED_OR_AWAY = (ConfigurationError, BrokerUnavailable)


def every_word_of(error: BaseException) -> str:
    """Everything a log would show of an error and of those behind it, but for the lines of the programs."""
    lines = traceback.TracebackException.from_exception(error, capture_locals=False)
    return "".join(line for line in lines.format() if not line.startswith("  File"))


def by_name(address: str) -> Any:
    return broker_of(address, None)  # type: ignore[arg-type]  # no database: these brokers have none


@pytest.mark.parametrize("make", [lambda address: _BROKERS[address.partition(":")[0]](address), by_name])
@pytest.mark.parametrize("scheme", _BROKERS)
@pytest.mark.parametrize(
    "rest",
    [
        "ann:hunter2@127.0.0.1:1",
        "ann:hunter2@hunter2@127.0.0.1:1",
        "ann:hunter2/hunter2@127.0.0.1:1",
        "ann:hunter2#@127.0.0.1:1",
        "ann:[hunter2@127.0.0.1:1",
        "ann:hunter2",
        "127.0.0.1:hunter2",
        "127.0.0.1:1/0?password=hunter2",
    ],
)
async def test_no_error_repeats_the_secret_of_an_address(make: Callable[[str], Any], scheme: str, rest: str) -> None:
    with pytest.raises(_REFUSED_OR_AWAY) as told:
        await make(f"{scheme}://{rest}").open()
    assert "hunter2" not in every_word_of(told.value)


@pytest.mark.parametrize("address", ["redsi://:hunter2@host", "redis:/:hunter2@host", "ann:hunter2@host"])
def test_a_mistyped_scheme_is_refused_without_the_password(address: str) -> None:
    with pytest.raises(ConfigurationError, match="unknown") as told:
        by_name(address)
    assert "hunter2" not in every_word_of(told.value)


@pytest.mark.parametrize(("scheme", "broker"), _BROKERS.items())
@pytest.mark.parametrize("rest", ["host:port", "host:0", "host:99999"])
def test_an_address_that_cannot_be_read_is_refused_when_the_broker_is_made(
    scheme: str, broker: Callable[[str], Any], rest: str
) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        broker(f"{scheme}://{rest}")


@pytest.mark.parametrize("servers", ["nats://", "nats://:4222", "", ["nats://127.0.0.1:4222", "tls://"], []])
def test_an_address_of_nats_without_a_host_is_refused_when_the_broker_is_made(servers: str | list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"names no server.*nats://host:4222"):
        NatsBroker(servers)


async def test_an_option_that_the_client_of_nats_refuses_is_the_cause_that_is_told() -> None:
    async def connection_lost() -> None: ...

    with pytest.raises(BrokerUnavailable, match="callbacks must be coroutine functions"):
        await NatsBroker("nats://127.0.0.1:1", options={"closed_cb": lambda: connection_lost}).open()


@pytest.mark.parametrize("broker", _BROKERS.values())
def test_an_address_of_another_kind_is_refused_when_the_broker_is_made(broker: Callable[[str], Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"'http://host'.*must begin with"):
        broker("http://host")


def test_credentials_among_kafkas_servers_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigurationError, match=r"sasl\.password") as told:
        KafkaBroker("ann:hunter2@host:9092")
    assert "hunter2" not in every_word_of(told.value)
