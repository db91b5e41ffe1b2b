"""Interleaved rounds: every variant runs once per round, side by side with the bare one of the same round.

A machine's speed drifts, so numbers of different minutes do not compare, but those of one round do: a variant's
result is the median, over the rounds, of its rate divided by the bare rate of that round. The order turns from round
to round, so that nobody always follows the same neighbour. Each round starts its servers anew: where a process's memory
happens to lie makes it faster or slower for all of its life, and rounds are there to average that. Rows are counted at
the end: a variant that answered more, or fewer, payments than it made is wrong and its speed is no news.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final, Literal

from benchmarks.load import Load
from benchmarks.processes import Served, children_cpu_s, cpu_s, run_load, serving
from benchmarks.stores import payments_in

CONNECTIONS: Final = 32
REPEATED_PER_CONNECTION: Final = 16
BARE: Final = "bare"

#: How long a busy machine may take to complete each of the keys that are repeated.
ONCE_S_MAX: Final = 60.0

#: Rounds that differ by more than this factor have measured the machine's other work; their median proves nothing.
SPREAD_MAX: Final = 2.0

Keys = Literal["fresh", "repeated"]
Standing = Literal["", "PASS", "MISSED", "UNCLEAR"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One way to serve the payment API, the kind of keys it is sent, and how many times bare's rate it must reach."""

    name: str
    application: str
    keys: Keys = "fresh"
    public: bool = False
    """Whether its driver is used by its public API alone."""
    beside: str = BARE
    """The variant that it is divided by."""
    floor: float | None = None
    stores: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How long to measure."""

    rounds: int
    seconds: float
    warmup_s: float
    pool_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One variant in one round. CPU in microseconds per answered request."""

    load: Load
    app_us: float
    database_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One variant over all rounds, beside the bare one."""

    variant: Variant
    samples: tuple[Sample, ...]
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return median(self.ratios)

    @property
    def standing(self) -> Standing:
        """How it stands to its floor. A ratio above it that the rounds do not agree on is not a pass."""
        if self.variant.floor is None:
            return ""
        if self.ratio < self.variant.floor:
            return "MISSED"
        return "UNCLEAR" if max(self.ratios) > SPREAD_MAX * min(self.ratios) else "PASS"


def compare(
    variants: Sequence[Variant],
    effort: Effort,
    *,
    place_for: Callable[[str], str],
    postmaster: int | None,
    core: int | None,
    say: Callable[[str], None],
) -> list[Measured]:
    """Serve and load the variants in turn, round after round."""
    stands = [
        _Stand(variant, place=place_for(variant.name) if variant.stores else "", postmaster=postmaster, core=core)
        for variant in variants
    ]
    for turn in range(effort.rounds):
        say(f"round {turn + 1} of {effort.rounds}")
        shift = turn % len(stands)
        for stand in stands[shift:] + stands[:shift]:
            stand.take_sample(effort)
    for stand in stands:
        stand.check_rows()
    bases = {stand.variant.name: stand.samples for stand in stands}
    return [
        Measured(
            variant=stand.variant,
            samples=tuple(stand.samples),
            ratios=tuple(
                ours.load.rate / base.load.rate
                for ours, base in zip(stand.samples, bases[stand.variant.beside], strict=True)
            ),
        )
        for stand in stands
    ]


class _Stand:
    """A variant and its database, through all rounds."""

    def __init__(self, variant: Variant, *, place: str, postmaster: int | None, core: int | None) -> None:
        self.variant = variant
        self.samples: list[Sample] = []
        self._place = place
        self._postmaster = postmaster
        self._core = core
        self._made = 0
        self._seed = ("--seed", "00000000-0000-4000") if variant.keys == "repeated" else ()

    def take_sample(self, effort: Effort) -> None:
        variant, pool_size = self.variant, effort.pool_size
        with serving(
            variant.application, self._place, pool_size=pool_size, core=self._core, public=variant.public
        ) as served:
            self._warm_up(served, effort)
            app_from, database_from = self._used(served)
            measured = ("--seconds", str(effort.seconds), "--warmup", str(effort.warmup_s))
            load = self._run(served, *self._repeated(), *measured)
            app_to, database_to = self._used(served)
        if self.variant.keys == "repeated" and load.replayed != load.answered:
            raise SystemExit(f"{self.variant.name}: {load.answered - load.replayed} answers were no replays")
        self.samples.append(
            Sample(
                load=load,
                app_us=(app_to - app_from) / load.answered * 1e6,
                database_us=(database_to - database_from) / load.answered * 1e6,
            )
        )

    def _warm_up(self, served: Served, effort: Effort) -> None:
        """Fill caches and prepared statements; where keys are repeated, make each of them a completed one."""
        if self.variant.keys == "repeated":
            self._run(served, *self._repeated(), "--once", "--seconds", str(ONCE_S_MAX))
        else:
            self._run(served, "--seconds", "0", "--warmup", str(effort.warmup_s))

    def check_rows(self) -> None:
        found = payments_in(self._place) if self.variant.stores else self._made
        if found != self._made:
            raise SystemExit(f"{self.variant.name}: {self._made} payments were answered, {found} were made")

    def _run(self, served: Served, *arguments: str) -> Load:
        load = run_load(served.port, "--connections", str(CONNECTIONS), *self._seed, *arguments)
        if load.created != load.answered:
            raise SystemExit(f"{self.variant.name}: {load.answered - load.created} answers were not 201")
        self._made += load.answered - load.replayed
        return load

    def _repeated(self) -> tuple[str, ...]:
        return ("--repeated", str(REPEATED_PER_CONNECTION)) if self.variant.keys == "repeated" else ()

    def _used(self, served: Served) -> tuple[float, float]:
        return cpu_s(served.pid), children_cpu_s(self._postmaster) if self._postmaster else 0.0
