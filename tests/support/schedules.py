"""Deterministic interleavings: several flows on one thread, stepped effect by effect in every order there is.

Two requests that race in production meet in a handful of orders, and the one that breaks is the one that never came
up. Here a flow stands still before each of its effects, a schedule decides who goes next, and the schedules are
enumerated: depth first, each run from scratch, until none is left. A schedule is a list of choices, so a broken one
can be repeated exactly.

Where all schedules are too many, bound the number of preemptions: nearly every bug shows with two or three.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from onefold._http.request import Request, Response
from onefold._http.request_guard import RequestGuard
from onefold._http.route_policy import Route
from onefold._kernel.effects import Acquire, Call, Effect, Flow, Now, Sleep
from onefold._kernel.executors import ThreadExecutor
from onefold._kernel.ports import Database
from onefold._kernel.transaction import Transaction

T = TypeVar("T")
H = TypeVar("H")


class Choices:
    """One schedule: follows the choices it is given, then takes the first option, or the one chance gives it."""

    def __init__(self, given: Sequence[int] = (), *, chance: random.Random | None = None) -> None:
        self._given = given
        self._chance = chance
        #: What was chosen so far, and out of how many options.
        self.taken: list[tuple[int, int]] = []

    def choose(self, options: int) -> int:
        if options == 1:
            return 0
        place = len(self.taken)
        if place < len(self._given):
            choice = self._given[place]
        else:
            choice = self._chance.randrange(options) if self._chance is not None else 0
        self.taken.append((choice, options))
        return choice

    def __str__(self) -> str:
        return f"schedule {[choice for choice, _ in self.taken]}"


def every_schedule(*, limit: int) -> Iterator[Choices]:
    """Schedules to be run one after the other, until all have been: `for choices in every_schedule(limit=...)`."""
    given: list[int] = []
    for _ in range(limit):
        choices = Choices(given)
        yield choices
        if (following := _next(choices.taken)) is None:
            return
        given = following
    raise AssertionError(f"there are more than {limit} schedules; bound the preemptions, or raise the limit")


def some_schedules(seeds: Iterable[int]) -> Iterator[Choices]:
    """One schedule for each seed: where all are too many, a sample that can be repeated."""
    for seed in seeds:
        yield Choices(chance=random.Random(seed))


def _next(taken: Sequence[tuple[int, int]]) -> list[int] | None:
    """The schedule after this one: the last choice that has an option left takes it."""
    for place in reversed(range(len(taken))):
        choice, options = taken[place]
        if choice + 1 < options:
            return [*(chosen for chosen, _ in taken[:place]), choice + 1]
    return None


class VirtualExecutor(ThreadExecutor[H]):
    """An executor on which waiting takes no time: the clock moves by what is slept, and a tick each time it is read."""

    __slots__ = ("_now_s", "_tick_s")

    def __init__(self, database: Database[H], *, tick_s: float = 1.0) -> None:
        super().__init__(database)
        self._now_s = 0.0
        self._tick_s = tick_s

    def sleep(self, seconds: float) -> None:
        self._now_s += seconds

    def now(self) -> float:
        self._now_s += self._tick_s
        return self._now_s


class Stepper(Generic[T]):
    """One flow on one executor, performed one effect at a time. `awaits` is its next effect; None: it has ended."""

    def __init__(self, name: str, flow: Flow[T], executor: ThreadExecutor[Any]) -> None:
        self.name = name
        self.awaits: Effect[Any] | None = None
        self._flow = flow
        self._executor = executor
        self._result: T | None = None
        self._error: Exception | None = None
        self._resume(flow.send, None)

    def step(self) -> None:
        """Perform the effect that the flow stands before."""
        assert self.awaits is not None, f"{self.name} has ended"
        try:
            verb, argument = getattr(self._executor, self.awaits.verb), self.awaits.argument
            answer = verb() if argument is None else verb(argument)
        except Exception as error:
            self._resume(self._flow.throw, error)
        else:
            self._resume(self._flow.send, answer)

    @property
    def result(self) -> T | None:
        """What the flow returned, or the error it ended with, raised."""
        if self._error is not None:
            raise self._error
        return self._result

    def _resume(self, resume: Callable[[Any], Any], answer: Any) -> None:
        try:
            self.awaits = resume(answer)
        except StopIteration as end:
            self.awaits, self._result = None, end.value
        except Exception as error:
            self.awaits, self._error = None, error


def is_private(effect: Effect[Any]) -> bool:
    """Whether an effect touches nothing that another flow can see: its order makes no difference."""
    return isinstance(effect, Acquire | Now | Sleep)


def interleave(
    steppers: Sequence[Stepper[Any]],
    choices: Choices,
    *,
    preemptions: int | None = None,
    private: Callable[[Effect[Any]], bool] = is_private,
) -> list[str]:
    """Run flows to their end in the order of a schedule; who took each step, for a report.

    A preemption takes the turn from a flow that could go on. Private effects are performed at once.
    """
    order: list[str] = []
    last: Stepper[Any] | None = None
    while True:
        for stepper in steppers:
            while stepper.awaits is not None and private(stepper.awaits):
                stepper.step()
        alive = [stepper for stepper in steppers if stepper.awaits is not None]
        if not alive:
            return order
        if preemptions == 0 and last is not None and last in alive:
            chosen = last
        else:
            # Going on comes first, so that the first schedule explored is the one without preemptions.
            options = sorted(alive, key=lambda stepper: stepper is not last)
            chosen = options[choices.choose(len(options))]
            if preemptions is not None and last in alive and chosen is not last:
                preemptions -= 1
        order.append(chosen.name)
        chosen.step()
        last = chosen


async def request(
    guard: RequestGuard,
    route: Route,
    asked: Request,
    body: bytes,
    executor: ThreadExecutor[Any],
    handler: Callable[[Transaction[Any]], Response],
) -> Response:
    """One keyed request as one flow, from its admission to its answer: what the adapters do, without an adapter."""
    guarded = guard.screen(asked, route, executor)
    if isinstance(guarded, Response):
        return guarded
    refusal = await guarded.admit(body)
    if refusal is not None:
        return refusal
    try:
        response = await Handling(lambda: handler(guarded.tx))
    except Exception as error:
        await guarded.abort(type(error).__name__)
        return Response(500, ())
    instead = await guarded.finish(response)
    return response if instead is None else instead


class Handling(Call):
    """The call of the handler itself: a place that a schedule may want to know."""

    __slots__ = ()
