"""How many retries a host is given: successes earn them, so an outage cannot be amplified.

A retry takes a token before its wait; two, where the connection broke; four, where the time for an answer ran out: what
was sent may still wait in the server's queue. A call that succeeds in the end gives all its tokens back: what is
limited are retries in vain. Every success deposits a tenth of a token; after a silence half a token for each second
since the success before, up to a whole one, so that a process with a call now and then has its retries like a busy one.
Time alone deposits nothing: in an outage there are no successes.

The balance is capped by recent traffic: a tenth of the successes of the last ten seconds, at least 6 and at most 10. It
starts at the least cap: the retries of two calls, one after time-outs. (How these were chosen: docs/storms.md.)

Theory of operation. A success only appends its time to a bounded deque, which is atomic: that is all a succeeding call
pays for. The sums are done when tokens are taken or given back. Doing them late changes nothing: within any span the
cap grows by no more than what the successes of that span deposit, so a cap that was lower in between never binds.
Successes beyond the highest cap's worth are dropped from the deque unseen, because they could not be kept anyway.

Shared by threads. Invariant, in any order of any number of threads: what is taken and not given back is at most the
least cap, a token for each `alone_s` with a success in it, and the ratio for every success.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from threading import Lock
from typing import Protocol

from onefold._kernel.arguments import named_settings
from onefold._policy.ranges import require

TOKEN = 1_000_000  # parts of a token: in floats, ten deposits of a tenth do not make a whole


class Allowance(Protocol):
    """What limits the retries of one host. onefold's is `Budget`; `onefold storm` compares it with those of others."""

    def succeed(self, now: float) -> None: ...
    def give_back(self, tokens: int, now: float) -> None: ...
    def take(self, now: float, tokens: int = 1) -> bool: ...


class AllowanceConfig(Protocol):
    """Opens such a limit for a host."""

    def open(self) -> Allowance: ...


@named_settings
@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetConfig:
    """What a success earns, and how much can be saved."""

    ratio: float = 0.1
    """What a success earns, in retries."""
    cap_least: float = 6.0
    """So many retries can be saved however little the traffic is; a host begins with them."""
    cap_most: float = 10.0
    """At most so many, however much it is."""
    window_s: float = 10.0
    """In between, what the successes of the last so many seconds have earned."""
    alone: float = 1.0
    """What a success earns when the one before it is `alone_s` ago; sooner, in proportion, but never below the
    ratio."""
    alone_s: float = 2.0
    """After so long a silence a success earns `alone` in full."""

    def __post_init__(self) -> None:
        require("ratio", self.ratio, least=0.001, most=1)
        require("cap_most", self.cap_most, most=1000)
        require("cap_least", self.cap_least, most=self.cap_most)
        require("window_s", self.window_s, least=0.1, most=3600)
        require("alone", self.alone, most=1)
        require("alone_s", self.alone_s, least=0.1, most=3600)

    def open(self) -> Budget:
        """A host's budget."""
        return Budget(self)


STANDARD_CONFIG = BudgetConfig()


class Budget:
    """The retries one host is worth."""

    __slots__ = (
        "_alone", "_alone_s", "_cap_least", "_cap_most", "_counted", "_deposit", "_last", "_lock", "_new", "_parts",
        "_window_s",
    )  # fmt: skip

    def __init__(self, config: BudgetConfig = STANDARD_CONFIG) -> None:
        self._deposit = round(config.ratio * TOKEN)
        self._cap_least = round(config.cap_least * TOKEN)
        self._cap_most = round(config.cap_most * TOKEN)
        self._window_s = config.window_s
        self._alone = round(config.alone * TOKEN)
        self._alone_s = config.alone_s
        self._last = inf
        enough = -(-self._cap_most // self._deposit)
        self._new: deque[float] = deque(maxlen=enough)
        self._counted: deque[float] = deque(maxlen=enough)
        self._parts = self._cap_least
        self._lock = Lock()

    def succeed(self, now: float) -> None:
        """A call succeeded."""
        self._new.append(now)

    def give_back(self, tokens: int, now: float) -> None:
        """A call succeeded that had taken so many: they were worth it."""
        with self._lock:
            self._parts += tokens * TOKEN
            self._settle(now)

    def take(self, now: float, tokens: int = 1) -> bool:
        """Take what one retry costs, before its wait. False: it is not there, and the call has to end."""
        with self._lock:
            self._settle(now)
            if self._parts < tokens * TOKEN:
                return False
            self._parts -= tokens * TOKEN
            return True

    def tokens(self, now: float) -> float:
        """The balance, for metrics and tests."""
        with self._lock:
            self._settle(now)
            return self._parts / TOKEN

    def _settle(self, now: float) -> None:
        # No more than are there now: others go on appending. Only holders of the lock take out, so none is missing.
        parts, before, window_s = self._parts, self._last, self._window_s
        for _ in range(len(self._new)):
            at = self._new.popleft()
            alone = min(self._alone, round((at - before) / self._alone_s * TOKEN)) if at > before else 0
            parts += max(self._deposit, alone)
            before = at
            self._counted.append(at)
        self._last = before
        recent = sum(1 for at in self._counted if now - at < window_s)
        self._parts = min(parts, max(self._cap_least, min(self._cap_most, recent * self._deposit)))
