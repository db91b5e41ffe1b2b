"""The state machines of the code, as data: what they are drawn from.

States and what a claim gets in them are read from the tables in the docstrings of the modules that decide; the breaker
is driven through all that can happen to it. What leads from one state to another is said here, and a test compares the
names with those in the code.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from onefold._idempotency import model as requests
from onefold._policy.breaker import STANDARD_CONFIG, Breaker, Permit
from onefold._policy.outcome import Verdict
from onefold._steps import model as works

#: So many calls, so far apart, are enough for a breaker to change; after so long an open one is asked again.
_CALLS: Final = 20
_SHORT_S: Final = 0.01
_LONG_S: Final = STANDARD_CONFIG.open_max_s


@dataclass(frozen=True, slots=True)
class Change:
    """An arrow."""

    before: str
    cause: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """States by their place in the drawing (column, row), with what is said of each in its box."""

    title: str
    source: str
    """The module that decides, below src/onefold."""
    places: Mapping[str, tuple[int, int]]
    notes: Mapping[str, tuple[str, ...]]
    changes: tuple[Change, ...]


def read_table(docstring: str | None) -> dict[str, tuple[str, ...]]:
    """The rows of the table in a docstring, by their first column."""
    assert docstring is not None
    [table] = re.findall(r"^ +-+(?:  +-+)+\n((?: +\S.*\n)+)", docstring, re.MULTILINE)
    rows = [re.split(r" {2,}", line.strip()) for line in table.splitlines()]
    return {state: tuple(rest) for state, *rest in rows}


def make_machines() -> dict[str, Machine]:
    """By the name that pages call them."""
    return {"request": _make_request(), "message": _make_message(), "work": _make_work(), "breaker": _make_breaker()}


def _note_claims(table: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    return {
        state: (f"a claim: {same}",) if same == other else (f"the same: {same}", f"another: {_cut(other)}")
        for state, (same, other) in table.items()
    }


def _cut(text: str) -> str:
    return text.partition(", or")[0]


def _make_request() -> Machine:
    return Machine(
        title="The key of a request",
        source="_idempotency/model.py",
        places={
            "never seen": (0, 0),
            "being worked on": (1, 0),
            "done": (2, 0),
            "done, past retention": (1, 1),
            "older than retention": (0, 1),
        },
        notes=_note_claims(read_table(requests.__doc__)),
        changes=(
            Change("never seen", "claimed", "being worked on"),
            Change("being worked on", "released: 5xx, crash", "never seen"),
            Change("being worked on", "settled: one COMMIT", "done"),
            Change("done", "retention_s is over", "done, past retention"),
            Change("done, past retention", "claimed", "being worked on"),
            Change("done, past retention", "reaped", "never seen"),
            Change("done, past retention", "reaped, refuse", "older than retention"),
        ),
    )


def _make_work() -> Machine:
    claims = read_table(works.__doc__)
    never, busy, abandoned, parked, finished = claims
    return Machine(
        title="A work in recorded steps",
        source="_steps/model.py",
        places={never: (0, 0), busy: (1, 0), finished: (2, 0), parked: (0, 1), abandoned: (1, 1)},
        notes=_note_claims(claims),
        changes=(
            Change(never, "claimed", busy),
            Change(busy, "finish", finished),
            Change(busy, "no sign of life", abandoned),
            Change(abandoned, "taken over", busy),
            Change(busy, "an outcome is unknown", parked),
            Change(parked, "keys resume", abandoned),
            Change(parked, "keys release", never),
        ),
    )


def _make_message() -> Machine:
    return Machine(
        title="A message at a consumer",
        source="_inbox/failure_decision.py",
        places={
            "at the broker": (0, 0),
            "in hand": (1, 0),
            "handled": (2, 0),
            "parked": (0, 1),
            "waiting": (1, 1),
            "dead": (2, 1),
        },
        notes={
            "at the broker": ("not acknowledged",),
            "in hand": ("the handler runs",),
            "handled": ("a row of the ledger",),
            "parked": ("until its predecessor", "is handled"),
            "waiting": ("until it is due",),
            "dead": ("until it is redriven", "or discarded"),
        },
        changes=(
            Change("at the broker", "delivered", "in hand"),
            Change("in hand", "handled: COMMIT, ack", "handled"),
            Change("in hand", "parked: too early", "parked"),
            Change("parked", "its turn", "in hand"),
            Change("in hand", "failed", "waiting"),
            Change("waiting", "due", "in hand"),
            Change("in hand", "dead: given up", "dead"),
            Change("dead", "dlq redrive", "waiting"),
            Change("handled", "duplicate, dropped", "handled"),
        ),
    )


@dataclass(slots=True)
class _Driven:
    """A breaker that was led into a state, and the moment."""

    breaker: Breaker
    now: float = 0.0

    def succeed(self) -> None:
        self._call(Verdict.SUCCESS)

    def fail(self) -> None:
        self._call(Verdict.FAILURE)

    def _call(self, verdict: Verdict) -> None:
        for _ in range(_CALLS):
            self.now += _SHORT_S
            admitted = self.breaker.admit(self.now)
            if isinstance(admitted, Permit):
                self.breaker.report(admitted, verdict, self.now)

    def wait(self) -> None:
        self.now += _LONG_S

    def lose(self) -> None:
        """A call that is begun and never reports."""
        self.breaker.admit(self.now)
        self.now += STANDARD_CONFIG.probe_s
        self.breaker.admit(self.now)


#: What can happen to a breaker.
_EVENTS: Final[Mapping[str, Callable[[_Driven], None]]] = {
    "calls succeed": _Driven.succeed,
    "calls fail": _Driven.fail,
    "the open time is over": _Driven.wait,
    "a probe is lost": _Driven.lose,
}
_PATHS: Final = {
    "closed": (),
    "open": ("calls fail",),
    "half-open": ("calls fail", "the open time is over"),
}


def drive_breaker(make: Callable[[], Breaker] = lambda: Breaker(lambda: 0.5)) -> Iterator[Change]:
    """Each state of it, and where each thing that can happen leads."""
    for state, path in _PATHS.items():
        for cause, happen in _EVENTS.items():
            driven = _Driven(make())
            for step in path:
                _EVENTS[step](driven)
            before = driven.breaker.state(driven.now)
            assert before == state, f"a breaker that should be {state} is {before}"
            happen(driven)
            after = driven.breaker.state(driven.now)
            if after != before:
                yield Change(before, cause, after)


def _make_breaker() -> Machine:
    return Machine(
        title="The breaker of a host",
        source="_policy/breaker.py",
        places={"closed": (0, 0), "open": (2, 0), "half-open": (1, 1)},
        notes={
            "closed": ("a call is let through",),
            "open": ("a call is refused",),
            "half-open": (f"{STANDARD_CONFIG.probes} calls at once",),
        },
        changes=tuple(drive_breaker()),
    )
