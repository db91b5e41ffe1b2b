"""The outcomes of sagas. Each is emitted by the process that saw it, and not again by a replay of the saga."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

SagaOutcome: TypeAlias = Literal["completed", "compensated", "cancelled", "stopped"]
AttemptOutcome: TypeAlias = Literal["done", "retried", "failed", "aborted"]


@dataclass(frozen=True, slots=True)
class SagaEnded:
    """A saga has completed, or was compensated: because a step failed, or because it was cancelled. One that stopped
    has no end yet: its code or its engine is at fault, which is emitted whenever it is tried again and stops again."""

    saga: str
    saga_id: str
    outcome: SagaOutcome
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SagaStepAttempted:
    """An attempt at a step, or at its compensation (`undo`), has ended. `retried`: it failed, and there will be
    another; `failed`: it was the last, of a compensation the last of its round; `aborted`: no attempt can change it."""

    saga: str
    saga_id: str
    step: str
    kind: Literal["step", "undo"]
    outcome: AttemptOutcome


@dataclass(frozen=True, slots=True)
class SagaStuck:
    """A round of attempts at a compensation has failed. The next begins after a pause, and there is no last one."""

    saga: str
    saga_id: str
    step: str
    round: int
    reason: str


@dataclass(frozen=True, slots=True)
class StuckSagasCounted:
    """How many of the sagas that this process runs are stuck, whenever that changes."""

    saga: str
    stuck: int


SagaEvent: TypeAlias = SagaEnded | SagaStepAttempted | SagaStuck | StuckSagasCounted
