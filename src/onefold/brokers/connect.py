"""From an address to a broker. Adapters are imported only when they are asked for; no message repeats a password."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlsplit

from onefold._kernel.ports import AsyncDatabase, Broker
from onefold.brokers.local import LEASE_S, Awaited, LocalBroker
from onefold.errors import ConfigurationError

#: "local", the address of a server, or a function that makes a broker with settings of its own.
BrokerGiven: TypeAlias = str | Callable[[], Broker]

_NATS: Final = ("nats", "NatsBroker", "nats")
_REDIS: Final = ("redis", "RedisBroker", "redis")
_RABBITMQ: Final = ("rabbitmq", "RabbitBroker", "rabbitmq")

#: By scheme: the module, its class, the extra that brings its client.
_ADAPTERS: Final = {
    "nats": _NATS,
    "tls": _NATS,
    "redis": _REDIS,
    "rediss": _REDIS,
    "valkey": _REDIS,
    "valkeys": _REDIS,
    "amqp": _RABBITMQ,
    "amqps": _RABBITMQ,
    "kafka": ("kafka", "KafkaBroker", "kafka"),
}


#: What the clients call these schemes.
_CLIENT_NAMES: Final = {"kafka": "", "valkey": "redis://", "valkeys": "rediss://"}


def broker_of(given: BrokerGiven, database: AsyncDatabase[Any], awaited: Awaited | None = None) -> Broker:
    """A broker, not yet open. `database` is where "local" messages travel; `awaited` is for LocalBroker."""
    if not isinstance(given, str):
        return given()
    try:
        address = urlsplit(given)
    except ValueError as error:
        raise ConfigurationError(f"the address of the broker cannot be read: {error}") from error
    if given == "local" or given.startswith("local?"):
        return _local(dict(parse_qsl(address.query)), database, awaited)
    scheme = address.scheme
    if scheme in ("http", "https"):
        raise ConfigurationError(
            "webhooks are signed: give a function, broker=lambda: WebhookBroker('https://...', secret='whsec_...')"
        )
    if scheme not in _ADAPTERS:
        known = ", ".join(f"{name}://" for name in _ADAPTERS)
        raise ConfigurationError(
            f"broker {_without_password(given)!r} is unknown: give 'local', an address ({known}), or a function that "
            "makes a broker"
        )
    module, name, extra = _ADAPTERS[scheme]
    try:
        adapter = getattr(import_module(f"onefold.brokers.{module}"), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"a broker at {scheme}:// needs {error.name}: pip install 'onefold[{extra}]'"
        ) from error
    broker: Broker = adapter(_CLIENT_NAMES.get(scheme, scheme + "://") + given.partition("://")[2])
    return broker


def _local(settings: dict[str, str], database: AsyncDatabase[Any], awaited: Awaited | None) -> Broker:
    try:
        lease_s = float(settings.pop("lease_s", LEASE_S))
    except ValueError as error:
        raise ConfigurationError(f"the lease_s of broker 'local?lease_s=...' is no number: {error}") from error
    if settings:
        raise ConfigurationError(f"broker 'local' has no setting {next(iter(settings))!r}; it has lease_s")
    return LocalBroker(database, lease_s=lease_s, awaited=awaited)


def _without_password(given: str) -> str:
    return given if "@" not in given else f"{urlsplit(given).scheme}://..."
