"""Whether a request that has waited in a queue is still worth serving.

A queue that empties now and then only smooths a burst; one that never does is overload, and serving it in order means
to serve every request too late. So (CoDel) what counts is the shortest wait within an interval: while even that is
above the target, requests that waited more than twice the target are shed, and the others are served in time.

The target follows the service: a few milliseconds are right for work of a millisecond, and would shed work of a tenth
of a second at an ordinary load. It is the median of the recent latencies, within bounds; the interval is ten of them.

Hysteresis: overload begins when an interval's shortest wait was above the target, and ends when one's was at most half
of it, or when the queue was empty for an interval. Between the two, things stay as they are.

Shared by threads. Invariant: nothing is shed outside of overload, nor anything that waited at most twice the target.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from statistics import median
from threading import Lock

from onefold._policy.ranges import require

SHED_TARGETS = 2
"""So many targets a request may have waited during overload."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SheddingConfig:
    """The bounds of the target, and what it is learned from."""

    target_least_s: float = 0.005
    """The wait in the queue that is aimed at is the median latency of the service, but not below this."""
    target_most_s: float = 1.0
    """Nor above this."""
    intervals: float = 10.0
    """The interval, in targets: while even the shortest wait of one is above the target, there is overload."""
    interval_least_s: float = 0.1
    """An interval is not shorter than this."""
    latencies: int = 101
    """The median is that of the last so many requests."""

    def __post_init__(self) -> None:
        require("target_most_s", self.target_most_s, most=60)
        require("target_least_s", self.target_least_s, least=0.0001, most=self.target_most_s)
        require("intervals", self.intervals, least=1, most=1000)
        require("interval_least_s", self.interval_least_s, least=0.001, most=60)
        require("latencies", self.latencies, least=1, most=10_000)


STANDARD_CONFIG = SheddingConfig()


class Shedder:
    """Decides which requests of one queue to shed."""

    def __init__(self, config: SheddingConfig = STANDARD_CONFIG) -> None:
        self._config = config
        self._latencies: deque[float] = deque(maxlen=config.latencies)
        self._lock = Lock()
        self._target_s = config.target_least_s
        self._ends_at = -inf
        self._shortest_s = inf
        self._overloaded = False

    @property
    def overloaded(self) -> bool:
        """As of the last interval that ended."""
        return self._overloaded

    def serve(self, latency_s: float) -> None:
        """A request was served, in this time, without its wait."""
        with self._lock:
            self._latencies.append(latency_s)

    def admit(self, waited_s: float, now: float) -> bool:
        """A request leaves the queue: serve it (True), or shed it."""
        with self._lock:
            if now >= self._ends_at:
                self._judge(arrived_at=now - waited_s)
                self._begin(now)
            self._shortest_s = min(self._shortest_s, waited_s)
            return not (self._overloaded and waited_s > SHED_TARGETS * self._target_s)

    def _judge(self, *, arrived_at: float) -> None:
        if arrived_at >= self._ends_at + self._interval_s:
            self._overloaded = False  # the first to leave since then came so late: the queue was empty
        elif self._shortest_s > self._target_s:
            self._overloaded = True
        elif self._shortest_s <= self._target_s / 2:
            self._overloaded = False

    def _begin(self, now: float) -> None:
        if self._latencies:
            usual_s = median(tuple(self._latencies))
            self._target_s = max(self._config.target_least_s, min(self._config.target_most_s, usual_s))
        self._shortest_s = inf
        self._ends_at = now + self._interval_s

    @property
    def _interval_s(self) -> float:
        return max(self._config.interval_least_s, self._config.intervals * self._target_s)
