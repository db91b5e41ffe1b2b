"""What happened, as values for a listener: `Onefold(listener=...)` and `Retrying(listener=...)` hand them over. And
what log lines and spans have in common: logs as JSON, the hash of a key."""

from onefold._kernel.key_hash import hash_key
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
    Redriven,
)
from onefold._kernel.telemetry.every_event import Event, Listener
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
from onefold._observe.json_logs import JsonFormatter, LogFields, log_as_json

__all__ = [
    "AttemptEnded",
    "BreakerMoved",
    "BucketsHeld",
    "CacheLooked",
    "CacheStored",
    "CallEnded",
    "Claimed",
    "ConsumerPaused",
    "ConsumerResumed",
    "DeadLettered",
    "DestinationPaused",
    "DestinationResumed",
    "Dropped",
    "Duplicate",
    "Event",
    "Failed",
    "FailedMessagesMeasured",
    "Forgotten",
    "Handled",
    "JsonFormatter",
    "LeaseLost",
    "LedgerReaped",
    "LimitMoved",
    "Listener",
    "LogFields",
    "OutboxMeasured",
    "Parked",
    "Queued",
    "Reaped",
    "Redriven",
    "RelayPaused",
    "RelayResumed",
    "Relayed",
    "RelaysExpired",
    "Released",
    "RetryPlanned",
    "SagaEnded",
    "SagaStepAttempted",
    "SagaStuck",
    "SetAside",
    "Settled",
    "Shed",
    "StepEnded",
    "StuckSagasCounted",
    "WorkAttemptFailed",
    "WorkCompleted",
    "WorkIsParked",
    "hash_key",
    "log_as_json",
]
