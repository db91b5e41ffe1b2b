"""The ways a keyed request can go. Each path prepares a key, names the request to be struck, and how it must end."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager
from collections.abc import Iterator
from dataclasses import dataclass, field

from onefold.testing.crash import Act, Crossing
from onefold.testing.invariants import Attempt, Verdict, violations
from tests.crash.shop import DECLINED, PAY, PAY_ONCE, PAY_OR_WAIT, new_key
from tests.crash.stands import Hold, Stand, insist


@dataclass(slots=True)
class Case:
    """One key on its path: what was asked so far, and whoever else is in flight."""

    stand: Stand
    route: str
    key: str
    history: list[Attempt] = field(default_factory=list)
    hold: Hold | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """One way a request can go."""

    prepare: Callable[[Case], None]
    ends: Verdict
    route: str = PAY
    payload: str = "10 EUR"


def first(case: Case) -> None:
    """Nobody has used the key."""


def breaks(case: Case) -> None:
    """The handler breaks at its first execution, whenever that is."""
    case.stand.shop.breaking.add(case.key)


def done(case: Case) -> None:
    case.history.append(case.stand.ask(case.route, case.key, "10 EUR"))


def done_with_another(case: Case) -> None:
    case.history.append(case.stand.ask(case.route, case.key, "99 EUR"))


def expired(case: Case) -> None:
    """Used long ago: the record is past its retention, and nobody remembers what it was for."""
    case.stand.ask(case.route, case.key, "10 EUR")
    case.stand.books.expire(case.route, case.key)
    case.stand.books.forget(case.key)


def in_flight(case: Case) -> None:
    case.hold = case.stand.hold(case.route, case.key, "10 EUR")


PATHS: dict[str, Path] = {
    "first success": Path(prepare=first, ends="done"),
    "stored refusal": Path(prepare=first, ends="declined", payload=DECLINED),
    "broken handler": Path(prepare=breaks, ends="done"),
    "replay": Path(prepare=done, ends="done"),
    "mismatch": Path(prepare=done_with_another, ends="reused"),
    "expired, runs anew": Path(prepare=expired, ends="done"),
    "expired, refused": Path(prepare=expired, ends="gone", route=PAY_ONCE),
    "wait for another": Path(prepare=in_flight, ends="done", route=PAY_OR_WAIT),
}


def travel(stand: Stand, path: Path, act: Act | None) -> list[str]:
    """Prepare a key, strike the request, retry until it is final: what is wrong, as sentences."""
    case = Case(stand, path.route, new_key())
    path.prepare(case)
    struck = stand.ask(case.route, case.key, path.payload, act=_company_leaves(case, act))
    if case.hold is not None:
        case.history.append(case.hold.ended())
    case.history += insist(stand, case.route, case.key, path.payload, struck)
    found = violations(case.history, stand.books.rows(case.key), lease_s=stand.lease_s)
    if case.history[-1].verdict != path.ends:
        found.append(f"the last answer was {case.history[-1].reply}, it should be {path.ends}")
    return found + stand.leaks()


def _company_leaves(case: Case, act: Act | None) -> Act | None:
    """Who waits has looked once when it gives its connection back: then the one in flight may finish."""
    hold = case.hold
    if hold is None:
        return act

    def watched(crossing: Crossing) -> None:
        if crossing.verb in ("release", "discard"):
            hold.let_go()
        if act is not None:
            act(crossing)

    return watched
