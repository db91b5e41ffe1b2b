"""The queue in front of an application: who enters, who waits, who is turned away, told by a script of moments."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onefold._http.shedding.admission_queue import AdmissionQueue, Ticket
from onefold._policy.limiter import Aimd, Gradient2, Law, Limiter, LimiterConfig, Sample
from onefold._policy.shedder import Shedder, SheddingConfig
from tests.policy.properties import planted, properties


def make_queue(
    limit: int = 1, *, queue: int = 3, wait_s: float = 100.0, make: type[AdmissionQueue] = AdmissionQueue
) -> AdmissionQueue:
    """A queue whose limit stays, and whose target is a tenth of a second."""
    terms = LimiterConfig(initial=limit, least=limit, most=limit)
    wait = SheddingConfig(target_least_s=0.1, target_most_s=0.1)
    return make(Limiter(Aimd(), terms), Shedder(wait), queue_most=queue, wait_most_s=wait_s)


def waiting(queue: AdmissionQueue, now: float, *, priority: int = 0, deadline: float | None = None) -> Ticket:
    ticket = queue.arrive(now, priority=priority, deadline=deadline)
    assert ticket is not None
    return ticket


def overloaded(*, queue: int = 3) -> AdmissionQueue:
    """At 2 seconds: a queue where nobody waited less than half a second for two intervals; one runs, nobody waits."""
    shedder = Shedder(SheddingConfig(target_least_s=0.1, target_most_s=0.1))
    for tenth in range(21):
        shedder.admit(0.5, tenth / 10)
    assert shedder.overloaded
    limiter = Limiter(Aimd(), LimiterConfig(initial=1, least=1, most=1))
    assert limiter.enter()
    return AdmissionQueue(limiter, shedder, queue_most=queue, wait_most_s=100.0)


def test_who_finds_room_enters_and_who_does_not_waits() -> None:
    queue = make_queue(2)
    assert queue.arrive(0.0) is None
    assert queue.arrive(0.0) is None
    third = waiting(queue, 0.1)
    assert third.verdict is None
    assert (queue.running, queue.waiting) == (2, 1)
    assert queue.leave(0.2, 0.2) == [third]
    assert third.verdict == "enter"
    assert (queue.running, queue.waiting) == (2, 0)


def test_the_first_that_came_goes_first() -> None:
    queue = make_queue()
    queue.arrive(0.0)
    tickets = [waiting(queue, number / 100) for number in range(3)]
    for ticket in tickets:
        assert queue.leave(0.05, 0.01) == [ticket]


def test_in_overload_the_newest_goes_first() -> None:
    queue = overloaded()
    older, newer = waiting(queue, 2.0), waiting(queue, 2.01)
    assert queue.leave(2.05, 0.1) == [newer]
    assert queue.leave(2.06, 0.1) == [older]
    assert {older.verdict, newer.verdict} == {"enter"}


def test_the_most_important_goes_first_overloaded_or_not() -> None:
    usual = make_queue()
    usual.arrive(2.0)
    for queue in (usual, overloaded()):
        low, high, normal = (waiting(queue, 2.0, priority=priority) for priority in (-1, 1, 0))
        for expected in (high, normal, low):
            assert queue.leave(2.05, 0.1) == [expected]


def test_in_overload_who_waited_too_long_is_shed_whenever_a_place_is_free() -> None:
    queue = overloaded()
    old = [waiting(queue, 2.0, priority=5), waiting(queue, 2.05)]
    fresh = waiting(queue, 2.2)
    assert queue.leave(2.3, 0.1) == [*old, fresh]
    assert [ticket.verdict for ticket in (*old, fresh)] == ["waited too long", "waited too long", "enter"]


def test_without_overload_a_long_wait_alone_sheds_nobody() -> None:
    queue = make_queue()
    queue.arrive(0.0)
    ticket = waiting(queue, 0.0)
    assert queue.leave(9.0, 9.0) == [ticket]
    assert ticket.verdict == "enter"


def test_newest_first_does_not_hide_the_line_it_is_the_remedy_for() -> None:
    """Twice as many come as can be served. Those who enter have hardly waited; those behind them have."""
    queue, now = overloaded(queue=100), 2.0
    waits, shed = [], 0
    for turn in range(600):
        now += 0.05
        waiting(queue, now - 0.02)
        waiting(queue, now - 0.01)
        told = queue.leave(now, 0.05)
        if turn >= 100:  # until then the line builds up
            assert queue._shedder.overloaded
            waits += [now - ticket.arrived_at for ticket in told if ticket.verdict == "enter"]
            shed += sum(ticket.verdict == "waited too long" for ticket in told)
    assert len(waits) == 500
    assert max(waits) < 0.02
    assert 490 <= shed <= 510


def limit_found(*, rude: int, workers: int = 40, make: type[AdmissionQueue] = AdmissionQueue, crowd: int = 60) -> float:
    """The mean limit, once it has settled, of a service with so many workers and a tenth of a second of work. Of ten
    clients so many grant 90 ms, the others two seconds. `crowd` of them are there at any moment."""
    queue = make(Limiter(Gradient2(), LimiterConfig()), Shedder(), queue_most=1000, wait_most_s=100.0)
    now, numbers, busy = 0.0, count(), list[tuple[float, float, float]]()
    limits, started = list[int](), 0
    for turn in range(6_000):
        while started < crowd:
            number = next(numbers)
            ticket = queue.arrive(now, deadline=now + (0.09 if number % 10 < rude else 2.0))
            if ticket is not None:
                queue.give_up(ticket, now)  # nobody queues here: it asks again
                break
            started += 1
            # Beyond the workers the work is shared, and takes all of them longer.
            done_at = now + 0.1 * max(1.0, queue.running / workers)
            heappush(busy, (done_at, now, now + (0.09 if number % 10 < rude else 2.0)))
        done_at, entered_at, deadline = heappop(busy)
        now, started = done_at, started - 1
        queue.leave(now, now - entered_at, late=now > deadline)
        if turn > 4_000:
            limits.append(queue.limit)
    return sum(limits) / len(limits)


class Gullible(AdmissionQueue):
    """A planted fault: whoever grants less than the work takes has the limit shrink."""

    def leave(self, now: float, latency_s: float | None, *, dropped: bool = False, late: bool = False) -> list[Ticket]:
        return super().leave(now, latency_s, dropped=dropped or late)


@pytest.mark.parametrize("rude", [3, 7, 10])
def test_deadlines_below_the_service_time_do_not_shrink_the_limit_for_the_others(rude: int) -> None:
    assert limit_found(rude=rude) == pytest.approx(limit_found(rude=0), rel=0.1)


def test_the_check_finds_a_queue_that_believes_every_deadline() -> None:
    assert limit_found(rude=7, make=Gullible) < 0.5 * limit_found(rude=0)


def test_deadlines_that_a_crowd_makes_too_short_do_shrink_it() -> None:
    """Work that took a tenth of a second without a crowd, and takes longer than its clients wait with one."""
    limiter = Limiter(Gradient2(), LimiterConfig(initial=100, most=100))
    queue = AdmissionQueue(limiter, Shedder(), queue_most=0, wait_most_s=1.0)
    now, found = 0.0, list[int]()
    for latency_s, late in ((0.1, False), (3.0, True)):
        for _ in range(400):
            now += latency_s / 50
            for _ in range(60):
                queue.arrive(now)
            for _ in range(queue.running):
                queue.leave(now, latency_s, late=late)
        found.append(queue.limit)
    assert found[0] == 100
    assert found[1] < 20


def test_a_full_queue_turns_the_newcomer_away() -> None:
    queue = make_queue(queue=2)
    queue.arrive(0.0)
    waiting(queue, 0.0)
    waiting(queue, 0.0)
    late = waiting(queue, 0.0)
    assert (late.verdict, late.instead_of) == ("queue full", None)
    assert queue.waiting == 2


def test_without_a_queue_nobody_waits() -> None:
    queue = make_queue(queue=0)
    queue.arrive(0.0)
    assert waiting(queue, 0.0).verdict == "queue full"
    assert queue.leave(0.1, 0.1) == []
    assert queue.arrive(0.1) is None


def test_a_more_important_newcomer_displaces_the_last_of_the_least_important() -> None:
    queue = make_queue(queue=3)
    queue.arrive(0.0)
    first, last, middle = (waiting(queue, 0.0, priority=priority) for priority in (-1, -1, 0))
    important = waiting(queue, 0.0, priority=1)
    assert (last.verdict, important.verdict, important.instead_of) == ("displaced", None, last)
    assert [ticket.verdict for ticket in (first, middle)] == [None, None]
    unimportant = waiting(queue, 0.0, priority=-2)
    assert (unimportant.verdict, unimportant.instead_of) == ("queue full", None)


def test_in_overload_a_full_queue_turns_the_oldest_away_for_its_equal() -> None:
    queue = overloaded()
    oldest, *others = (waiting(queue, 2.0 + number / 100) for number in range(3))
    newest = waiting(queue, 2.05)
    assert (oldest.verdict, newest.verdict, newest.instead_of) == ("displaced", None, oldest)
    assert all(ticket.verdict is None for ticket in others)


@pytest.mark.parametrize("deadline", [1.0, 0.5, -3.0])
def test_a_deadline_that_has_passed_turns_away_even_where_there_is_room(deadline: float) -> None:
    queue = make_queue()
    assert waiting(queue, 1.0, deadline=deadline).verdict == "deadline"
    assert (queue.running, queue.waiting) == (0, 0)


def test_a_deadline_that_passes_in_the_queue_is_found_when_its_turn_comes() -> None:
    queue = make_queue()
    queue.arrive(0.0)
    late, next_one = waiting(queue, 0.0, deadline=0.5), waiting(queue, 0.0, deadline=0.6)
    assert late.until == 0.5
    assert queue.leave(0.55, 0.1) == [late, next_one]
    assert (late.verdict, next_one.verdict) == ("deadline", "enter")


@pytest.mark.parametrize(
    ("deadline", "now", "verdict"),
    [
        (None, 1.9, None),
        (None, 2.0, "waited too long"),
        (0.5, 0.4, None),
        (0.5, 0.5, "deadline"),
        (9.0, 2.0, "waited too long"),
    ],
)
def test_a_wait_ends_with_its_deadline_or_its_bound(deadline: float | None, now: float, verdict: str | None) -> None:
    queue = make_queue(wait_s=2.0)
    queue.arrive(0.0)
    ticket = waiting(queue, 0.0, deadline=deadline)
    queue.time_out(ticket, now)
    assert ticket.verdict == verdict
    assert queue.waiting == (1 if verdict is None else 0)
    queue.time_out(ticket, 50.0)
    assert queue.waiting == 0


def test_who_gives_up_in_the_queue_is_forgotten() -> None:
    queue = make_queue()
    queue.arrive(0.0)
    gone, stays = waiting(queue, 0.0), waiting(queue, 0.0)
    assert queue.give_up(gone, 0.1) == []
    assert (gone.verdict, queue.waiting) == ("gone", 1)
    assert queue.leave(0.2, 0.1) == [stays]


def test_who_gives_up_when_told_to_enter_passes_the_place_on() -> None:
    queue = make_queue()
    queue.arrive(0.0)
    gone, next_one = waiting(queue, 0.0), waiting(queue, 0.0)
    assert queue.leave(0.1, 0.1) == [gone]
    assert queue.give_up(gone, 0.1) == [next_one]
    assert (gone.verdict, next_one.verdict, queue.running) == ("gone", "enter", 1)
    assert queue.give_up(gone, 0.1) == []
    assert queue.running == 1


def test_who_gives_up_after_being_turned_away_changes_nothing() -> None:
    queue = make_queue(queue=0)
    queue.arrive(0.0)
    refused = waiting(queue, 0.0)
    assert queue.give_up(refused, 0.1) == []
    assert (refused.verdict, queue.running) == ("queue full", 1)


class Scripted:
    """A law that sets these limits, one after the other."""

    def __init__(self, *limits: float) -> None:
        self._limits = list(limits)

    def next_limit(self, limit: float, sample: Sample) -> float:
        return self._limits.pop(0) if self._limits else limit


def moving(law: Law, initial: int) -> AdmissionQueue:
    terms = LimiterConfig(initial=initial, least=1, most=9, gather_s=0.001, calls_least=1)
    return AdmissionQueue(Limiter(law, terms), Shedder(), queue_most=9, wait_most_s=9.0)


def test_when_the_limit_grows_all_who_have_room_enter() -> None:
    queue = moving(Scripted(3), 1)
    queue.arrive(0.0)
    first, *others = (waiting(queue, 0.0) for _ in range(5))
    assert queue.leave(0.1, 0.1) == [first]  # the gathering begins
    assert queue.leave(0.2, 0.1) == others[:3]
    assert (queue.running, queue.limit) == (3, 3)


def test_when_the_limit_shrinks_nobody_enters_until_enough_have_left() -> None:
    queue = moving(Scripted(1), 3)
    for _ in range(3):
        assert queue.arrive(0.0) is None
    first, second = waiting(queue, 0.0), waiting(queue, 0.0)
    assert queue.leave(0.01, 0.01) == [first]
    assert [queue.leave(0.02, 0.01), queue.leave(0.03, 0.01)] == [[], []]
    assert (queue.limit, queue.running) == (1, 1)
    assert queue.leave(0.04, 0.01) == [second]


# The properties: any script of arrivals, ends, give-ups and time-outs

Step = tuple[str, int, int]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["arrive", "arrive", "arrive", "leave", "leave", "give up", "time out", "urgent", "leave and give up"]
        ),
        st.integers(0, 60),
        st.integers(0, 5),
    ),
    max_size=80,
)


class Audit:
    """Runs a script against a queue, as its adapters would, and keeps the books beside it."""

    def __init__(self, queue: AdmissionQueue) -> None:
        self.queue = queue
        self.now = 0.0
        self.running = 0
        self.queued: list[Ticket] = []
        self.verdicts: dict[Ticket, str] = {}

    def step(self, kind: str, after_cs: int, choice: int) -> None:
        self.now += after_cs / 100
        if kind == "leave" and self.running:
            self.running -= 1
            self.told(self.queue.leave(self.now, (None, 0.01, 0.3)[choice % 3], dropped=choice == 5))
        elif kind == "leave and give up" and self.running:
            self.running -= 1
            told = self.queue.leave(self.now, 0.01)
            self.told(told)
            for ticket in told:
                if ticket.verdict == "enter":  # its client went away in this very moment
                    self.running -= 1
                    self.told(self.queue.give_up(ticket, self.now))
        elif kind == "give up" and self.queued:
            ticket = self.queued[choice % len(self.queued)]
            self.told([*self.queue.give_up(ticket, self.now), ticket])
        elif kind == "time out" and self.queued:
            ticket = min(self.queued, key=lambda ticket: ticket.until)
            self.queue.time_out(ticket, max(self.now, ticket.until))
            self.told([ticket])
        elif kind in ("arrive", "urgent"):
            self.arrive(choice - 2, self.now + choice * 0.2 if kind == "urgent" else None)
        self.check()

    def arrive(self, priority: int, deadline: float | None) -> None:
        ticket = self.queue.arrive(self.now, priority=priority, deadline=deadline)
        if ticket is None:
            self.running += 1
            return
        self.queued.append(ticket)
        if ticket.instead_of is not None:
            assert ticket.instead_of.priority <= priority
            assert ticket.instead_of.priority == min(waiting.priority for waiting in self.queued)
            self.told([ticket.instead_of])
        if ticket.verdict is not None:
            self.told([ticket])
            assert ticket.verdict == "deadline" or priority <= min((t.priority for t in self.queued), default=priority)

    def told(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            assert ticket not in self.verdicts, "a second verdict"
            assert ticket.verdict is not None
            self.queued.remove(ticket)
            self.verdicts[ticket] = ticket.verdict
            if ticket.verdict == "enter":
                self.running += 1
                assert ticket.deadline > self.now
                left = [waiting for waiting in self.queued if waiting.verdict is None]
                assert ticket.priority >= max((waiting.priority for waiting in left), default=ticket.priority)

    def check(self) -> None:
        assert self.running == self.queue.running
        assert self.running <= self.queue.limit
        assert all(ticket.verdict is None for ticket in self.queued), "a verdict that nobody was told of"
        assert len(self.queued) == self.queue.waiting <= 3
        assert not self.queued or self.running == self.queue.limit, "somebody waits while there is room"


def check_queue(make: type[AdmissionQueue], how: settings = properties) -> None:
    @how
    @given(st.integers(1, 3), STEPS)
    def check(limit: int, steps: list[Step]) -> None:
        audit = Audit(make_queue(limit, make=make))
        for kind, after_cs, choice in steps:
            audit.step(kind, after_cs, choice)
        while audit.running:
            audit.step("leave", 1, 1)
        assert not audit.queued

    check()


def test_the_limit_holds_every_ticket_has_one_verdict_and_nobody_waits_beside_a_free_place() -> None:
    check_queue(AdmissionQueue)


class LosesWakeUps(AdmissionQueue):
    """A planted bug: of several who may enter, only the first is told."""

    def leave(self, now: float, latency_s: float | None, *, dropped: bool = False, late: bool = False) -> list[Ticket]:
        return super().leave(now, latency_s, dropped=dropped, late=late)[:1]


class DropsAPlace(AdmissionQueue):
    """A planted bug: a place given up by one who was just told to enter is not passed on."""

    def _fill(self, now: float) -> list[Ticket]:
        return super()._fill(now) if self._passes_on else []

    _passes_on = True

    def give_up(self, ticket: Ticket, now: float) -> list[Ticket]:
        self._passes_on = False
        told = super().give_up(ticket, now)
        self._passes_on = True
        return told


class KeepsThePlace(AdmissionQueue):
    """A planted bug: a request that failed does not give its place back."""

    def leave(self, now: float, latency_s: float | None, *, dropped: bool = False, late: bool = False) -> list[Ticket]:
        return [] if dropped else super().leave(now, latency_s)


class Unfair(AdmissionQueue):
    """A planted bug: the least important goes first."""

    def _first(self) -> Ticket:
        return next(iter(self._levels[min(self._levels)]))


class Boundless(AdmissionQueue):
    """A planted bug: a queue that is full takes more."""

    def _line_up(self, ticket: Ticket) -> None:
        self._queue_most += 1
        super()._line_up(ticket)


class DisplacesAnybody(AdmissionQueue):
    """A planted bug: who is displaced is the most important."""

    def _last(self) -> Ticket:
        return self._first()


@pytest.mark.parametrize("make", [LosesWakeUps, DropsAPlace, KeepsThePlace, Unfair, Boundless, DisplacesAnybody])
def test_the_audit_finds_a_planted_bug(make: type[AdmissionQueue]) -> None:
    with pytest.raises(AssertionError):
        check_queue(make, planted)
