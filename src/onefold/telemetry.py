"""What happened, as values for a listener: `Onefold(listener=...)` and `Retrying(listener=...)` hand them over."""

from onefold._kernel.telemetry.client_events import AttemptEnded, BreakerMoved, CallEnded, RetryPlanned
from onefold._kernel.telemetry.consumer_events import (
    ConsumerPaused,
    ConsumerResumed,
    DeadLettered,
    Dropped,
    Duplicate,
    Failed,
    Handled,
    Parked,
    Redriven,
)
from onefold._kernel.telemetry.every_event import Event, Listener
from onefold._kernel.telemetry.relay_events import (
    BucketsHeld,
    DestinationPaused,
    DestinationResumed,
    Forgotten,
    Relayed,
    RelayPaused,
    RelayResumed,
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
    WorkGivenUp,
)
from onefold._kernel.telemetry.shedding_events import LimitMoved, Shed

__all__ = [
    "AttemptEnded",
    "BreakerMoved",
    "BucketsHeld",
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
    "Forgotten",
    "Handled",
    "LimitMoved",
    "Listener",
    "Parked",
    "Reaped",
    "Redriven",
    "RelayPaused",
    "RelayResumed",
    "Relayed",
    "Released",
    "RetryPlanned",
    "SetAside",
    "Settled",
    "Shed",
    "StepEnded",
    "WorkAttemptFailed",
    "WorkCompleted",
    "WorkGivenUp",
]
