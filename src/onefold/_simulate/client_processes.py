"""The clients: processes that make calls, each with a host of its own, driven by the machines of `policy`.

Nothing of the policy is imitated here. Every process holds a real `HostHealth`, every call a real `Attempts`; this
module only does what a transport does: send, wait, and give an attempt up when its time is over.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Protocol

from onefold._policy.attempts import Attempts, HostHealth
from onefold._policy.outcome import Outcome, Unanswered
from onefold._policy.retry import RetryAfter, RetryPolicy
from onefold._simulate.counters import Counters
from onefold._simulate.event_queue import EventQueue
from onefold._simulate.rivals import Rival

_TIMED_OUT = Unanswered(maybe_sent=True, timed_out=True)


class SimulatedCall:
    """A user's call: its attempts, the second it began in, and the budget that follows them, if one does."""

    __slots__ = ("attempts", "rival", "second")

    def __init__(self, attempts: Attempts, second: int, rival: Rival | None) -> None:
        self.attempts = attempts
        self.second = second
        self.rival = rival


class SimulatedAttempt:
    """One request on its way. `wanted` until it is answered or given up."""

    __slots__ = ("call", "expires_at", "wanted")

    def __init__(self, call: SimulatedCall, expires_at: float) -> None:
        self.call = call
        self.expires_at = expires_at
        self.wanted = True


class Receiver(Protocol):
    """What clients know of a server."""

    def receive(self, attempt: SimulatedAttempt) -> None: ...


class Clients:
    """All processes together: calls arrive at random (a Poisson process) and are spread over them evenly."""

    __slots__ = ("_chance", "_counters", "_events", "_hosts", "_policy", "_rps_at", "_server", "_timeout_s", "_until")

    def __init__(
        self,
        events: EventQueue,
        counters: Counters,
        policy: RetryPolicy,
        *,
        processes: int,
        timeout_s: float,
        rps_at: Callable[[float], float],
        seed: str,
    ) -> None:
        self._events = events
        self._counters = counters
        self._policy = policy
        # Two sources of chance: independent of what a policy draws, the calls arrive at the same moments and processes.
        self._chance = Random(f"calls {seed}")
        draw = Random(f"clients {seed}").random
        self._hosts = [HostHealth(policy, draw) for _ in range(processes)]
        self._timeout_s = timeout_s
        self._rps_at = rps_at
        self._until = float(counters.seconds)
        self._server: Receiver | None = None

    def begin(self, server: Receiver) -> None:
        """Let calls arrive, for as many seconds as are counted."""
        self._server = server
        self._await_next()

    def _await_next(self) -> None:
        at = self._events.now + self._chance.expovariate(self._rps_at(self._events.now))
        if at < self._until:
            self._events.at(at, self._arrive, None)

    def _arrive(self, _: None) -> None:
        now = self._events.now
        host = self._hosts[int(self._chance.random() * len(self._hosts))]
        second = int(now)
        self._counters.calls[second] += 1
        rival = host.budget if isinstance(host.budget, Rival) else None
        call = SimulatedCall(Attempts(host, now + self._policy.deadline_s), second, rival)
        if rival is not None:
            rival.begin(call, now)
        self._send(call)
        self._await_next()

    def _send(self, call: SimulatedCall) -> None:
        now = self._events.now
        if call.attempts.begin(now) is not None:
            return  # the breaker is open, or time is up: the call has failed
        if now < self._until:
            self._counters.attempts[int(now)] += 1
        attempt = SimulatedAttempt(call, min(now + self._timeout_s, call.attempts.deadline_at))
        self._events.at(attempt.expires_at, self._give_up, attempt)
        assert self._server is not None
        self._server.receive(attempt)

    def _give_up(self, attempt: SimulatedAttempt) -> None:
        if attempt.wanted:
            self.on_refusal(attempt, _TIMED_OUT)

    def on_answer(self, attempt: SimulatedAttempt) -> None:
        """The server served the call in time."""
        now = self._events.now
        attempt.wanted = False
        call = attempt.call
        if call.rival is not None:
            call.rival.end(call, None, call.attempts.made, now)
        call.attempts.succeed(now)
        self._counters.succeeded[call.second] += 1
        if now < self._until:
            self._counters.answered[int(now)] += 1

    def on_refusal(self, attempt: SimulatedAttempt, outcome: Outcome) -> None:
        """The attempt ended otherwise."""
        now = self._events.now
        attempt.wanted = False
        call = attempt.call
        if call.rival is not None:
            call.rival.end(call, outcome, call.attempts.made, now)
        decision = call.attempts.end(outcome, now)
        if isinstance(decision, RetryAfter):
            self._events.at(now + decision.wait_s, self._send, call)
