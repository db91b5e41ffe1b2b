"""A work, the outcomes of a claim on it, and its records.

A work is in one of these states, seen from a process that wants to do it:

    state of the work                     same input            other input
    ------------------------------------  --------------------  -----------
    never seen, or forgotten              Held                  Held
    being done, its lease runs            Busy                  Differs
    abandoned: its lease has run out       Held, with its steps  Differs
    parked for a person                   WaitsForPerson        Differs
    finished, and remembered              Done, with its steps  Differs

Held is a lease: it is renewed while the work is done, and a process that takes it over raises its fence. What is
written for a work is written together with a look at the fence: a holder that was taken over writes nothing more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from typing import Final, Literal, NamedTuple, TypeAlias

WorkKind: TypeAlias = Literal["request", "message", "work"]
StepKind: TypeAlias = Literal["phase", "call"]
#: "told": entered by an operator, who found out the outcome.
StepState: TypeAlias = Literal["started", "done", "told"]

#: Fences begin anywhere below this: a work that was forgotten and claimed anew must not have the fence of the process
#: that held it before.
FENCE_END: Final = 1 << 62

#: The longest Retry-After: a client that has to wait for longer gives up.
_RETRY_AFTER_S_MAX: Final = 60.0

_digest = partial(blake2b, digest_size=16, person=b"onefold.work")


#: How long a process that does a work may be silent, by default: renewed every third of it, however long the work
#: takes. Clients that retry by default outlast it.
WORK_LEASE_S: Final = 15.0

#: How long a phase may take, by default.
PHASE_S: Final = 60.0


def lease_of(given: float | None, phase_s: float) -> float:
    """The lease of a work: as given, or no longer than its phases may take."""
    return min(WORK_LEASE_S, phase_s) if given is None else given


def digest_of(kind: WorkKind, *names: str) -> bytes:
    """The durable id of a work that is not a request: primary key of its row, and what its keys are derived from."""
    # Lengths first: no two lists of names are hashed alike.
    framed = "".join([f"{kind}:", *(f"{len(name)}:{name}" for name in names)])
    return _digest(framed.encode("utf-8", "surrogatepass")).digest()


class WorkAsk(NamedTuple):
    """One process's claim on a work."""

    digest: bytes
    kind: WorkKind
    operation: str
    """Its name in logs and lists."""
    fingerprint: bytes
    lease_s: float
    """How long its process may be silent before another takes it over."""
    retention_s: float
    earlier: tuple[bytes, ...] = ()
    """The digests of the same work in an earlier release: a work found under one goes on under it, and so keeps its
    derived keys."""
    request: bytes | None = None
    """The stored request, to do the work again without its caller."""
    same: Callable[[bytes, bytes], bool] | None = None
    """Whether a work with this digest and fingerprint has the same input; None: if the fingerprints agree."""
    phase_s: float = PHASE_S
    """How long a transaction of it, a phase, may take."""

    @property
    def names(self) -> tuple[bytes, ...]:
        return (self.digest, *self.earlier)

    def has_input_of(self, digest: bytes, fingerprint: bytes) -> bool:
        return fingerprint == self.fingerprint if self.same is None else self.same(digest, fingerprint)


class RecordedStep(NamedTuple):
    """A step as it is recorded."""

    position: int
    name: str
    kind: StepKind
    state: StepState
    result: bytes | None
    """The stored bytes: sealed, where results are."""


@dataclass(slots=True, eq=False)
class Held:
    """A work that this process may do, until another takes it over."""

    digest: bytes
    """The name it is stored under: an earlier one, where a deploy before has begun it."""
    fence: int
    operation: str
    lease_s: float
    phase_s: float = PHASE_S
    attempts: int = 1
    steps: tuple[RecordedStep, ...] = ()
    may_have_called: bool = False
    """Whether a call was begun, here or possibly by an earlier attempt: it may have taken effect without a record."""
    taken_over: bool = False
    """Another process was found to have it."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The work is being done elsewhere."""

    ask_again_s: float = 1.0

    @classmethod
    def silent(cls, *, left_s: float, lease_s: float) -> Busy:
        """Busy by a process that last took or renewed its lease some time ago. The longer ago, the more likely it is
        dead and its lease must expire: an immediate duplicate is told to retry after a second, and a retry after a
        crash gets through in a few attempts."""
        silent_s = max(0.0, lease_s - left_s)
        return cls(max(1.0, min(2 * silent_s, left_s, _RETRY_AFTER_S_MAX)))


@dataclass(frozen=True, slots=True)
class Differs:
    """The name stands for a work with another input."""


@dataclass(frozen=True, slots=True)
class WaitsForPerson:
    """The work waits for a person."""

    reason: str


@dataclass(frozen=True, slots=True)
class Done:
    """The work was finished before, and its steps are remembered."""

    digest: bytes
    steps: tuple[RecordedStep, ...]
    result: bytes | None
    """Of its finish, as it is stored. None: it had none."""


WorkClaim: TypeAlias = Held | Busy | Differs | WaitsForPerson | Done
