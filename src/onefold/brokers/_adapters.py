"""Makes a broker from an address. Adapters are imported only when they are needed; no message repeats a password."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, runtime_checkable
from urllib.parse import SplitResult, parse_qsl, urlsplit

from onefold._kernel.ports import AsyncDatabase, Broker
from onefold._kernel.redaction import redact
from onefold._kernel.topics import refuse_patterns
from onefold._kernel.wakeup_signals import Wakeups
from onefold.errors import ConfigurationError

if TYPE_CHECKING:
    from onefold.brokers.local import Awaited

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
    "sqs": ("sqs", "SqsBroker", "aws"),
}

#: Brokers without patterns of topics.
_WITHOUT_PATTERNS: Final = {
    "kafka": "Kafka",
    "redis": "Redis",
    "rediss": "Redis",
    "valkey": "Redis",
    "valkeys": "Redis",
}

#: What the clients call these schemes.
_CLIENT_NAMES: Final = {"kafka": "", "valkey": "redis://", "valkeys": "rediss://"}


def check_broker(given: object) -> None:
    """Refuse a value that can never become a broker, without importing its adapter."""
    if isinstance(given, str):
        _address(given)
    elif given is not None and not callable(given):
        raise ConfigurationError(
            f"broker={type(given).__qualname__}(...) is not an address and cannot be called: give 'local', an address "
            "as in 'nats://localhost:4222', or a function that makes a broker (lambda: NatsBroker(...))"
        )


def check_patterns(given: BrokerGiven | None, consumer: str, topics: Iterable[str]) -> None:
    """Refuse patterns of topics where the address says that the broker has none. A broker that a function makes is
    checked when the consumer starts."""
    if isinstance(given, str) and (name := _WITHOUT_PATTERNS.get(_address(given).scheme)) is not None:
        refuse_patterns(name, consumer, topics)


@runtime_checkable
class UsesDatabase(Protocol):
    """A broker that keeps something of its own in the application's database."""

    def use(self, database: AsyncDatabase[Any]) -> None: ...


def broker_of(
    given: BrokerGiven, database: AsyncDatabase[Any], awaited: Awaited | None = None, wakeups: Wakeups | None = None
) -> Broker:
    """A broker, not yet open. `database` is where "local" messages travel; `awaited`, `wakeups`: of a LocalBroker."""
    if not isinstance(given, str):
        made = given()
        if isinstance(made, UsesDatabase):
            made.use(database)
        return made
    address = _address(given)
    if not address.scheme:
        return _local(dict(parse_qsl(address.query)), database, awaited, wakeups)
    scheme = address.scheme
    module, name, extra = _ADAPTERS[scheme]
    try:
        adapter = getattr(import_module(f"onefold.brokers.{module}"), name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"a broker at {scheme}:// needs {error.name}: pip install 'onefold[{extra}]'"
        ) from None
    broker: Broker = adapter(_CLIENT_NAMES.get(scheme, scheme + "://") + given.partition("://")[2])
    return broker


def _address(given: str) -> SplitResult:
    """The address, if there is an adapter for it, or "local"."""
    try:
        address = urlsplit(given)
    except ValueError:
        # Neither quoted nor chained: what could not be read may be a password.
        raise ConfigurationError(
            "the address of the broker cannot be read: is there a '[' in its password? Write it as %5B"
        ) from None
    scheme = address.scheme
    if scheme in ("http", "https"):
        raise ConfigurationError(
            "webhooks are signed: give a function, broker=lambda: WebhookBroker('https://...', secret='whsec_...')"
        )
    is_local = given == "local" or given.startswith("local?")
    if not is_local and (scheme not in _ADAPTERS or "://" not in given):
        from difflib import get_close_matches

        known = ", ".join(f"{name}://" for name in _ADAPTERS)
        close = get_close_matches(scheme, _ADAPTERS, 1)
        meant = f"did you mean {close[0]}://? " if close else ""
        raise ConfigurationError(
            f"broker {redact(given)!r} is unknown: {meant}give 'local', an address ({known}), or a function that "
            "makes a broker"
        )
    return address


def _local(
    settings: dict[str, str], database: AsyncDatabase[Any], awaited: Awaited | None, wakeups: Wakeups | None
) -> Broker:
    from onefold.brokers.local import LEASE_S, LocalBroker

    try:
        lease_s = float(settings.pop("lease_s", LEASE_S))
    except ValueError as error:
        raise ConfigurationError(f"the lease_s of broker 'local?lease_s=...' is not a number: {error}") from error
    if settings:
        raise ConfigurationError(f"broker 'local' has no setting {next(iter(settings))!r}; it has lease_s")
    return LocalBroker(database, lease_s=lease_s, awaited=awaited, wakeups=wakeups)


def broker_name(given: BrokerGiven | None) -> str:
    """The name of the broker that a relay publishes to."""
    if given is None:
        return "local"
    if isinstance(given, str):
        return redact(given)
    name: str = getattr(given, "__name__", type(given).__name__)
    return "a broker of its own" if name == "<lambda>" else name
