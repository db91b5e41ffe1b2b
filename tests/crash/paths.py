"""The ways a keyed request can go. Each path prepares a key, names the request to be struck, and how it must end."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.crash.harness import Harness, Hold, insist
from tests.crash.shop import DECLINED, PAY, PAY_ONCE, PAY_OR_WAIT, new_key
from tests.support.crash import Act, Crossing, Edge, never_struck, strikes
from tests.support.invariants import FINAL, Attempt, Verdict, violations


@dataclass(slots=True)
class Case:
    """One key on its path: what was asked so far, and whoever else is in flight."""

    harness: Harness
    route: str
    key: str
    history: list[Attempt] = field(default_factory=list)
    hold: Hold | None = None
    taken_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way a request can go."""

    ends: Verdict
    prepare: Callable[[Case], None] = lambda case: None
    #: What others do while the request is under way, told at each of its crossings.
    meanwhile: Callable[[Case, str, Edge], None] = lambda case, verb, edge: None
    route: str = PAY
    payload: str = "10 EUR"
    #: Whether someone else works on the key too, if nothing is struck.
    company: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Journey:
    """What became of one request: what is wrong, as sentences, and what it crossed."""

    wrong: list[str]
    crossings: list[Crossing]


def breaks(case: Case) -> None:
    """The handler breaks at its first execution, whenever that is."""
    case.harness.shop.breaking.add(case.key)


def done(case: Case) -> None:
    case.history.append(case.harness.ask(case.route, case.key, "10 EUR"))


def done_elsewhere(case: Case) -> None:
    case.history.append(case.harness.ask_elsewhere(case.route, case.key, "10 EUR"))


def done_with_another(case: Case) -> None:
    case.history.append(case.harness.ask_elsewhere(case.route, case.key, "99 EUR"))


def expired(case: Case) -> None:
    """Used long ago: the record is past its retention, and nobody remembers what it was for."""
    case.harness.ask_elsewhere(case.route, case.key, "10 EUR")
    case.harness.books.expire(case.route, case.key)
    case.harness.books.forget(case.key)


def in_flight(case: Case) -> None:
    case.hold = case.harness.hold(case.route, case.key, "10 EUR")


def ends_in_time(case: Case, verb: str, edge: Edge) -> None:
    """Who waits has looked once when it gives its connection back: then the one in flight may finish."""
    if case.hold is not None and verb in ("release", "discard"):
        case.hold.let_go()


def taken_over(case: Case, verb: str, edge: Edge) -> None:
    """The key is taken from the handler, and another process does the work.

    On SQLite that is possible, should locks be lost, until the handler holds the write lock; on Postgres until its
    COMMIT.
    """
    last_chance = "before" if case.harness.dialect == "sqlite" else "after"
    if not case.taken_over and (verb, edge) == ("insert", last_chance):
        case.taken_over = True
        case.harness.books.end_lease(case.route, case.key)
        case.history.append(case.harness.ask_elsewhere(case.route, case.key, "10 EUR"))


PATHS: dict[str, Path] = {
    "first success": Path(ends="done"),
    "stored refusal": Path(ends="declined", payload=DECLINED),
    "broken handler": Path(prepare=breaks, ends="done"),
    "replay": Path(prepare=done, ends="done", company=True),
    "replay of another process": Path(prepare=done_elsewhere, ends="done", company=True),
    "mismatch": Path(prepare=done_with_another, ends="reused", company=True),
    "expired, runs anew": Path(prepare=expired, ends="done"),
    "expired, refused": Path(prepare=expired, ends="gone", route=PAY_ONCE),
    "wait for another": Path(prepare=in_flight, meanwhile=ends_in_time, ends="done", route=PAY_OR_WAIT, company=True),
    "taken over": Path(meanwhile=taken_over, ends="done", company=True),
}


def travel(harness: Harness, path: Path, act: Act | None = None, *, then: Act | None = None) -> Journey:
    """Prepare a key, strike the request (and then its first retry), retry until it is final."""
    case = Case(harness, path.route, new_key())
    path.prepare(case)
    harness.boundaries.watch = functools.partial(path.meanwhile, case)
    struck = harness.ask(case.route, case.key, path.payload, act=act)
    harness.boundaries.watch = lambda verb, edge: None
    crossings = list(harness.boundaries.crossings)
    if case.hold is not None:
        case.history.append(case.hold.ended())
    alone = not any(attempt.verdict in FINAL for attempt in case.history)
    wrong = ["nobody else came by"] if act is None and path.company and alone else []
    if then is not None:
        case.history.append(struck)
        struck = harness.ask(case.route, case.key, path.payload, act=then)
    case.history += insist(harness, case.route, case.key, path.payload, struck)
    wrong += violations(case.history, harness.books.rows(case.key), lease_s=harness.lease_s)
    if case.history[-1].verdict != path.ends:
        wrong.append(f"the last answer was {case.history[-1].reply}, it should be {path.ends}")
    return Journey(wrong=wrong + harness.leaks(), crossings=crossings)


def campaign(harness: Harness, path: Path, act: Act) -> list[str]:
    """Strike at every crossing in turn: what went wrong first, or which boundaries were never visited."""
    counted = travel(harness, path)
    if counted.wrong:
        return [f"without a fault: {sentence}" for sentence in counted.wrong]
    struck: list[Crossing] = []
    for strike in strikes(act):
        journey = travel(harness, path, strike)
        if journey.wrong:
            return [f"struck at {strike.struck}: {sentence}" for sentence in journey.wrong]
        struck += [strike.struck] if strike.struck is not None else []
    return [f"never struck: {crossing}" for crossing in never_struck(counted.crossings, struck)]
