"""Sagas: steps with compensations, on an engine that exists. The engines are in modules of their own:
`onefold.sagas.dbos`.
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
