"""What happened to requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal, TypeAlias

Outcome: TypeAlias = Literal[
    "run", "replay", "in_flight", "mismatch", "expired", "unprotected", "unavailable", "limited"
]
StepKind: TypeAlias = Literal["phase", "call", "finish"]
StepOutcome: TypeAlias = Literal["done", "failed", "recorded"]

#: Why a request was released that has not failed: it waits for its turn, and claims its key once more.
STEPPED_ASIDE: Final = "waits for its turn"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A keyed request was judged. `operation` is method and route template, never the key or the principal."""

    operation: str
    outcome: Outcome


#: `Claimed(operation, outcome)`, made once: every request emits it, and few are different.
claimed_event: Final = lru_cache(maxsize=1024)(Claimed)


@dataclass(frozen=True, slots=True)
class Settled:
    """A request's answer was stored and committed together with its business rows, `elapsed_s` after its claim.
    `body_kept`: whether its body was small enough to be stored with it."""

    operation: str
    status: int
    body_kept: bool
    elapsed_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class Released:
    """A request left nothing behind; a retry runs again. `reason` says why in one phrase. It had its key, and its
    connection, for `elapsed_s`."""

    operation: str
    reason: str
    elapsed_s: float = field(default=0.0, compare=False)


@dataclass(frozen=True, slots=True)
class AuthenticationFailed:
    """The application's `principal` or `authorize` could not say who asks: it raised, returned what is no answer, or
    answered 5xx. Nothing was looked up and nothing was done."""

    operation: str


@dataclass(frozen=True, slots=True)
class Reaped:
    """Expired records were forgotten."""

    records: int


@dataclass(frozen=True, slots=True)
class WorkCompleted:
    """A request that was begun in steps and left was finished by the completer."""

    operation: str
    status: int
    attempts: int


@dataclass(frozen=True, slots=True)
class WorkAttemptFailed:
    """A request that was left could not be finished, and is tried again."""

    operation: str
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class WorkIsParked:
    """A work waits for a person: the completer has tried a request that was left too often, or an attempt has found a
    call whose outcome is not known and that must not be repeated. `operation` is as that of `StepEnded`."""

    operation: str
    attempts: int
    reason: str


@dataclass(frozen=True, slots=True)
class StepEnded:
    """A recorded step is done, has failed, or was answered from its record. `operation` is that of its request, of a
    message its consumer, and "work" for all blocks of `once.work(...)`, whose names are many."""

    operation: str
    kind: StepKind
    outcome: StepOutcome


RequestEvent: TypeAlias = (
    Claimed
    | Settled
    | Released
    | AuthenticationFailed
    | Reaped
    | WorkCompleted
    | WorkAttemptFailed
    | WorkIsParked
    | StepEnded
)
