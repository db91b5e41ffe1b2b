"""Contestants side by side: each takes its turn in every round and is divided by the base of the same round.

A machine's speed drifts, so rates of different minutes do not compare, but those of one round do. The order turns from
round to round. What a part of the bench found is an `Outcome`: text for people, data for programs, and what it missed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, TypeAlias

from benchmarks.guards import Verdict
from benchmarks.report import aligned, guards_of
from benchmarks.rounds import SPREAD_MAX, Standing
from onefold.testing.servers import PrivateNats, PrivatePostgres

Say: TypeAlias = Callable[[str], None]

_RATE_HEAD: Final = ("", "per second", "x base", "min-max", "floor", "")
_TIME_HEAD: Final = ("", "p50 ms", "min-max", "p99 ms", "ceiling", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure."""

    rounds: int
    backlog: int
    """Rows that a relay drains in one turn."""
    one_by_one: int
    """The same, for whoever publishes one by one."""
    events: int
    """Single events whose way is timed in one turn."""
    polled_events: int
    """The same, where each has to wait for a poll."""
    seconds: float
    """Of one turn of the writers."""
    messages: int
    """Consumed in one turn, one by one; five times as many in batches."""
    kept: tuple[int, ...]
    """How many published rows lie beside those that wait."""
    synced: bool = False
    """Whether NATS syncs every message to disk before it is confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grounds:
    """Where it is measured."""

    postgres: PrivatePostgres
    nats: PrivateNats
    effort: Effort
    say: Say


@dataclass(frozen=True, slots=True, kw_only=True)
class Contestant:
    """One way to do it. `turn` does it once and answers how much of it was done per second."""

    name: str
    turn: Callable[[], Awaitable[float]]
    floor: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Raced:
    """A contestant over all rounds, beside the base."""

    name: str
    rates: tuple[float, ...]
    ratios: tuple[float, ...]
    floor: float | None = None

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def standing(self) -> Standing:
        """How it stands to its floor. A ratio above it that the rounds do not agree on is not a pass."""
        if self.floor is None:
            return ""
        if self.ratio < self.floor:
            return "MISSED"
        return "UNCLEAR" if max(self.ratios) > SPREAD_MAX * min(self.ratios) else "PASS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """How long single things took, in milliseconds, round by round."""

    name: str
    rounds: tuple[tuple[float, ...], ...]
    ceiling_ms: float | None = None

    @property
    def p50s(self) -> list[float]:
        return [median(times) for times in self.rounds]

    @property
    def p50(self) -> float:
        return median(time for times in self.rounds for time in times)

    @property
    def p99(self) -> float:
        times = sorted(time for times in self.rounds for time in times)
        return times[min(len(times) - 1, round(0.99 * len(times)))]

    @property
    def standing(self) -> Standing:
        """How it stands to its ceiling. A median below it that some round was above is not a pass."""
        if self.ceiling_ms is None:
            return ""
        if self.p50 > self.ceiling_ms:
            return "MISSED"
        return "UNCLEAR" if max(self.p50s) > self.ceiling_ms else "PASS"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a part of the bench found."""

    text: str
    missed: tuple[str, ...] = ()
    verdicts: tuple[Verdict, ...] = ()
    data: Any = None


async def race(contestants: Sequence[Contestant], *, base: str, rounds: int, say: Say) -> list[Raced]:
    """Every contestant once in every round, after a turn that does not count."""
    rates: dict[str, list[float]] = {contestant.name: [] for contestant in contestants}
    for contestant in contestants:
        say(f"warm-up: {contestant.name}")
        await contestant.turn()
    for number in range(rounds):
        shift = number % len(contestants)
        for contestant in (*contestants[shift:], *contestants[:shift]):
            say(f"round {number + 1} of {rounds}: {contestant.name}")
            rates[contestant.name].append(await contestant.turn())
    return [
        Raced(
            name=contestant.name,
            rates=tuple(rates[contestant.name]),
            ratios=tuple(ours / bases for ours, bases in zip(rates[contestant.name], rates[base], strict=True)),
            floor=contestant.floor,
        )
        for contestant in contestants
    ]


def raced_outcome(title: str, raced: Sequence[Raced]) -> Outcome:
    rows = [
        (
            one.name,
            f"{median(one.rates):,.0f}",
            f"{one.ratio:.2f}",
            f"{min(one.ratios):.2f}-{max(one.ratios):.2f}",
            "" if one.floor is None else f"{one.floor:.2f}",
            one.standing,
        )
        for one in raced
    ]
    return Outcome(
        text=f"{title}\n{aligned((_RATE_HEAD, *rows))}",
        missed=tuple(
            f"{one.standing}: {title}: {one.name} is {one.ratio:.2f} x base ({min(one.ratios):.2f} to "
            f"{max(one.ratios):.2f}), its floor is {one.floor}"
            for one in raced
            if one.standing in ("MISSED", "UNCLEAR")
        ),
        data=[{"name": one.name, "floor": one.floor, "rates": one.rates, "ratios": one.ratios} for one in raced],
    )


def timed_outcome(title: str, timed: Sequence[Timed]) -> Outcome:
    rows = [
        (
            one.name,
            f"{one.p50:.2f}",
            f"{min(one.p50s):.2f}-{max(one.p50s):.2f}",
            f"{one.p99:.2f}",
            "" if one.ceiling_ms is None else f"{one.ceiling_ms:g}",
            one.standing,
        )
        for one in timed
    ]
    return Outcome(
        text=f"{title}\n{aligned((_TIME_HEAD, *rows))}",
        missed=tuple(
            f"{one.standing}: {title}: {one.name} has a median of {one.p50:.2f} ms ({min(one.p50s):.2f} to "
            f"{max(one.p50s):.2f}), its ceiling is {one.ceiling_ms}"
            for one in timed
            if one.standing in ("MISSED", "UNCLEAR")
        ),
        data=[{"name": one.name, "ceiling_ms": one.ceiling_ms, "rounds_ms": one.rounds} for one in timed],
    )


def counted_outcome(title: str, verdicts: Sequence[Verdict]) -> Outcome:
    return Outcome(
        text=guards_of(verdicts, title=title),
        verdicts=tuple(verdicts),
        data=[
            {"subject": one.limit.subject, "unit": one.limit.unit, "most": one.limit.most, "found": one.found}
            for one in verdicts
        ],
    )
