"""What both adapters of the shedder share: reading a request's head, answering those turned away, measuring the others.

What counts as the latency of a request, and how long it holds its slot: from its entry to the first byte of its body,
once that is on its way (inside the idempotency layer of ASGI that is after COMMIT), or to its end where it has none. A
stream that then goes on for an hour holds no slot, and its hour counts as no request's latency. A `text/event-stream`
may be silent long before its first byte, so there the head is enough.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import random
from time import monotonic

from onefold._http.problems import problem
from onefold._http.request import Request, Response
from onefold._http.shedding.admission_queue import AdmissionQueue, Ticket, Verdict
from onefold._http.shedding.settings import LEVELS, Shedding
from onefold._kernel.telemetry import Listener, emit
from onefold._kernel.telemetry.shedding_events import LimitMoved, Queued, Shed, ShedReason
from onefold._policy.limiter import Limiter
from onefold._policy.shedder import Shedder
from onefold.errors import CallerError, DeadlinePassed, Overloaded, ProgrammerError, TooManyRequests

EVENT_STREAM = "text/event-stream"

#: Answers that say that something behind the handler was overloaded, or too late.
DROPPED = frozenset({503, 504})


_DETAILS: dict[ShedReason, str] = {
    "queue full": "More requests are waiting than can be served in time. Nothing was done. Retry later.",
    "displaced": "More important requests came, and the queue is full. Nothing was done. Retry later.",
    "waited too long": "The request waited too long for its turn. Nothing was done. Retry later.",
    "deadline": "The time granted by the client was over before the request could run. Nothing was done.",
}


class AdmissionController:
    """The shedder of one application: its queue, its settings, its answers."""

    def __init__(
        self,
        settings: Shedding,
        listener: Listener | None = None,
        *,
        draw: Callable[[], float] = random,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.queue = AdmissionQueue(
            Limiter(settings.law(), settings.limiter_config),
            Shedder(settings.wait),
            queue_most=settings.queue_most,
            wait_most_s=settings.wait_most_s,
        )
        self.priority = settings.priority
        self.clock = clock
        self._draw = draw
        self._listener = listener
        self._refusal: type[CallerError] = Overloaded if settings.status == 503 else TooManyRequests
        self._soonest_s, self._latest_s = settings.retry_after_s
        self._exempt = frozenset(path for path in settings.exempt if not path.endswith("/*"))
        self._exempt_below = tuple(path.removesuffix("*") for path in settings.exempt if path.endswith("/*"))
        self._limit = self.queue.limit
        emit(listener, LimitMoved(self._limit))

    def exempts(self, path: str) -> bool:
        """Whether requests for this path always pass."""
        return path in self._exempt or (bool(self._exempt_below) and path.startswith(self._exempt_below))

    def rank(self, request: Request) -> int:
        """How important the application calls a request."""
        assert self.priority is not None
        found = self.priority(request)
        rank = LEVELS.get(found) if isinstance(found, str) else found
        if not isinstance(rank, int):
            raise ProgrammerError(
                f"priority({request.method} {request.path}) returned {found!r}: return a whole number, more for more "
                f"important, or one of {', '.join(map(repr, LEVELS))}"
            )
        return rank

    def refusal(self, verdict: Verdict, priority: int) -> Response:
        """The answer to a request that was turned away."""
        assert verdict != "enter"
        assert verdict != "gone"
        emit(self._listener, Shed(verdict, priority))
        kind = DeadlinePassed if verdict == "deadline" else self._refusal
        spread = self._latest_s - self._soonest_s + 1
        retry_after_s = self._soonest_s + min(spread - 1, int(self._draw() * spread))
        return problem(kind(_DETAILS[verdict], retry_after_s=retry_after_s))

    def report_wait(self, ticket: Ticket) -> None:
        """Tell the listener how long a request was in the queue."""
        if self._listener is not None:
            waited_s = self.clock() - ticket.arrived_at
            emit(self._listener, Queued(waited_s, ticket.priority, ticket.verdict == "enter"))

    def new_slot(self, entered_at: float, deadline: float | None) -> AdmissionSlot:
        """For a request that may run now."""
        return AdmissionSlot(self, entered_at, deadline)

    def wake(self, tickets: Iterable[Ticket]) -> None:
        """Wake the requests that wait for these verdicts."""
        for ticket in tickets:
            ticket.wake()

    def limit_may_have_moved(self) -> None:
        """Emit LimitMoved, if it has."""
        limit = self.queue.limit
        if limit != self._limit:
            self._limit = limit
            emit(self._listener, LimitMoved(limit))


class AdmissionSlot:
    """The slot of a request that runs. It is given back once, however many of its methods are called."""

    __slots__ = ("_controller", "_deadline", "_entered_at", "held", "status")

    def __init__(self, controller: AdmissionController, entered_at: float, deadline: float | None) -> None:
        self._controller = controller
        self._entered_at = entered_at
        self._deadline = deadline
        self.held = True
        self.status = 0

    def leave(self) -> None:
        """The request is answered, or over."""
        if not self.held:
            return
        now = self._controller.clock()
        dropped = self.status in DROPPED
        late = self._deadline is not None and now > self._deadline
        # Other failures say nothing about capacity: a service that fails fast is not a fast service.
        counts = dropped or late or 0 < self.status < 500
        self._give_back(now, now - self._entered_at if counts else None, dropped=dropped, late=late)

    def give_up(self) -> None:
        """The request did not run after all: no latency is measured."""
        if self.held:
            self._give_back(self._controller.clock(), None)

    def fail(self, error: BaseException) -> None:
        """The handler raised: only a time-out says something about capacity."""
        if self.held:
            now = self._controller.clock()
            dropped = isinstance(error, TimeoutError)
            self._give_back(now, now - self._entered_at if dropped else None, dropped=dropped)

    def _give_back(self, now: float, latency_s: float | None, *, dropped: bool = False, late: bool = False) -> None:
        self.held = False
        controller = self._controller
        notified = controller.queue.leave(now, latency_s, dropped=dropped, late=late)
        if notified:
            controller.wake(notified)
        controller.limit_may_have_moved()
