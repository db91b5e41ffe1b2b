"""The table of instruments: every metric, and the telemetry events that move it. docs/metrics.md shows it to users."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import Any, Final

from onefold._kernel.telemetry.cache_events import CacheLooked, CacheStored
from onefold._kernel.telemetry.client_events import AttemptEnded, BreakerMoved, CallEnded, RetryPlanned
from onefold._kernel.telemetry.consumer_events import (
    ConsumerPaused,
    ConsumerResumed,
    DeadLettered,
    Dropped,
    Duplicate,
    Failed,
    FailedMessagesMeasured,
    Handled,
    LedgerReaped,
    Parked,
)
from onefold._kernel.telemetry.relay_events import (
    BucketsHeld,
    DestinationPaused,
    DestinationResumed,
    Forgotten,
    LeaseLost,
    OutboxMeasured,
    Relayed,
    RelayPaused,
    RelayResumed,
    RelaysExpired,
    SetAside,
)
from onefold._kernel.telemetry.request_events import (
    AuthenticationFailed,
    Claimed,
    Reaped,
    Released,
    Settled,
    StepEnded,
    WorkAttemptFailed,
    WorkCompleted,
    WorkIsParked,
)
from onefold._kernel.telemetry.saga_events import SagaEnded, SagaStepAttempted, SagaStuck, StuckSagasCounted
from onefold._kernel.telemetry.shedding_events import LimitMoved, Queued, Shed
from onefold._observe.instruments import Add, AnyMove, Instrument, Labels, Move, Replace

# --- requests --------------------------------------------------------------------------------------------

REQUESTS: Final = Instrument(
    name="onefold.requests", kind="counter", unit="{request}", labels=("operation", "outcome"),
    help="Keyed requests by what their claim came to: run, replay, in_flight, mismatch, expired, unprotected, "
    "unavailable, limited",
)  # fmt: skip
REQUEST_DURATION: Final = Instrument(
    name="onefold.request.duration", kind="histogram", unit="s", labels=("operation", "end"),
    help="Seconds from a request's claim to its COMMIT (stored) or rollback (released)",
)  # fmt: skip
RELEASED: Final = Instrument(
    name="onefold.requests.released", kind="counter", unit="{request}", labels=("operation", "reason"),
    help="Requests that left nothing behind, by why",
)  # fmt: skip
AUTHENTICATION_FAILURES: Final = Instrument(
    name="onefold.authentication.failures", kind="counter", unit="{request}", labels=("operation",),
    help="Requests that were refused because `principal` or `authorize` failed: it raised, or answered 5xx",
)  # fmt: skip
DUPLICATES: Final = Instrument(
    name="onefold.duplicates", kind="counter", unit="{duplicate}", labels=("hop",),
    help="Duplicates absorbed at each hop: http (replays), consumer (messages handled before)",
)  # fmt: skip
REAPED: Final = Instrument(
    name="onefold.reaped", kind="counter", unit="{row}", labels=("what",),
    help="Rows deleted after their retention",
)  # fmt: skip
CACHE_LOOKS: Final = Instrument(
    name="onefold.cache.looks", kind="counter", unit="{look}", labels=("operation", "outcome"),
    help="Looks into the answer cache: hit, miss, in_flight (a mark, which decides nothing), refused (not written by "
    "this application, or too old), failed, skipped (it failed before)",
)  # fmt: skip
CACHE_STORES: Final = Instrument(
    name="onefold.cache.stores", kind="counter", unit="{answer}", labels=("operation", "outcome"),
    help="Committed answers for the answer cache: stored, too_large, too_late (about to expire), failed, skipped",
)  # fmt: skip
COMPLETIONS: Final = Instrument(
    name="onefold.completions", kind="counter", unit="{attempt}", labels=("operation", "outcome"),
    help="What the completer made of requests that were left: completed, failed, parked; parked also by other attempts",
)  # fmt: skip

STEPS: Final = Instrument(
    name="onefold.steps", kind="counter", unit="{step}", labels=("operation", "kind", "outcome"),
    help="Recorded steps by kind (phase, call, finish) and outcome: done, failed, recorded (answered from its record)",
)  # fmt: skip

# --- messages --------------------------------------------------------------------------------------------

MESSAGES: Final = Instrument(
    name="onefold.messages", kind="counter", unit="{message}", labels=("consumer", "topic", "outcome"),
    help="Messages by outcome: handled, duplicate, dropped (older than the latest), parked (a gap before it, or "
    "kept for a process that has its topic), failed (tried again), dead",
)  # fmt: skip
MESSAGE_DURATION: Final = Instrument(
    name="onefold.message.duration", kind="histogram", unit="s", labels=("consumer",),
    help="Seconds from BEGIN to COMMIT of a message that was handled alone",
)  # fmt: skip
REDRIVES: Final = Instrument(
    name="onefold.redrives", kind="counter", unit="{message}", labels=("consumer", "outcome"),
    help="Attempts at messages that had been dead letters: handled, failed, dead",
)  # fmt: skip
FAILED_MESSAGES: Final = Instrument(
    name="onefold.failed_messages", kind="gauge", unit="{message}", labels=("consumer", "state"),
    help="Failed messages now: waiting (for an attempt, or for a process that has their topic), parked behind a gap, "
    "dead. At most 10,000 are counted",
)  # fmt: skip
CONSUMER_PAUSED: Final = Instrument(
    name="onefold.consumer.paused", kind="gauge", unit="1", labels=("consumer",),
    help="1 while a consumer is paused: by an operator, or because its broker or database is away",
)  # fmt: skip
PUBLISHED: Final = Instrument(
    name="onefold.outbox.published", kind="counter", unit="{event}", labels=("destination",),
    help="Events that the broker has confirmed, by topic or endpoint",
)  # fmt: skip
PUBLISH_FAILURES: Final = Instrument(
    name="onefold.outbox.publish_failures", kind="counter", unit="{event}", labels=("destination",),
    help="Events that were refused, by topic or endpoint",
)  # fmt: skip
OUTBOX_DEAD_LETTERS: Final = Instrument(
    name="onefold.outbox.dead_letters", kind="counter", unit="{event}", labels=("topic",),
    help="Events that became dead letters of the outbox",
)  # fmt: skip
OUTBOX_PENDING: Final = Instrument(
    name="onefold.outbox.pending", kind="gauge", unit="{event}", labels=("destination",),
    help="Events that wait to be published, by topic or endpoint. At most 10,000 are counted",
)  # fmt: skip
OUTBOX_OLDEST: Final = Instrument(
    name="onefold.outbox.oldest.age", kind="gauge", unit="s",
    help="Age of the oldest event that could be published and is not",
)  # fmt: skip
OUTBOX_STOPPED: Final = Instrument(
    name="onefold.outbox.stopped", kind="gauge", unit="{event}", labels=("state",),
    help="Events that are not sent now: delayed (for later), retrying (refused), dead. At most 1,000 of the refused "
    "are counted",
)  # fmt: skip
RELAYS: Final = Instrument(
    name="onefold.relays", kind="gauge", unit="{relay}", help="Relays that have a lease",
)  # fmt: skip
RELAY_BUCKETS: Final = Instrument(
    name="onefold.relay.buckets", kind="gauge", unit="{bucket}", across="sum",
    help="Parts of the outbox (of 64) that the relay of this process has",
)  # fmt: skip
RELAY_PAUSED: Final = Instrument(
    name="onefold.relay.paused", kind="gauge", unit="1",
    help="1 while the relay publishes nothing, because its broker or database is away",
)  # fmt: skip
DESTINATION_PAUSED: Final = Instrument(
    name="onefold.destination.paused", kind="gauge", unit="1", labels=("destination",),
    help="1 while a topic or an endpoint takes nothing; the others go on",
)  # fmt: skip
TAKEOVERS: Final = Instrument(
    name="onefold.relay.takeovers", kind="counter", unit="{relay}",
    help="Relays whose lease ran out, so that others took over their parts of the outbox",
)  # fmt: skip
LEASES_LOST: Final = Instrument(
    name="onefold.relay.leases_lost", kind="counter", unit="{lease}",
    help="Leases that the relay of this process has lost, because it stood still",
)  # fmt: skip

# --- clients ---------------------------------------------------------------------------------------------

CALLS: Final = Instrument(
    name="onefold.client.calls", kind="counter", unit="{call}", labels=("host", "outcome"),
    help="Calls by what the application got: success, failure",
)  # fmt: skip
ATTEMPTS: Final = Instrument(
    name="onefold.client.attempts", kind="counter", unit="{attempt}", labels=("host", "outcome"),
    help="Attempts by what the host achieved: success, failure",
)  # fmt: skip
ATTEMPT_DURATION: Final = Instrument(
    name="onefold.client.attempt.duration", kind="histogram", unit="s", labels=("host",), help="Seconds of an attempt",
)  # fmt: skip
RETRIES: Final = Instrument(
    name="onefold.client.retries", kind="counter", unit="{attempt}", labels=("host", "cause"),
    help="Attempts that were planned after another: failure, throttled (the server asked for patience)",
)  # fmt: skip
STOPS: Final = Instrument(
    name="onefold.client.stops", kind="counter", unit="{call}", labels=("host", "reason"),
    help="Calls that were given up, by why no further attempt was made: final, no_key, attempts, retry_after, "
    "deadline, breaker, in_flight, budget",
)  # fmt: skip
BREAKER: Final = Instrument(
    name="onefold.client.breaker", kind="gauge", unit="1", labels=("host",),
    help="State of a host's breaker: 0 closed, 1 half-open, 2 open",
)  # fmt: skip

# --- overload --------------------------------------------------------------------------------------------

SHED: Final = Instrument(
    name="onefold.shed", kind="counter", unit="{request}", labels=("reason", "priority"),
    help="Requests that were turned away: queue full, displaced, waited too long, deadline",
)  # fmt: skip
QUEUE_DURATION: Final = Instrument(
    name="onefold.queue.duration", kind="histogram", unit="s", labels=("end",),
    help="Seconds in the queue of those that did not run at once: entered, or left",
)  # fmt: skip
LIMIT: Final = Instrument(
    name="onefold.concurrency.limit", kind="gauge", unit="{request}", across="sum",
    help="Requests that may run at once",
)  # fmt: skip

# --- sagas -----------------------------------------------------------------------------------------------

SAGAS: Final = Instrument(
    name="onefold.sagas", kind="counter", unit="{saga}", labels=("saga", "outcome"),
    help="Sagas by outcome: completed, compensated, cancelled; and those without an end yet, each time they are tried: "
    "stuck (a compensation failed), stopped (the code or the engine is at fault)",
)  # fmt: skip
SAGA_STEPS: Final = Instrument(
    name="onefold.saga.steps", kind="counter", unit="{attempt}", labels=("saga", "kind", "outcome"),
    help="Attempts at steps and at their compensations (undo): done, retried (failed, tried again), failed (the last "
    "of its round), aborted",
)  # fmt: skip
SAGAS_STUCK: Final = Instrument(
    name="onefold.sagas.stuck", kind="gauge", unit="{saga}", labels=("saga",), across="sum",
    help="Sagas of this process that wait for the next round of a compensation that failed, or are in it",
)  # fmt: skip

INSTRUMENTS: Final = (
    REQUESTS, REQUEST_DURATION, RELEASED, AUTHENTICATION_FAILURES, DUPLICATES, CACHE_LOOKS, CACHE_STORES, REAPED,
    COMPLETIONS, STEPS,
    MESSAGES, MESSAGE_DURATION, REDRIVES, FAILED_MESSAGES, CONSUMER_PAUSED,
    PUBLISHED, PUBLISH_FAILURES, OUTBOX_DEAD_LETTERS, OUTBOX_PENDING, OUTBOX_OLDEST, OUTBOX_STOPPED,
    RELAYS, RELAY_BUCKETS, RELAY_PAUSED, DESTINATION_PAUSED, TAKEOVERS, LEASES_LOST,
    CALLS, ATTEMPTS, ATTEMPT_DURATION, RETRIES, STOPS, BREAKER,
    SHED, QUEUE_DURATION, LIMIT,
    SAGAS, SAGA_STEPS, SAGAS_STUCK,
)  # fmt: skip

_BREAKER_STATES: Final = {"closed": 0, "half-open": 1, "open": 2}

_elapsed_s: Final = attrgetter("elapsed_s")


def _alone(event: object) -> Labels:
    """Of an instrument without labels."""
    return ()


def _zero(event: object) -> float:
    return 0


def _message(outcome: str) -> Callable[[Any], Labels]:
    return lambda event: (event.consumer, event.topic, outcome)


def _redrive(outcome: str) -> Callable[[Any], Labels | None]:
    return lambda event: (event.consumer, outcome) if event.redriven else None


def _with_consumer(state: str, event: Any) -> Labels:
    return event.consumer, state


#: What decides the labels of all that an event moves, of those that every request and every call tells.
LABELLED_BY: Final[Mapping[type, Callable[[Any], object]]] = {
    Claimed: attrgetter("operation", "outcome"),
    Settled: attrgetter("operation"),
    AttemptEnded: attrgetter("host", "succeeded"),
    CallEnded: attrgetter("host", "succeeded", "reason"),
}

MOVES: Final[Mapping[type, tuple[AnyMove, ...]]] = {
    Claimed: (
        Move(REQUESTS, attrgetter("operation", "outcome")),
        Move(DUPLICATES, lambda event: ("http",) if event.outcome == "replay" else None),
    ),
    Settled: (Move(REQUEST_DURATION, lambda event: (event.operation, "stored"), _elapsed_s),),
    Released: (
        Move(REQUEST_DURATION, lambda event: (event.operation, "released"), _elapsed_s),
        Move(RELEASED, attrgetter("operation", "reason")),
    ),
    AuthenticationFailed: (Move(AUTHENTICATION_FAILURES, lambda event: (event.operation,)),),
    CacheLooked: (Move(CACHE_LOOKS, attrgetter("operation", "outcome")),),
    CacheStored: (Move(CACHE_STORES, attrgetter("operation", "outcome")),),
    Reaped: (Move(REAPED, lambda _: ("records",), attrgetter("records")),),
    StepEnded: (Move(STEPS, attrgetter("operation", "kind", "outcome")),),
    WorkCompleted: (Move(COMPLETIONS, lambda event: (event.operation, "completed")),),
    WorkAttemptFailed: (Move(COMPLETIONS, lambda event: (event.operation, "failed")),),
    WorkIsParked: (Move(COMPLETIONS, lambda event: (event.operation, "parked")),),
    Handled: (
        Move(MESSAGES, _message("handled")),
        Move(MESSAGE_DURATION, lambda event: None if event.elapsed_s is None else (event.consumer,), _elapsed_s),
        Move(REDRIVES, _redrive("handled")),
    ),
    Duplicate: (Move(MESSAGES, _message("duplicate")), Move(DUPLICATES, lambda _: ("consumer",))),
    Dropped: (Move(MESSAGES, _message("dropped")),),
    Parked: (Move(MESSAGES, _message("parked")),),
    Failed: (Move(MESSAGES, _message("failed")), Move(REDRIVES, _redrive("failed"))),
    DeadLettered: (Move(MESSAGES, _message("dead")), Move(REDRIVES, _redrive("dead"))),
    LedgerReaped: (Move(REAPED, lambda _: ("messages",), attrgetter("messages")),),
    FailedMessagesMeasured: tuple(
        Move(FAILED_MESSAGES, partial(_with_consumer, state), attrgetter(state))
        for state in ("waiting", "parked", "dead")
    ),
    ConsumerPaused: (Move(CONSUMER_PAUSED, lambda event: (event.consumer,)),),
    ConsumerResumed: (Move(CONSUMER_PAUSED, lambda event: (event.consumer,), _zero),),
    Relayed: (
        Add(PUBLISHED, lambda event: (((name,), counts[0]) for name, counts in event.destinations.items())),
        Add(
            PUBLISH_FAILURES,
            lambda event: (((name,), counts[1]) for name, counts in event.destinations.items() if counts[1]),
        ),
    ),
    SetAside: (Move(OUTBOX_DEAD_LETTERS, lambda event: (event.topic,)),),
    OutboxMeasured: (
        Replace(OUTBOX_PENDING, lambda event: (((name,), count) for name, count in event.pending.items())),
        Move(OUTBOX_OLDEST, _alone, attrgetter("oldest_s")),
        Replace(
            OUTBOX_STOPPED,
            lambda event: ((("delayed",), event.delayed), (("retrying",), event.retrying), (("dead",), event.dead)),
        ),
        Move(RELAYS, _alone, attrgetter("relays")),
    ),
    BucketsHeld: (Move(RELAY_BUCKETS, _alone, attrgetter("buckets")),),
    RelayPaused: (Move(RELAY_PAUSED, _alone),),
    RelayResumed: (Move(RELAY_PAUSED, _alone, _zero),),
    DestinationPaused: (Move(DESTINATION_PAUSED, lambda event: (event.destination,)),),
    DestinationResumed: (Move(DESTINATION_PAUSED, lambda event: (event.destination,), _zero),),
    RelaysExpired: (Move(TAKEOVERS, _alone, attrgetter("relays")),),
    LeaseLost: (Move(LEASES_LOST, _alone),),
    Forgotten: (Move(REAPED, lambda _: ("events",), attrgetter("events")),),
    AttemptEnded: (
        Move(ATTEMPTS, lambda event: (event.host, "success" if event.succeeded else "failure")),
        Move(ATTEMPT_DURATION, lambda event: (event.host,), _elapsed_s),
    ),
    RetryPlanned: (Move(RETRIES, lambda event: (event.host, "throttled" if event.throttled else "failure")),),
    CallEnded: (
        Move(CALLS, lambda event: (event.host, "success" if event.succeeded else "failure")),
        Move(STOPS, lambda event: None if event.reason is None else (event.host, event.reason)),
    ),
    BreakerMoved: (Move(BREAKER, lambda event: (event.host,), lambda event: _BREAKER_STATES[event.state]),),
    Shed: (Move(SHED, lambda event: (event.reason, str(event.priority))),),
    Queued: (Move(QUEUE_DURATION, lambda event: ("entered" if event.entered else "left",), attrgetter("waited_s")),),
    LimitMoved: (Move(LIMIT, _alone, attrgetter("limit")),),
    SagaEnded: (Move(SAGAS, attrgetter("saga", "outcome")),),
    SagaStuck: (Move(SAGAS, lambda event: (event.saga, "stuck")),),
    SagaStepAttempted: (Move(SAGA_STEPS, attrgetter("saga", "kind", "outcome")),),
    StuckSagasCounted: (Move(SAGAS_STUCK, lambda event: (event.saga,), attrgetter("stuck")),),
}
