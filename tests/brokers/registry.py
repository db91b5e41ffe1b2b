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
from tests.brokers.nats_subject import nats_by_public_names, nats_subject
from tests.brokers.rabbitmq_subject import rabbitmq_subject
from tests.brokers.redis_subject import redis_subject
from tests.brokers.sqs_subject import sqs_subject


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
_NOT_ATTACHED = frozenset({"a_consumer_is_not_removed_while_a_process_is_connected"})
#: What needs a broker that keeps something for consumers that do not run.
_NO_SUBSCRIPTIONS = _NOT_ATTACHED | {
    "what_is_sent_to_a_topic_after_it_was_unsubscribed_does_not_come",
    "to_unsubscribe_a_consumer_that_is_not_there_is_nothing",
    "a_process_with_fewer_topics_takes_none_from_another",
    "what_waits_for_a_consumer_is_counted",
    "a_consumer_that_was_removed_keeps_nothing_and_the_others_keep_theirs",
}
#: What needs a broker that has patterns of topics, and what needs one that has none.
_NO_PATTERNS = frozenset(
    {
        "a_pattern_gets_the_topics_it_stands_for_and_no_others",
        "what_several_patterns_of_a_consumer_stand_for_comes_once",
        "a_consumer_that_comes_back_with_a_pattern_gets_what_that_stands_for",
        "a_pattern_and_a_topic_that_it_stands_for_are_given_up_each_alone",
    }
)
_PATTERNS = frozenset({"a_pattern_is_refused_and_named"})
#: What needs a server that keeps something over a kill.
_NO_DISK = frozenset(
    {
        "what_was_confirmed_comes_although_the_server_was_killed",
        "what_was_not_acknowledged_comes_again_although_the_server_was_killed",
    }
)


BROKERS: dict[str, Entry] = {
    "kafka": Entry(
        subject=kafka_subject,
        server="kafka",
        mortal=PrivateKafka,
        leaves_out=_NO_LEASE | _NO_DEDUP | _NO_DISK | _NO_SUBSCRIPTIONS | _NO_PATTERNS,
    ),
    "local-postgres": Entry(
        subject=local_on_postgres, server="postgres", leaves_out=_NO_DEDUP | _NO_LIMIT | _NOT_ATTACHED | _PATTERNS
    ),
    "local-sqlite": Entry(subject=local_on_sqlite, leaves_out=_NO_DEDUP | _NO_LIMIT | _NOT_ATTACHED | _PATTERNS),
    "nats": Entry(subject=nats_subject, server="nats", mortal=PrivateNats, leaves_out=_NOT_ATTACHED | _PATTERNS),
    # What is consumed has no fast path: its leases are those of "nats".
    "nats-public": Entry(
        subject=nats_by_public_names,
        server="nats",
        mortal=PrivateNats,
        leaves_out=_NO_LEASE | _NOT_ATTACHED | _PATTERNS,
    ),
    "valkey": Entry(
        subject=redis_subject,
        server="valkey",
        mortal=PrivateValkey,
        leaves_out=_NO_DEDUP | _NOT_ATTACHED | _NO_PATTERNS,
    ),
    "rabbitmq": Entry(
        subject=rabbitmq_subject("quorum"), server="rabbitmq", leaves_out=_NO_LEASE | _NO_DEDUP | _NO_LIMIT | _PATTERNS
    ),
    "rabbitmq-classic": Entry(
        subject=rabbitmq_subject("classic"),
        server="rabbitmq",
        mortal=PrivateRabbitmq,
        leaves_out=_NO_LEASE | _NO_DEDUP | _NO_LIMIT | _PATTERNS,
    ),
    # A body is text: there are no bytes to inject. Its leases are in `test_sqs`.
    "sqs": Entry(
        subject=sqs_subject,
        server="moto",
        leaves_out=_NO_LEASE
        | _NOT_ATTACHED
        | _PATTERNS
        | {"a_message_without_an_envelope_comes_with_its_bytes_and_says_so"},
    ),
}
