"""Every broker that has an adapter, as the conformance suite sees it. To add one, add an entry to `BROKERS`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

from onefold.testing.conformance.brokers import BrokerSubject
from onefold.testing.servers import PrivateKafka, PrivateNats, PrivateRabbitmq, PrivateServer, PrivateValkey
from tests.brokers.kafka_subject import kafka_subject
from tests.brokers.local_subject import local_on_postgres, local_on_sqlite
from tests.brokers.nats_subject import nats_subject
from tests.brokers.rabbitmq_subject import rabbitmq_subject
from tests.brokers.redis_subject import redis_subject


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One adapter and its server."""

    subject: Callable[[Any], AbstractAsyncContextManager[BrokerSubject]]
    """What the suite needs to know, given the server (None where there is none), for one scenario."""
    server: str | None = None
    """The fixture that starts the server: it stays up."""
    mortal: Callable[[], PrivateServer] | None = None
    """A server to be killed; None: the adapter plays no outages."""
    leaves_out: frozenset[str] = frozenset()
    """The scenarios that do not apply."""


#: What needs a lease, and what needs a broker that knows what it has already got.
_NO_LEASE = frozenset({"what_is_kept_is_not_given_to_others", "what_is_not_kept_is_given_to_others"})
_NO_DEDUP = frozenset({"what_is_published_twice_under_one_id_comes_once"})
_NO_LIMIT = frozenset({"a_message_that_is_too_large_is_refused_alone"})
#: What needs a server that keeps something over a kill.
_NO_DISK = frozenset(
    {
        "what_was_confirmed_comes_although_the_server_was_killed",
        "what_was_not_acknowledged_comes_again_although_the_server_was_killed",
    }
)


BROKERS: dict[str, Entry] = {
    "kafka": Entry(
        subject=kafka_subject, server="kafka", mortal=PrivateKafka, leaves_out=_NO_LEASE | _NO_DEDUP | _NO_DISK
    ),
    "local-postgres": Entry(subject=local_on_postgres, server="postgres", leaves_out=_NO_DEDUP | _NO_LIMIT),
    "local-sqlite": Entry(subject=local_on_sqlite, leaves_out=_NO_DEDUP | _NO_LIMIT),
    "nats": Entry(subject=nats_subject, server="nats", mortal=PrivateNats),
    "valkey": Entry(subject=redis_subject, server="valkey", mortal=PrivateValkey, leaves_out=_NO_DEDUP),
    "rabbitmq": Entry(
        subject=rabbitmq_subject("quorum"), server="rabbitmq", leaves_out=_NO_LEASE | _NO_DEDUP | _NO_LIMIT
    ),
    "rabbitmq-classic": Entry(
        subject=rabbitmq_subject("classic"),
        server="rabbitmq",
        mortal=PrivateRabbitmq,
        leaves_out=_NO_LEASE | _NO_DEDUP | _NO_LIMIT,
    ),
}
