"""Sagas: steps with compensations, on an engine that exists. The engines are in modules of their own:
`onefold.sagas.dbos`, `onefold.sagas.restate`, `onefold.sagas.temporal`.

What means the same everywhere: `saga_id` is the id of one saga, by which a second start of it is known; `saga`, `name`
and `version` are those of its definition, `sagas` the definitions that an engine runs; `given` is what it is started
with, one JSON value; `error` is why, in a phrase for people; `started_at`, `updated_at` and `ended_at` are times as the
engine has them, None where it has none; `listener` is told what happens, as that of `AsyncOnefold` is.
"""

from onefold._policy.backoff import Backoff
from onefold._policy.retry import RetryPolicy
from onefold._saga.definition import SagaDefinition, saga
from onefold._saga.engine import SagaEngine
from onefold._saga.execution import Saga
from onefold._saga.local_effects import Effects, Undone
from onefold._saga.saga_errors import (
    Abort,
    CancelRequested,
    Compensated,
    EngineFault,
    NotInAStep,
    SagaMismatch,
    SagaNotStopped,
    SagaStopped,
    SagaUnknown,
    SignalTimedOut,
    StepFailed,
)
from onefold._saga.saga_status import HistoryEntry, SagaStatus
from onefold._saga.starting import start_on_commit
from onefold._saga.step_keys import forward_key, key

__all__ = [
    "Abort",
    "Backoff",
    "CancelRequested",
    "Compensated",
    "Effects",
    "EngineFault",
    "HistoryEntry",
    "NotInAStep",
    "RetryPolicy",
    "Saga",
    "SagaDefinition",
    "SagaEngine",
    "SagaMismatch",
    "SagaNotStopped",
    "SagaStatus",
    "SagaStopped",
    "SagaUnknown",
    "SignalTimedOut",
    "StepFailed",
    "Undone",
    "forward_key",
    "key",
    "saga",
    "start_on_commit",
]
