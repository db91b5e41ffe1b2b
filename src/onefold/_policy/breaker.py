"""Stops calling a host that fails nearly always, and finds out gently when it is back.

    state       a call is        a success           a failure                      time
    ----------  ---------------  ------------------  -----------------------------  --------------------------
    closed      let through      is counted          is counted; at 80 % of the     -
                                                     last 10 s, and one: open
    open        refused          -                   -                              after the open time: half-open
    half-open   let through, 3   the second: closed  the second: open, for longer   a probe without an end for
                at once                                                             long is a failure

The threshold is high on purpose: a breaker that opens at half of the calls makes a whole outage of half an outage.

Theory of operation. Each call that is let through holds a permit and reports with it, once. All calls while it is
closed share a permit; every probe has its own. A permit that is neither the present one nor an outstanding probe's
belongs to a state that is gone, and its report is ignored: a call that began before the breaker opened can neither
close it nor open it again. What is not the server's fault (`release_without_verdict`) frees the probe's slot and
counts nothing.

Shared by threads; while it is closed, admitting and succeeding take no lock. Invariant: no more than `probes` probes
are outstanding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ldexp
from threading import Lock
from typing import Literal, TypeAlias

from onefold._kernel.arguments import named_settings
from onefold._policy.backoff import DOUBLINGS_MAX, Draw, at_least_half
from onefold._policy.outcome import Verdict
from onefold._policy.ranges import require
from onefold._policy.window import Window


@named_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerConfig:
    """When to open, for how long, and how to come back."""

    failure_share: float = 0.8
    """Open when this share of the calls of the window has failed, and one more."""
    calls_least: int = 5
    """Fewer calls in the window than this decide nothing. Few, for a process with a call now and then (elsewhere it is
    20 or 100, for busy ones); but the attempts of one call alone do not open it."""
    window_s: float = 10.0
    """The calls of the last so many seconds count."""
    slices: int = 10
    """In so many parts the window moves on."""
    open_s: float = 5.0
    """How long no call is made after the first opening; each opening after it that follows soon is longer."""
    open_max_s: float = 8.0
    """At most so long. Not much longer, or the breaker itself is the outage: a client that has just given up a host
    which comes back is away for so long. What it saves is little, for every process sends no more than its probes
    (`onefold storm`)."""
    calm_s: float = 60.0
    """Closed for this long, the next opening is the first one again."""
    probes: int = 3
    """How many at once."""
    proofs: int = 2
    """So many of them have to succeed (or all, where there are fewer); it opens again when that cannot be any more. Not
    all of three: a host that fails half of the time would nearly never be let back in."""
    probe_s: float = 120.0
    """A probe that has not reported for this long has failed: a lost one must not keep the host out for ever."""

    def __post_init__(self) -> None:
        require("failure_share", self.failure_share, least=0.01, most=1)
        require("calls_least", self.calls_least, least=1, whole=True)
        require("window_s", self.window_s, least=0.1, most=3600)
        require("slices", self.slices, least=2, most=100, whole=True)
        require("open_max_s", self.open_max_s, most=86_400)
        require("open_s", self.open_s, least=0.001, most=self.open_max_s)
        require("calm_s", self.calm_s)
        require("probes", self.probes, least=1, most=100, whole=True)
        require("proofs", self.proofs, least=1, most=100, whole=True)
        require("probe_s", self.probe_s, least=0.001)


STANDARD_CONFIG = BreakerConfig()


class Permit:
    """The right to make one call. It is known by being this object and no other."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Refused:
    """No call now."""

    retry_at: float
    """When asking again makes sense; not a promise."""


Admission: TypeAlias = Permit | Refused
State: TypeAlias = Literal["closed", "open", "half-open"]


class Breaker:
    """One host's breaker. `draw` spreads the clients of one host, so that they do not all probe at once."""

    __slots__ = (
        "_closed_at", "_config", "_disproven", "_draw", "_lock", "_open_until", "_openings", "_probes", "_proofs",
        "_proven", "_window", "closed_permit",
    )  # fmt: skip

    def __init__(self, draw: Draw, config: BreakerConfig = STANDARD_CONFIG) -> None:
        self._draw = draw
        self._config = config
        self._lock = Lock()
        self._window = Window(config.window_s, config.slices)
        #: While it is closed, the permit that all calls share. A caller that finds it need not call `admit`.
        self.closed_permit: Permit | None = Permit()
        self._closed_at: float | None = None
        self._open_until = 0.0
        self._openings = 0
        self._probes: dict[Permit, float] = {}
        self._proofs = min(config.proofs, config.probes)
        self._proven = 0
        self._disproven = 0

    def admit(self, now: float) -> Admission:
        """Ask before each attempt."""
        permit = self.closed_permit
        if permit is not None:
            return permit
        with self._lock:
            if self.closed_permit is not None:  # closed meanwhile
                return self.closed_permit
            if any(now - began >= self._config.probe_s for began in self._probes.values()):
                self._open(now)
            if now < self._open_until:
                return Refused(self._open_until)
            if len(self._probes) >= self._config.probes:
                return Refused(now)
            probe = Permit()
            self._probes[probe] = now
            return probe

    def state(self, now: float) -> State:
        """For logs and metrics; it may be another a moment later."""
        if self.closed_permit is not None:
            return "closed"
        return "open" if now < self._open_until else "half-open"

    def ready_at(self, now: float) -> float:
        """When a call could be let through: now, or the end of the open time."""
        return now if self.closed_permit is not None else max(now, self._open_until)

    def report(self, permit: Permit, verdict: Verdict, now: float, *, attempt: int = 1) -> None:
        """Report the outcome of the attempt, with its number in its call."""
        match verdict:
            case Verdict.SUCCESS:
                self.succeed(permit, now)
            case Verdict.FAILURE:
                self.fail(permit, now, attempt=attempt)
            case Verdict.NEITHER:
                self.release_without_verdict(permit)

    def succeed(self, permit: Permit, now: float) -> None:
        """The call succeeded."""
        window = self._window
        if permit is self.closed_permit and now < window.ends_at:
            window.successes.append(None)
            return
        with self._lock:
            if permit is self.closed_permit:
                self._window.succeed(now)
            elif self._probes.pop(permit, None) is not None:
                self._proven += 1
                if self._proven >= self._proofs:
                    self._close(now)

    def fail(self, permit: Permit, now: float, *, attempt: int = 1) -> None:
        """The server, or the way to it, failed."""
        with self._lock:
            if permit is self.closed_permit:
                failures, calls = self._window.fail(now)
                # A call that waits for a host to restart must not be ended by its own attempts.
                is_alone = attempt > 1 and calls <= attempt
                if calls >= self._config.calls_least and failures >= self._enough(calls) and not is_alone:
                    self._open(now)
            elif self._probes.pop(permit, None) is not None:
                self._disproven += 1
                if self._disproven > self._config.probes - self._proofs:
                    self._open(now)

    def release_without_verdict(self, permit: Permit) -> None:
        """The attempt says nothing about the server: a 429, a cancellation, a call that was never made."""
        if permit is self.closed_permit:
            return
        with self._lock:
            self._probes.pop(permit, None)

    def _enough(self, calls: int) -> float:
        """So many failures open it. Of the least number of calls all must have failed, of more the share and a little:
        among a handful, four of five is what a host that fails half of the time does every now and then."""
        config = self._config
        return config.failure_share * calls + (1 - config.failure_share) * config.calls_least

    def _open(self, now: float) -> None:
        calm = self._closed_at is None or now - self._closed_at >= self._config.calm_s
        self._openings = 1 if self.closed_permit is not None and calm else self._openings + 1
        growth = ldexp(1.0, min(self._openings - 1, DOUBLINGS_MAX))
        longest_s = min(self._config.open_max_s, self._config.open_s * growth)
        # Between half and all of it: spread, but never so short that an open breaker is none.
        self._open_until = now + longest_s * at_least_half(self._draw)
        self.closed_permit = None
        self._probes.clear()
        self._proven = self._disproven = 0

    def _close(self, now: float) -> None:
        self._closed_at = now
        self._probes.clear()
        self._window.clear()
        self.closed_permit = Permit()  # last: an admission without the lock reads this and nothing else
