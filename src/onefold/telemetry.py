"""What happened, as values for a listener: `Onefold(listener=...)` and `Retrying(listener=...)` hand them over. And
what log lines and spans have in common: logs as JSON, the hash of a key.

What several of the values have means the same in each:

- `operation`: the method and the route's template of a request, never its key or principal.
- `consumer`, `topic`, `id`: the consumer of a message, what the message is about, and its id. `redriven`: it had been a
  dead letter, and a person had it tried again.
- `host`, `method`: where an outgoing call goes, and how. `attempt`: which attempt it is, the first is 1.
  `attempts`: how many there were.
- `destination`: the topic or the endpoint that events go to. `relay`: the id of a relay.
- `saga`, `saga_id`, `step`: the name of a saga's definition, the id of this one, and the name of the step.
- `status`: of an HTTP answer. `outcome`, `kind`: one of the words in its type. `succeeded`: whether it ended well.
- `reason`, `error`: why, in a phrase for people. `state`: what it is now.
- `elapsed_s`, `wait_s`, `waited_s`, `retry_s`: seconds that it took, that it will wait, that it has waited, until it is
  tried again.
- `priority`: of a request, as `Shedding(priority=...)` says it. `actor`: the person or program that had it done.
- Other numbers are counts of what they are called: `records`, `messages`, `events`, `failed_messages`, `published`,
  `refused`, `buckets`, `relays`, `waiting`, `parked`, `dead`, `stuck`, `limit`, `round`.
"""

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
from onefold._observe.json_logs import JsonFormatter, LogFields, log_as_json

__all__ = [
    "AttemptEnded",
    "AuthenticationFailed",
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
