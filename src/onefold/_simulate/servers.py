"""The servers: a few workers, a queue before them, and what is done when it grows.

Work whose caller has given up is served like any other, unless the server knows deadlines: that is how an overload
feeds itself. The server that sheds does it with the admission queue, the limiter and the shedder of `_http.shedding`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from random import Random

from onefold._http.shedding.admission_queue import AdmissionQueue, Ticket
from onefold._http.shedding.settings import Shedding
from onefold._policy.limiter import Limiter
from onefold._policy.outcome import Answered
from onefold._policy.ranges import require
from onefold._policy.shedder import Shedder
from onefold._simulate.client_processes import Clients, Receiver, SimulatedAttempt
from onefold._simulate.counters import Counters
from onefold._simulate.event_queue import EventQueue

_UNAVAILABLE = Answered(status=503)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerConfig:
    """What a server is made of; the name is what tables call it."""

    name: str = "FIFO"
    workers: int = 10
    service_s: float = 0.1
    queue_most: float = inf
    """A request that finds so many waiting is refused."""
    drops_expired: bool = False
    """It gets deadlines, and does not begin work whose caller has given up."""
    refusal_cost: float = 0.0
    """What it costs a worker to refuse a request, as a share of serving one."""
    shedding: Shedding | None = None
    """What stands before the queue."""

    def __post_init__(self) -> None:
        require("workers", self.workers, least=1)
        require("service_s", self.service_s, least=0.000_001)
        require("refusal_cost", self.refusal_cost, most=1)

    @property
    def capacity_rps(self) -> float:
        """What it can serve at most."""
        return self.workers / self.service_s


class Server:
    """Workers that take from one queue, first come first served, and stand still while it stalls."""

    def __init__(
        self, events: EventQueue, counters: Counters, clients: Clients, config: ServerConfig, stall: tuple[float, float]
    ) -> None:
        self._events = events
        self._counters = counters
        self._clients = clients
        self._config = config
        self._stall_from, self._stall_until = stall
        self._idle = config.workers
        self._queue: deque[SimulatedAttempt] = deque()
        self._refusals: deque[SimulatedAttempt] = deque()

    def receive(self, attempt: SimulatedAttempt) -> None:
        """A request comes in."""
        if self._idle == 0 and len(self._queue) >= self._config.queue_most:
            if self._config.refusal_cost == 0:
                self._clients.on_refusal(attempt, _UNAVAILABLE)
            else:
                self._refusals.append(attempt)
        else:
            self._queue.append(attempt)
            self._work()

    def _work(self) -> None:
        config, refusals, queue = self._config, self._refusals, self._queue
        # Refusals first: connections are accepted before anything else, and that takes a processor.
        while self._idle and refusals:
            self._occupy(config.refusal_cost * config.service_s, self._finish_refusal, refusals.popleft())
        while self._idle and queue:
            attempt = queue.popleft()
            if self._worth_serving(attempt):
                self._occupy(config.service_s, self._finish_request, attempt)

    def _worth_serving(self, attempt: SimulatedAttempt) -> bool:
        return not self._config.drops_expired or self._events.now < attempt.expires_at

    def _occupy(self, busy_s: float, action: Callable[[SimulatedAttempt], None], attempt: SimulatedAttempt) -> None:
        self._idle -= 1
        now = self._events.now
        done_at = now + busy_s
        if now < self._stall_until and done_at > self._stall_from:
            done_at += self._stall_until - max(now, self._stall_from)
        self._events.at(done_at, action, attempt)

    def _finish_request(self, attempt: SimulatedAttempt) -> None:
        now = self._events.now
        self._idle += 1
        if now < self._counters.seconds:
            self._counters.served[int(now)] += 1
            self._counters.wasted[int(now)] += not attempt.wanted
        if attempt.wanted:
            self._clients.on_answer(attempt)
        self._work()

    def _finish_refusal(self, attempt: SimulatedAttempt) -> None:
        self._idle += 1
        if attempt.wanted:
            self._clients.on_refusal(attempt, _UNAVAILABLE)
        self._work()


class SheddingServer(Server):
    """A server behind the admission queue of `_http.shedding`. It does not notice that a client has hung up."""

    def __init__(
        self,
        events: EventQueue,
        counters: Counters,
        clients: Clients,
        config: ServerConfig,
        stall: tuple[float, float],
        shedding: Shedding,
        chance: Random,
    ) -> None:
        super().__init__(events, counters, clients, config, stall)
        self._admission = AdmissionQueue(
            Limiter(shedding.law(), shedding.limiter_config),
            Shedder(shedding.wait),
            queue_most=shedding.queue_most,
            wait_most_s=shedding.wait_most_s,
        )
        self._retry_after_s = shedding.retry_after_s
        self._chance = chance
        self._waiting: dict[Ticket, SimulatedAttempt] = {}
        self._entered_at: dict[SimulatedAttempt, float] = {}

    def receive(self, attempt: SimulatedAttempt) -> None:
        """A request comes to the admission queue."""
        deadline = attempt.expires_at if self._config.drops_expired else None
        ticket = self._admission.arrive(self._events.now, deadline=deadline)
        if ticket is None:
            self._enter(attempt)
            return
        self._waiting[ticket] = attempt
        if ticket.verdict is None:
            self._events.at(ticket.until, self._time_out, ticket)
        else:
            self._follow_verdict(ticket)
        if ticket.instead_of is not None:
            self._follow_verdict(ticket.instead_of)

    def _enter(self, attempt: SimulatedAttempt) -> None:
        self._entered_at[attempt] = self._events.now
        super().receive(attempt)

    def _worth_serving(self, attempt: SimulatedAttempt) -> bool:
        return True  # only the admission queue knows deadlines: what has passed it is served

    def _finish_request(self, attempt: SimulatedAttempt) -> None:
        super()._finish_request(attempt)
        now = self._events.now
        late = self._config.drops_expired and now > attempt.expires_at
        for ticket in self._admission.leave(now, now - self._entered_at.pop(attempt), late=late):
            self._follow_verdict(ticket)

    def _time_out(self, ticket: Ticket) -> None:
        if ticket.verdict is None:
            self._admission.time_out(ticket, self._events.now)
            self._follow_verdict(ticket)

    def _follow_verdict(self, ticket: Ticket) -> None:
        attempt = self._waiting.pop(ticket)
        if ticket.verdict == "enter":
            self._enter(attempt)
        elif attempt.wanted:
            patience_s = self._chance.randint(*self._retry_after_s)
            self._clients.on_refusal(attempt, Answered(status=503, retry_after_s=patience_s))


def build_server(
    events: EventQueue,
    counters: Counters,
    clients: Clients,
    config: ServerConfig,
    *,
    stall: tuple[float, float],
    seed: str,
) -> Receiver:
    """The server that the config describes."""
    if config.shedding is None:
        return Server(events, counters, clients, config, stall)
    return SheddingServer(events, counters, clients, config, stall, config.shedding, Random(f"server {seed}"))


class CoinFlipServer:
    """A server without a queue that fails a share of its requests, each by chance and for itself."""

    def __init__(self, clients: Clients, failure: float, chance: Random) -> None:
        self._clients = clients
        self._failure = failure
        self._chance = chance

    def receive(self, attempt: SimulatedAttempt) -> None:
        """A request comes in, and is answered at once."""
        if self._chance.random() < self._failure:
            self._clients.on_refusal(attempt, _UNAVAILABLE)
        else:
            self._clients.on_answer(attempt)
