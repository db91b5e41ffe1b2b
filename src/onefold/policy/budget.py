"""How many retries a host is given: successes earn them, so an outage cannot be amplified.

Every success deposits a tenth of a token, every retry (and every hedge, if they share the budget) takes a whole one,
before its wait. The balance is capped by recent traffic: a tenth of the successes of the last ten seconds, at least 1
and at most 10. So a hundred small processes together burst no higher than a large one, and a quiet client, whose
balance starts at the least cap, still has one retry.

Theory of operation. A success only appends its time to a bounded deque, which is atomic: that is all a succeeding call
pays for. The sums are done by whoever takes. Doing them late changes nothing: within any span the cap grows by no more
than what the successes of that span deposit, so a cap that was lower in between never binds. Successes beyond the
highest cap's worth are dropped from the deque unseen, because they could not be kept anyway.

Shared by threads. Invariant: retries <= least cap + ratio * successes, in any order of any number of threads.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Lock

from onefold.policy.ranges import require

TOKEN = 1_000_000  # parts of a token: in floats, ten deposits of a tenth do not make a whole


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTerms:
    """What a success earns, and how much can be saved."""

    ratio: float = 0.1
    cap_least: float = 1.0
    cap_most: float = 10.0
    window_s: float = 10.0

    def __post_init__(self) -> None:
        require("ratio", self.ratio, least=0.001, most=1)
        require("cap_most", self.cap_most, most=1000)
        require("cap_least", self.cap_least, most=self.cap_most)
        require("window_s", self.window_s, least=0.1, most=3600)


STANDARD_TERMS = BudgetTerms()


class Budget:
    """The retries one host is worth."""

    __slots__ = ("_cap_least", "_cap_most", "_counted", "_deposit", "_lock", "_new", "_parts", "_window_s")

    def __init__(self, terms: BudgetTerms = STANDARD_TERMS) -> None:
        self._deposit = round(terms.ratio * TOKEN)
        self._cap_least = round(terms.cap_least * TOKEN)
        self._cap_most = round(terms.cap_most * TOKEN)
        self._window_s = terms.window_s
        enough = -(-self._cap_most // self._deposit)
        self._new: deque[float] = deque(maxlen=enough)
        self._counted: deque[float] = deque(maxlen=enough)
        self._parts = self._cap_least
        self._lock = Lock()

    def succeed(self, now: float) -> None:
        """A call succeeded."""
        self._new.append(now)

    def take(self, now: float) -> bool:
        """Take a token for one retry, before its wait. False: there is none, and the call has to end."""
        with self._lock:
            self._settle(now)
            if self._parts < TOKEN:
                return False
            self._parts -= TOKEN
            return True

    def tokens(self, now: float) -> float:
        """The balance, for whoever watches."""
        with self._lock:
            self._settle(now)
            return self._parts / TOKEN

    def _settle(self, now: float) -> None:
        # No more than are there now: others go on appending. Only holders of the lock take out, so none is missing.
        fresh = len(self._new)
        for _ in range(fresh):
            self._counted.append(self._new.popleft())
        recent = sum(1 for at in self._counted if now - at < self._window_s)
        cap = max(self._cap_least, min(self._cap_most, recent * self._deposit))
        self._parts = min(cap, self._parts + fresh * self._deposit)
