"""How many calls may be in flight at once, found out from how long they take.

A call that finds no room is turned away at once rather than queued. What the calls that end have seen is gathered for a
short while and then shown to a law, which sets the next limit; two laws are here:

- Gradient2 (Netflix) compares the latency of now with that of the last minutes. When calls take longer than they used
  to, the limit shrinks in proportion; when they do not, it grows by a small queue's worth.
- Aimd grows by one and shrinks by a tenth, as TCP does, and looks only at drops and at calls that are far too slow.

Both grow only while at least half of the limit is used: a limit that was not reached says nothing.

Shared by threads. Invariant: `limit` stays between `least` and `most`, and no call enters when `limit` are in flight.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Protocol

from onefold._policy.ranges import require
from onefold.errors import ProgrammerError

CROWDED = 2.0
"""Where calls take so many times as long as without a crowd, there is one."""

CALM_SPAN_S = 300.0
CALM_SMOOTHING = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What the calls that ended within one gathering have seen."""

    mean_s: float
    slowest_s: float
    in_flight: int
    """The most at once."""
    dropped: float
    """The share of them that was refused by the server or ran out of time."""


class Law(Protocol):
    """Sets the next limit. It may remember; the limiter calls it from one thread at a time, and keeps the bounds."""

    def next_limit(self, limit: float, sample: Sample) -> float: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Aimd:
    """Add one, or take a tenth."""

    shrink: float = 0.9
    """What the limit is multiplied with when a call was dropped, or too slow."""
    too_slow_s: float = 5.0
    """A call that took longer counts like a dropped one."""

    def __post_init__(self) -> None:
        require("shrink", self.shrink, least=0.5, most=0.99)
        require("too_slow_s", self.too_slow_s, least=0.001)

    def next_limit(self, limit: float, sample: Sample) -> float:
        """The limit that follows `limit`, by what the calls of the last gathering have seen (`sample`)."""
        if sample.dropped or sample.slowest_s > self.too_slow_s:
            return limit * self.shrink
        return limit + 1 if 2 * sample.in_flight >= limit else limit


class Gradient2:
    """Follow the ratio of the usual latency to the present one.

    `queue` is how many more than are served at a time it aims at, so that there is always work at hand; `smoothing` how
    much of the way to its aim the limit goes at once (1: all of it); `tolerance` how many times as long as usual calls
    may take before the limit shrinks; `usual_over` how many gatherings the usual latency is the mean of.
    """

    __slots__ = ("_factor", "_queue", "_samples", "_smoothing", "_tolerance", "_usual_s")

    WARM_UP = 10  # until then the usual latency is a plain mean: the first sample must not decide it
    GRADIENT_LEAST = 0.5
    FADE = 0.9

    def __init__(
        self, *, queue: int = 4, smoothing: float = 0.2, tolerance: float = 1.5, usual_over: int = 600
    ) -> None:
        require("queue", queue, least=1, most=1000)
        require("smoothing", smoothing, least=0.01, most=1)
        require("tolerance", tolerance, least=1, most=10)
        require("usual_over", usual_over, least=self.WARM_UP, most=100_000)
        self._queue = queue
        self._smoothing = smoothing
        self._tolerance = tolerance
        self._factor = 2 / (usual_over + 1)
        self._usual_s = 0.0
        self._samples = 0

    def next_limit(self, limit: float, sample: Sample) -> float:
        """The limit that follows `limit`, by what the calls of the last gathering have seen (`sample`)."""
        usual_s = self._learn(sample.mean_s)
        if sample.mean_s <= 0:
            return limit
        if usual_s / sample.mean_s > 2:
            # Calls have become much faster than they used to be, as after an overload: forget it sooner.
            self._usual_s *= self.FADE
        gradient = max(self.GRADIENT_LEAST, min(1.0, self._tolerance * usual_s / sample.mean_s))
        if sample.dropped:
            # In proportion: with one call in a hundred dropped for ever, a limit that halved its aim each time would
            # end at a handful.
            gradient = max(self.GRADIENT_LEAST, min(gradient, 1 - sample.dropped))
        unused = 2 * sample.in_flight < limit
        if unused and not sample.dropped:
            return limit
        aim = limit * gradient + (0 if unused else self._queue)
        return limit * (1 - self._smoothing) + aim * self._smoothing

    def _learn(self, latency_s: float) -> float:
        if self._samples < self.WARM_UP:
            self._samples += 1
            self._usual_s += (latency_s - self._usual_s) / self._samples
        else:
            self._usual_s += (latency_s - self._usual_s) * self._factor
        return self._usual_s


@dataclass(frozen=True, slots=True, kw_only=True)
class LimiterConfig:
    """The bounds of the limit, and how long to gather before it moves."""

    initial: int = 20
    """How many calls may be in flight at first."""
    least: int = 1
    """The limit never goes below."""
    most: int = 200
    """The limit never goes above."""
    gather_s: float = 0.1
    """How long calls are watched before the limit moves."""
    calls_least: int = 10
    """It moves when at least so many have ended meanwhile; until then they are watched on."""

    def __post_init__(self) -> None:
        require("least", self.least, least=1)
        require("most", self.most, least=self.least, most=100_000)
        require("initial", self.initial, least=self.least, most=self.most)
        require("gather_s", self.gather_s, least=0.001, most=60)
        require("calls_least", self.calls_least, least=1, most=10_000)


STANDARD_CONFIG = LimiterConfig()


@dataclass(slots=True, kw_only=True)
class _SampleInProgress:
    """What is being gathered for the next sample; `until` is set by the first call that ends."""

    peak: int
    until: float | None = None
    calls: int = 0
    sum_s: float = 0.0
    slowest_s: float = 0.0
    dropped: int = 0

    def sample(self) -> Sample:
        mean_s, dropped = self.sum_s / self.calls, self.dropped / self.calls
        return Sample(mean_s=mean_s, slowest_s=self.slowest_s, in_flight=self.peak, dropped=dropped)


class _CalmLatency:
    """How long calls take when there is no crowd: the shortest (smoothed) mean of the last minutes, kept as that of
    this span and that of the one before. Longer than overloads last: they must not become the measure."""

    __slots__ = ("_before_s", "_mean_s", "_now_s", "_until")

    def __init__(self) -> None:
        self._mean_s = self._now_s = self._before_s = inf
        self._until: float | None = None

    def learn(self, mean_s: float, now: float) -> bool:
        """Whether calls take much longer now."""
        # Smoothed: a few calls in a row that happen to be short ones say nothing about the others.
        self._mean_s = mean_s if self._until is None else self._mean_s + CALM_SMOOTHING * (mean_s - self._mean_s)
        if self._until is None or now >= self._until:
            self._before_s, self._now_s, self._until = self._now_s, inf, now + CALM_SPAN_S
        self._now_s = min(self._now_s, self._mean_s)
        return self._mean_s > CROWDED * min(self._now_s, self._before_s)


class Limiter:
    """Room for calls. Each that enters leaves exactly once."""

    def __init__(self, law: Law, config: LimiterConfig = STANDARD_CONFIG) -> None:
        self._law = law
        self._config = config
        self._limit = float(config.initial)
        self._in_flight = 0
        self._gathering = _SampleInProgress(peak=0)
        self._calm = _CalmLatency()
        #: Whether calls took much longer in the last gathering than they do without a crowd. Until that is known: yes.
        self.crowded = True
        self._lock = Lock()

    @property
    def limit(self) -> int:
        """How many calls may be in flight."""
        return int(self._limit)

    @property
    def in_flight(self) -> int:
        """How many are. More than the limit only after it shrank, until those have left."""
        return self._in_flight

    def enter(self) -> bool:
        """Take a slot. False: there is none."""
        with self._lock:
            if self._in_flight >= int(self._limit):
                return False
            self._in_flight += 1
            self._gathering.peak = max(self._gathering.peak, self._in_flight)
            return True

    def leave(self, now: float, latency_s: float | None, *, dropped: bool = False) -> None:
        """Give the slot back. `latency_s` is None when the call says nothing, as when its caller cancelled it."""
        with self._lock:
            if self._in_flight == 0:
                raise ProgrammerError("a call left the limiter that is not in it: pair each enter with one leave")
            self._in_flight -= 1
            if latency_s is None:
                return
            gathering, config = self._gathering, self._config
            if gathering.until is None:
                gathering.until = now + config.gather_s
            gathering.calls += 1
            gathering.sum_s += latency_s
            gathering.slowest_s = max(gathering.slowest_s, latency_s)
            gathering.dropped += dropped
            if now >= gathering.until and gathering.calls >= config.calls_least:
                sample = gathering.sample()
                self.crowded = self._calm.learn(sample.mean_s, now)
                moved = self._law.next_limit(self._limit, sample)
                self._limit = float(max(config.least, min(config.most, moved)))
                self._gathering = _SampleInProgress(peak=self._in_flight)
