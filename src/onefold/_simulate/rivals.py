"""The budgets of others, as machines: AWS standard mode, gRPC's throttling, Finagle's and Envoy's retry budgets.

Each is written from its public description, with the defaults of its library, and takes the place of onefold's budget
in a `RetryPolicy`. They want to know more of a call than onefold's does: `Rival` says what, and `clients` tells it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from onefold._policy.outcome import Outcome, Unanswered


class Rival:
    """A budget that follows every attempt. Each method is called at one moment in the life of a call."""

    def begin(self, call: object, now: float) -> None:
        """A call makes its first attempt."""

    def end(self, call: object, outcome: Outcome | None, attempt: int, now: float) -> None:
        """An attempt ended, before it is decided whether another follows; None: it succeeded."""

    def take(self, now: float, tokens: int = 1) -> bool:
        """May there be a retry? It is then made, after its wait."""
        raise NotImplementedError

    def succeed(self, now: float) -> None:
        """Called by the policy; `end` has reported it already."""

    def give_back(self, tokens: int, now: float) -> None:
        """Called by the policy; `end` has reported it already."""


@dataclass(frozen=True, slots=True)
class RivalConfig:
    """Opens a budget of some kind for each host."""

    open: Callable[[], Rival]


class AwsStandard(Rival):
    """botocore's retry quota: 500 tokens, 5 for a retry, 10 after a time-out. A success gives back what the last retry
    of its call took; a call that succeeds at once adds 1."""

    CAPACITY = 500
    COST = 5
    TIMEOUT_COST = 10

    def __init__(self) -> None:
        self._tokens = self.CAPACITY
        self._failed: tuple[object, int] = (None, 0)
        self._taken: dict[object, int] = {}

    def end(self, call: object, outcome: Outcome | None, attempt: int, now: float) -> None:
        taken = self._taken.pop(call, 1)
        if outcome is None:
            self._tokens = min(self.CAPACITY, self._tokens + taken)
        else:
            self._failed = call, self.TIMEOUT_COST if isinstance(outcome, Unanswered) else self.COST

    def take(self, now: float, tokens: int = 1) -> bool:
        call, cost = self._failed
        if self._tokens < cost:
            return False
        self._tokens -= cost
        self._taken[call] = cost
        return True


class GrpcThrottling(Rival):
    """gRFC A6: an attempt that fails takes 1 of 10 tokens, one that succeeds adds 0.1; retries while more than half of
    the tokens are there. Counted in tenths."""

    MOST = 100

    def __init__(self) -> None:
        self._tenths = self.MOST

    def end(self, call: object, outcome: Outcome | None, attempt: int, now: float) -> None:
        self._tenths = min(self.MOST, self._tenths + 1) if outcome is None else max(0, self._tenths - 10)

    def take(self, now: float, tokens: int = 1) -> bool:
        return self._tenths > self.MOST // 2


class Finagle(Rival):
    """RetryBudget(): within 10 s a fifth of the calls may be retried, and 10 per second besides."""

    WINDOW_S = 10.0
    PER_SECOND = 10
    CALLS_PER_RETRY = 5

    def __init__(self) -> None:
        self._moves: deque[tuple[float, int]] = deque()
        self._balance = int(self.WINDOW_S * self.PER_SECOND * self.CALLS_PER_RETRY)

    def begin(self, call: object, now: float) -> None:
        self._move(1, now)

    def take(self, now: float, tokens: int = 1) -> bool:
        self._forget(now)
        if self._balance < self.CALLS_PER_RETRY:
            return False
        self._move(-self.CALLS_PER_RETRY, now)
        return True

    def _move(self, amount: int, now: float) -> None:
        self._balance += amount
        self._moves.append((now, amount))

    def _forget(self, now: float) -> None:
        while self._moves and now - self._moves[0][0] >= self.WINDOW_S:
            self._balance -= self._moves.popleft()[1]


class Envoy(Rival):
    """retry_budget: as many retries at once as a fifth of the attempts under way, and 3 in any case."""

    SHARE = 0.2
    LEAST = 3

    def __init__(self) -> None:
        self._attempts = 0
        self._retries = 0

    def begin(self, call: object, now: float) -> None:
        self._attempts += 1

    def end(self, call: object, outcome: Outcome | None, attempt: int, now: float) -> None:
        self._attempts -= 1
        if attempt > 1:
            self._retries -= 1

    def take(self, now: float, tokens: int = 1) -> bool:
        if self._retries >= max(self.LEAST, self.SHARE * self._attempts):
            return False
        self._retries += 1  # from now on, its wait included
        self._attempts += 1
        return True
